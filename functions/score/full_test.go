package score

import (
	"fmt"
	"slices"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// wordy makes models with 20,000 labels: an answer of them has about 370 kB.
func (w *world) wordy(n int) {
	w.Helper()
	for i := range n {
		model := fmt.Sprint("m/bot-", i)
		w.model(artifactOf(model, 1), network(1, 4, 2, 20_000))
		w.promoted(model, 1)
	}
}

// bounded fails if the answers of a batch take too much memory.
func (b *batch) bounded(t *testing.T) {
	t.Helper()
	bytes := 0
	for _, arena := range b.arenas {
		bytes += len(arena)
	}
	if bytes > 2*mostBytes+len(b.arenas)<<20 {
		t.Errorf("the answers of a batch have %d bytes", bytes)
	}
}

// The answers of a batch take a limited memory, however many labels the models have. The events that have to wait for the
// next batch keep the order of their keys, and no event is lost or answered twice.
func TestTheAnswersOfABatchAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	w.wordy(2)
	p := w.addOutputs()
	s := p.still()
	w.must(s.join(t.Context()))
	const n = 200
	w.publish(batchOf(0, n, 2)...)
	s.running.Go(s.pipeline)
	for answered := 0; answered < n; {
		b := <-s.computed
		b.bounded(t)
		for i := range b.items {
			if b.items[i].verdict == scored {
				answered++
			}
		}
		w.must(s.finishBatch(b))
		s.wake.commits(-1)
	}
	w.checkOnce(n)
	if slices.ContainsFunc(s.active, func(a *assignment) bool { return a.held.count() > 0 }) {
		t.Error("events are parked, although their model is loaded")
	}
	w.must(s.leave(t.Context()))
}

// A rescoring reads many small events at once. Their answers are bounded too, and each event is scored once.
func TestTheAnswersOfARescoringAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	w.wordy(2)
	const n = 200
	w.publish(batchOf(0, n, 3)...) // one bot has no model
	p := w.addOutputs()
	r, err := planned(t.Context(), p.rescoring(VersionChampion))
	w.must(err)
	r.x, err = p.b.Exclusive(t.Context(), rescoreName(r.id), broker.ProducerOptions{AsRead: true})
	w.must(err)
	w.must(r.begin(t.Context()))
	r.told.Left = n
	for r.told.Left > 0 {
		w.must(r.scoreNext(t.Context(), &r.stretch[0]))
		r.batch.bounded(t)
	}
	w.must(r.x.Close(t.Context()))
	if r.told.Scored != 134 || r.told.Unscored != 66 || r.told.Passed != 0 {
		t.Errorf("%+v", r.told)
	}
	w.answered(w.outputs(streamAgain), 134, "1")
}

// One batch has no room for the answers to all dead letters of a replay. Each is answered once, in the order of the events.
func TestTheAnswersOfAReplayAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	l := &lettersWorld{world: w, process: w.open(scorer())}
	const n = 60
	var all []broker.View
	for i := range n {
		all = append(all, message("late-1", i))
	}
	w.publish(all...)
	w.waitEvents(tidemill.StreamDeadLetters, n)
	w.model(artifactOf("m/late-1", 1), network(1, 4, 2, 20_000))
	w.promoted("m/late-1", 1)
	w.poll("the model has a champion", func() bool { return l.m.Known("m/late-1") })
	done, err := Replay(t.Context(), l.replaying())
	if err != nil || len(done.Letters) != n || len(done.Failed) != 0 {
		t.Errorf("%d are resolved, and these are not: %v; %v", len(done.Letters), done.Failed, err)
	}
	answers := w.outputs(streamOut)
	for i := range answers {
		if want := fmt.Sprintf("%s/0/%d", streamIn, i); answers[i].ID != want {
			t.Errorf("answer %d is to %s", i, answers[i].ID)
		}
	}
	if len(answers) != n {
		t.Errorf("%d answers, want %d", len(answers), n)
	}
}
