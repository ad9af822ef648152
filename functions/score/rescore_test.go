package score

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const streamAgain = "again"

// addOutputs adds a stream for the outputs and returns a process without a scorer.
func (w *world) addOutputs() *process {
	w.Helper()
	_, err := w.b.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: streamAgain, Partitions: 2}}, broker.EnsureOptions{})
	w.must(err)
	p := &process{w: w}
	p.open(scorer())
	w.Cleanup(func() {
		w.must(p.m.Close())
		w.must(p.table.Close(w.Context()))
		w.must(p.cache.Close())
		w.must(p.b.Close())
	})
	return p
}

func (p *process) rescoring(version string) Rescoring {
	p.w.Helper()
	ends, err := p.b.Ends(p.w.Context(), streamIn)
	p.w.must(err)
	r := Rescoring{Broker: p.b, Names: p.w.names, Config: scorer(), Champions: p.table, Models: p.m, Version: version, Stream: streamAgain, Told: func(Rescored) error { return nil }}
	for _, e := range ends {
		r.Ranges = append(r.Ranges, tidemill.Range{Partition: e.Partition, To: e.Offset})
	}
	return r
}

// answered checks the outputs: one for each event, in the order of its key, by the given version.
func (w *world) answered(all []scoredEvent, n int, version string) {
	w.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, a := range all {
		id, _ := a.Attribute(tidemill.AttrCausationID)
		by, _ := a.Attribute(tidemill.AttrModelVersion)
		var key string
		var number int
		if _, err := fmt.Sscanf(strings.Replace(id, "bot-", "", 1), "%1s-%d", &key, &number); err != nil {
			w.Fatal(err)
		}
		if before, spoke := last[key]; seen[id] || by != version || spoke && number < before || !strings.HasPrefix(a.Source, "/tidemill/prod/scorer/s/rescore/") {
			w.Errorf("%s of %s, by version %s, after %d of its key (seen: %t)", id, a.Source, by, before, seen[id])
		}
		seen[id], last[key] = true, number
	}
	if len(seen) != n {
		w.Errorf("%d events have answers, and have to be %d", len(seen), n)
	}
}

func TestAStreamIsScoredOnceMore(t *testing.T) {
	w := newWorld(t, 3)
	w.bots(4)
	for i := range 4 {
		w.register(fmt.Sprint("m/bot-", i), 2)
		w.promote(fmt.Sprint("m/bot-", i), 2, 1, 1)
	}
	w.publish(batchOf(0, 400, 5)...) // one bot has no model
	p := w.addOutputs()
	for version, by := range map[string]string{"champion": "2", "previous": "1", "1": "1"} {
		done, err := Rescore(t.Context(), p.rescoring(version))
		w.must(err)
		if done.Scored != 320 || done.Unscored != 80 || done.Left != 0 || done.Records != 400 || len(done.Reasons) != mostReasons {
			t.Errorf("by %s: %+v", version, done)
		}
		w.answered(slices.DeleteFunc(w.outputs(streamAgain), func(a scoredEvent) bool { return !strings.HasSuffix(a.Source, "/"+done.ID) }), 320, by)
	}
	none, err := Rescore(t.Context(), p.rescoring("3"))
	if err != nil || none.Unscored != 400 {
		t.Errorf("by a version that there is not: %+v, %v", none, err)
	}
}

var errCut = errors.New("cut off")

// An interrupted rescoring is resumed by its id, wherever it stopped.
func TestARescoringIsResumed(t *testing.T) {
	w := newWorld(t, 3)
	w.bots(5)
	w.publish(batchOf(0, 600, 5)...)
	p := w.addOutputs()
	o := p.rescoring(VersionChampion)
	o.Told = func(Rescored) error { return errCut }
	first, err := Rescore(t.Context(), o)
	if !errors.Is(err, errCut) || first.ID == "" || first.Left == 0 || first.Scored == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	o = p.rescoring("")
	o.Ranges, o.Stream, o.Resume = nil, "", first.ID
	rest, err := Rescore(t.Context(), o)
	w.must(err)
	if rest.Scored != 600-first.Scored || rest.Records != 600 || rest.Left != 0 || rest.ID != first.ID {
		t.Errorf("%+v, and then %+v", first, rest)
	}
	w.answered(w.outputs(streamAgain), 600, "1")
	again, err := Rescore(t.Context(), o)
	if err != nil || again.Scored != 0 {
		t.Errorf("once it has ended: %+v, %v", again, err)
	}
}

// Events of the range that retention deletes before they are read are counted, not those after it.
func TestARescoringCountsWhatRetentionDeleted(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(5)
	w.publish(batchOf(0, 100, 5)...)
	p := w.addOutputs()
	o := p.rescoring(VersionChampion)
	w.publish(batchOf(100, 50, 5)...)
	w.must(w.b.DeleteBelow(t.Context(), []broker.Position{{Stream: streamIn, Partition: o.Ranges[0].Partition, Offset: o.Ranges[0].To + 1},
		{Stream: streamIn, Partition: o.Ranges[1].Partition, Offset: o.Ranges[1].To - 7}}))
	done, err := Rescore(t.Context(), o)
	if err != nil || done.Scored != 7 || done.Deleted != 93 || done.Records != 100 || done.Left != 0 {
		t.Errorf("%+v, %v", done, err)
	}
}

// A new rescoring under a given id is continued if it is asked for again, because the first answer may be lost.
func TestARescoringIsAskedForTwice(t *testing.T) {
	w := newWorld(t, 3)
	w.bots(5)
	w.publish(batchOf(0, 600, 5)...)
	p := w.addOutputs()
	o := p.rescoring(VersionChampion)
	o.Resume = "named"
	o.Told = func(Rescored) error { return errCut }
	first, err := Rescore(t.Context(), o)
	if !errors.Is(err, errCut) || first.ID != "named" || first.Scored == 0 || first.Records != 600 {
		t.Fatalf("%+v, %v", first, err)
	}
	o.Told = func(Rescored) error { return nil }
	rest, err := Rescore(t.Context(), o)
	w.must(err)
	if rest.Scored != 600-first.Scored || rest.Records != 600 || rest.Left != 0 {
		t.Errorf("%+v, and then %+v", first, rest)
	}
	w.answered(w.outputs(streamAgain), 600, "1")
}

// The laptop's broker may keep outputs and lose the progress. Then the outputs are found and
// not written again.
func TestATornRescoringIsResumed(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(5)
	w.publish(batchOf(0, 100, 5)...)
	p := w.addOutputs()
	o := p.rescoring(VersionChampion)
	r, err := planned(t.Context(), o)
	w.must(err)
	r.x, err = p.b.Exclusive(t.Context(), rescoreName(r.id), broker.ProducerOptions{})
	w.must(err)
	w.must(r.begin(t.Context()))
	s, before := r.stretch[0], r.note
	before.Answers = slices.Clone(before.Answers)
	w.must(r.scoreNext(t.Context(), &r.stretch[0]))
	r.note = before
	w.must(r.x.Do(t.Context(), func(tx *broker.ExclusiveTx) error { r.storeProgress(tx, s); return nil })) // the progress goes back to the beginning
	w.must(r.x.Close(t.Context()))
	o.Resume = r.id
	done, err := Rescore(t.Context(), o)
	if err != nil || done.Skipped != 100 || done.Scored != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	w.answered(w.outputs(streamAgain), 100, "1")
}

func TestWhatCannotBeRescored(t *testing.T) {
	w := newWorld(t, 1)
	p := w.addOutputs()
	for _, c := range []struct {
		says string
		of   func(*Rescoring)
	}{
		{"give a number", func(o *Rescoring) { o.Version = "newest" }},
		{"without a stream", func(o *Rescoring) { o.Stream = "" }},
		{"works with itself", func(o *Rescoring) { o.Stream = streamOut }},
		{"works with itself", func(o *Rescoring) { o.Stream = streamIn }},
		{"is reserved", func(o *Rescoring) { o.Stream = tidemill.StreamFacts }},
		{"it is unknown", func(o *Rescoring) { o.Resume, o.Stream = "abc", "" }},
	} {
		o := p.rescoring(VersionChampion)
		c.of(&o)
		if _, err := Rescore(t.Context(), o); !errors.Is(err, ErrRescore) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; it has to say %q, and that asking again is of no use", err, c.says)
		}
	}
}
