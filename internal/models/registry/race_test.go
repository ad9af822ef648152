package registry

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// flushEvery is the number of orders in which each position of the flush of Redis is played once.
// Most of these orders have no flush.
const flushEvery = 4 * (2*stages + 1)

// racer judges a version of a model at the same time as another racer, as in separate processes. A
// racer waits before each write.
type racer struct {
	r       *Registrar
	v       *broker.View
	go_     chan struct{}
	arrived chan bool // false at the end of its work
	done    bool
	err     error
}

// stages is the number of pieces of the work on a version without a race: up to the registration,
// up to the proposal, up to the announcement, and the rest.
const stages = 4

func (w *world) racer(r *Registrar, v *broker.View) *racer {
	a := &racer{r: r, v: v, go_: make(chan struct{}), arrived: make(chan bool)}
	r.step = func(step) {
		a.arrived <- true
		<-a.go_
	}
	go func() {
		<-a.go_
		a.err = w.patiently(r, v)
		a.arrived <- false
	}()
	return a
}

// proceed lets the racer continue to its next wait.
func (a *racer) proceed() {
	if a.done {
		return
	}
	a.go_ <- struct{}{}
	a.done = !<-a.arrived
}

// orders returns all orders of two racers with the given numbers of turns; true is the first one's
// turn.
func orders(first, second int) (all [][]bool) {
	if first == 0 && second == 0 {
		return [][]bool{nil}
	}
	if first > 0 {
		for _, rest := range orders(first-1, second) {
			all = append(all, append([]bool{true}, rest...))
		}
	}
	if second > 0 {
		for _, rest := range orders(first, second-1) {
			all = append(all, append([]bool{false}, rest...))
		}
	}
	return all
}

// play runs two racers in an order, and flushes Redis before one of their turns.
func (w *world) play(order []bool, flushed int, older, newer *racer) {
	w.Helper()
	for i, first := range order {
		if i == flushed {
			w.flush()
		}
		if first {
			older.proceed()
		} else {
			newer.proceed()
		}
	}
	for !older.done || !newer.done {
		older.proceed()
		newer.proceed()
	}
	w.must(older.err)
	w.must(newer.err)
}

// Two runs of one model have ended, and two promote functions judge them in every order of their
// writes. Redis is flushed between any two writes. In the end there is one champion, the newer
// run's version if it may be. Each verdict is there once and has a reason.
func TestTwoRaceInEveryOrder(t *testing.T) {
	t.Parallel()
	const better = "metrics.accuracy >= champion.metrics.accuracy"
	for name, c := range map[string]struct {
		older, newer runEnd
		wants        int  // expected champion: 2 the older run's, 3 the newer one's
		orAgain      bool // whether the newer run may be asked for again instead
	}{
		"both pass":           {runEnd{accuracy: 0.9}, runEnd{accuracy: 0.9}, 3, false},
		"the newer is worse":  {runEnd{accuracy: 0.9}, runEnd{accuracy: 0.1, gate: []string{"metrics.accuracy > 0.5"}}, 2, false},
		"the older is worse":  {runEnd{accuracy: 0.1, gate: []string{"metrics.accuracy > 0.5"}}, runEnd{accuracy: 0.9}, 3, false},
		"by what is recorded": {runEnd{accuracy: 0.7, gate: []string{better}, on: tidemill.GateOnRecorded}, runEnd{accuracy: 0.8, gate: []string{better}, on: tidemill.GateOnRecorded}, 3, false},
		"by the same data":    {runEnd{accuracy: 0.7, gate: []string{better}, given: 1, beside: 0.6}, runEnd{accuracy: 0.8, gate: []string{better}, given: 1, beside: 0.6}, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			one, two := w.registrar(), w.registrar()
			for i, order := range orders(stages, stages) {
				model := fmt.Sprint("race-", i)
				c.older.model, c.newer.model = model, model
				w.must(w.patiently(one, w.runEndEvent(runEnd{model: model, accuracy: 0.5})))
				older, newer := w.runEndEvent(c.older), w.runEndEvent(c.newer)
				w.play(order, i%flushEvery, w.racer(one, older), w.racer(two, newer))
				one.step, two.step = func(step) {}, func(step) {}
				w.checkRace(one, model, order, older, newer, c.wants, c.orAgain)
				if t.Failed() {
					t.Fatalf("in the order %v", order)
				}
			}
		})
	}
}

func (w *world) checkRace(r *Registrar, model string, order []bool, older, newer *broker.View, wants int, orAgain bool) {
	w.Helper()
	m := w.model(r, model)
	of := func(v *broker.View) *fold.Held { run, _ := v.Attribute(tidemill.AttrRun); return m.OfRun(run) }
	champion := of(newer)
	if wants == 2 {
		champion = of(older)
	}
	if again := w.askedFor(newer); orAgain && m.Champion != champion.Number {
		if champion = of(older); !again {
			w.Errorf("the newer run's version is not the champion, and its run was not asked for again")
		}
	} else if again {
		w.Errorf("a run was asked for again for nothing")
	}
	if m.Champion != champion.Number || len(m.Owed) > 0 || m.Last != 3 {
		w.Errorf("the model is %+v", m)
	}
	for _, v := range []*broker.View{older, newer} {
		rec := w.versionRecord(r, model, of(v).Number)
		if rec.Judgement == nil || rec.Judgement.Sentence == "" || rec.State == tidemill.VersionRegistered {
			w.Errorf("the verdict on version %d, which is %s, is %+v", rec.Number, rec.State, rec.Judgement)
		}
		if said := w.announced(model, rec.Run); len(said) != 1 || said[0] != string(rec.State) {
			w.Errorf("of version %d, which is %s, the log announces %v", rec.Number, rec.State, said)
		}
	}
	if n := types(w.factsOf(model)); n["registered"] != 3 || n["promoted"]+n["refused"] != 3 {
		w.Errorf("the log tells of %v", n)
	}
}

func (w *world) askedFor(v *broker.View) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.again {
		if l.Cause == (tidemill.Cause{Source: v.Source, ID: v.ID}) {
			return true
		}
	}
	return false
}

// announced returns the announcements of a run's version on the log, by distinct events.
func (w *world) announced(model, run string) (all []string) {
	w.Helper()
	for _, v := range w.factsOf(model) {
		of, _ := v.Attribute(tidemill.AttrRun)
		if of != run || v.Type == tidemill.TypeModelRegistered || v.Type == tidemill.TypeModelPromotionProposed {
			continue
		}
		var d tidemill.ModelAnnounced
		w.must(json.Unmarshal(v.Data, &d))
		if d.Judgement == nil || d.Judgement.Sentence == "" || d.Origin == nil {
			w.Errorf("%s explains nothing: %s", v.Type, v.Data)
		} else if d.Judgement.Against != d.Before {
			w.Errorf("%s was judged against version %d, and the champion was version %d", v.Type, d.Judgement.Against, d.Before)
		}
		all = append(all, strings.TrimPrefix(v.Type, "tidemill.model."))
	}
	return all
}

// A registrar dies before each of its writes, and the event is delivered to another. Nothing is
// missing, and nothing is there twice.
func TestDyingAtEachStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, other := w.registrar(), w.registrar()
	for i := range stages {
		model := fmt.Sprint("dead-", i)
		older, v := w.runEndEvent(runEnd{model: model, accuracy: 0.8}), w.runEndEvent(runEnd{model: model, accuracy: 0.9, gate: []string{"metrics.accuracy > 0.85"}})
		w.must(w.patiently(other, older))
		a := w.racer(dying, v)
		for range i + 1 {
			a.proceed()
		}
		w.must(w.patiently(other, v))
		for !a.done { // the first registrar was not dead, but slow
			a.proceed()
		}
		w.must(a.err)
		m := w.model(other, model)
		if n := types(w.factsOf(model)); m.Champion != 2 || len(m.Owed) > 0 || n["registered"] != 2 || n["promoted"] != 2 {
			t.Errorf("stopped before step %d: the model is %+v, and the log tells of %v", i, m, n)
		}
	}
}

// A champion without files can be given to no run, so a request for another run would repeat for
// ever.
func TestAChampionThatIsLostIsNotRacedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	first := w.runEndEvent(runEnd{model: "m", accuracy: 0.5})
	w.must(r.Finished(w.ctx(), first))
	v := w.runEndEvent(runEnd{model: "m", accuracy: 0.9, gate: []string{"metrics.accuracy >= champion.metrics.accuracy"}})
	w.must(r.Finished(w.ctx(), v))
	if !w.askedFor(v) {
		t.Fatal("a run that was given no champion is not asked for again")
	}
	w.removeTree(w.versionRecord(r, "m", 1).Artifact)
	r = w.registrar()
	v = w.runEndEvent(runEnd{model: "m", accuracy: 0.9, gate: []string{"metrics.accuracy >= champion.metrics.accuracy"}})
	w.must(r.Finished(w.ctx(), v))
	if m := w.model(r, "m"); w.askedFor(v) || m.Champion != 1 || m.Find(3).State != tidemill.VersionRefused {
		t.Errorf("it is asked for again: %+v", m)
	}
}
