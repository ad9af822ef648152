package score

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/deadletters"
)

// lettersWorld has a running scorer and dead letters: twenty events of each of two keys that had no
// model and have one now, an event without the model's input, and one of a key without a model.
type lettersWorld struct {
	*world
	*process
	letters int // number of dead letters that can be replayed
}

func newLettersWorld(t *testing.T) *lettersWorld {
	t.Helper()
	w := newWorld(t, 3)
	w.bots(1)
	p := w.open(scorer())
	var all []broker.View
	for i := range 20 {
		all = append(all, message("bot-0", i), message("late-1", i), message("late-2", i))
	}
	bad := message("late-1", 99)
	bad.Data = []byte(`{"y":1}`)
	w.publish(append(all, bad, message("stranger", 1))...)
	w.waitEvents(tidemill.StreamDeadLetters, 42)
	for _, key := range []string{"m/late-1", "m/late-2"} {
		w.first(key)
		w.poll(key+" has a champion", func() bool { return p.m.Known(key) })
	}
	return &lettersWorld{w, p, 40}
}

// replaying returns a replay of all open dead letters.
func (w *lettersWorld) replaying() Replaying {
	w.world.Helper()
	book, err := deadletters.Open(w.Context(), w.world.b, nil)
	w.must(err)
	defer func() { w.must(book.Close(context.Background())) }()
	r := Replaying{Broker: w.process.b, Names: w.names, Config: scorer(), Models: w.m, By: "ada"}
	book.ByKey(deadletters.Selection{Scorer: "s"}, func(e deadletters.Entry) { r.Letters = append(r.Letters, e) })
	return r
}

// checkAnswers checks that each event has one answer by the scorer, and that the answers to the dead
// letters of a key are in the order of its events.
func (w *lettersWorld) checkAnswers() {
	w.world.Helper()
	seen, last := map[string]int{}, map[string]int64{}
	for _, a := range w.outputs(streamOut) {
		var partition int32
		var offset int64
		if _, err := fmt.Sscanf(strings.ReplaceAll(strings.TrimPrefix(a.ID, streamIn+"/"), "/", " "), "%d %d", &partition, &offset); err != nil {
			w.Fatal(err)
		}
		if seen[a.ID]++; a.Source != w.names.Source("scorer/s") || offset < last[a.Subject] {
			w.Errorf("%s of %s comes from %s, after offset %d", a.ID, a.Subject, a.Source, last[a.Subject])
		}
		last[a.Subject] = offset
	}
	if len(seen) != 20+w.letters || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		w.Errorf("%d events have answers, some of them several: %v", len(seen), seen)
	}
}

func TestDeadLettersAreScoredAgain(t *testing.T) {
	w := newLettersWorld(t)
	o := w.replaying()
	done, err := Replay(t.Context(), o)
	w.must(err)
	if len(done.Letters) != 40 || len(done.Failed) != 2 {
		t.Errorf("%d are resolved, and these are not: %v", len(done.Letters), done.Failed)
	}
	reasons := strings.Join(slices.Sorted(maps.Values(done.Failed)), "; ")
	if !strings.Contains(reasons, "m/stranger has no champion") || !strings.Contains(reasons, "x") {
		t.Errorf("the reasons are %s", reasons)
	}
	w.checkAnswers()
	again, err := Replay(t.Context(), o) // by a list that is out of date
	if err != nil || len(again.Letters) != 0 || len(again.Failed) != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if left := w.replaying().Letters; len(left) != 2 {
		t.Errorf("%d dead letters are open", len(left))
	}
	w.process.close() // the next owner of the partitions reads outputs back
	w.world.open(scorer())
	w.publish(message("bot-0", 30), message("late-1", 30))
	w.letters += 2
	w.waitEvents(streamOut, 62)
	w.checkAnswers()
	for _, e := range w.outputs(tidemill.StreamDeadLetters) {
		receipt, err := deadletters.ReadReceipt(&e.View)
		if err != nil {
			continue
		}
		if receipt.Action != deadletters.Replayed || receipt.Outcome != deadletters.Delivered || receipt.By != "ada" || e.Source != w.names.Source("scorer/s") {
			t.Errorf("the receipt is %+v, from %s", receipt, e.Source)
		}
	}
}

// The laptop's broker may keep the answers of a transaction and lose its receipts. The next replay
// finds the answers.
func TestATornReplay(t *testing.T) {
	w := newLettersWorld(t)
	r, err := newReplay(t.Context(), w.replaying())
	w.must(err)
	w.must(r.readLetters(t.Context()))
	_, err = r.findAnswered(t.Context())
	w.must(err)
	_, _, err = r.scoreLetters(t.Context(), r.open)
	w.must(err)
	w.must(r.commitLetters(t.Context(), nil))
	w.must(r.x.Close(t.Context()))
	done, err := Replay(t.Context(), w.replaying())
	if err != nil || len(done.Letters) != 40 {
		t.Errorf("%d are resolved: %v", len(done.Letters), err)
	}
	w.checkAnswers()
}

// Of two replays at once, the later one does the work, and the earlier one can write nothing.
func TestTwoReplaysAtOnce(t *testing.T) {
	w := newLettersWorld(t)
	first, err := newReplay(t.Context(), w.replaying())
	w.must(err)
	w.must(first.readLetters(t.Context()))
	_, err = first.findAnswered(t.Context())
	w.must(err)
	answered, _, err := first.scoreLetters(t.Context(), first.open)
	w.must(err)
	done, err := Replay(t.Context(), w.replaying())
	if err != nil || len(done.Letters) != 40 {
		t.Errorf("%d are resolved: %v", len(done.Letters), err)
	}
	if err := first.commitLetters(t.Context(), answered); !errors.Is(err, broker.ErrSuperseded) {
		t.Errorf("the first replay: %v", err)
	}
	_ = first.x.Close(t.Context())
	w.checkAnswers()
}
