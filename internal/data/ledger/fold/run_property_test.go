package fold_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// runWriter writes the facts of one recipe and key like many processes that do not know the
// newest facts. Each sees the fold as it was some facts ago, writes a fact that follows from
// it, and often writes it twice.
type runWriter struct {
	*rand.Rand
	facts []fold.Fact
	was   []fold.Making // states before each fact
	now   fold.Making
	at    time.Time
	plan  tidemill.Plan
}

func newRunWriter(seed uint64) *runWriter {
	t := &runWriter{Rand: rand.New(rand.NewPCG(seed, 5)), at: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC), plan: patient}
	if t.IntN(3) == 0 {
		t.plan.Dataset = "d"
	}
	return t
}

// foldedSoFar returns the fold, often without the newest facts.
func (t *runWriter) foldedSoFar() fold.Making {
	if behind := t.IntN(8); behind > 0 && behind <= len(t.was) && t.IntN(2) == 0 {
		return t.was[len(t.was)-behind]
	}
	return t.now
}

// write puts a fact on the log. Its time is the writer's clock, which may be wrong.
func (t *runWriter) write(typ, run string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	t.at = t.at.Add(time.Duration(t.IntN(20)) * time.Second)
	t.put(fold.Fact{Type: typ, Run: run, At: t.at.Add(time.Duration(t.IntN(10)-5) * time.Second), By: []string{"", "ada"}[t.IntN(2)], Data: text})
}

func (t *runWriter) put(f fold.Fact) {
	f.Partition, f.Offset, f.Recipe, f.Key = 3, int64(len(t.facts))*int64(1+len(t.facts)%3), "r", "k" // facts of other keys are in between
	if n := len(t.facts); n > 0 && f.Offset <= t.facts[n-1].Offset {
		f.Offset = t.facts[n-1].Offset + 1
	}
	t.was = append(t.was, copyMaking(t.now))
	t.facts = append(t.facts, f)
	t.now.Apply(f)
}

// act writes one random fact.
func (t *runWriter) act() {
	m := t.foldedSoFar()
	run := fmt.Sprint("run-", t.IntN(40))
	live, waiting := m.Live, m.Waiting
	switch n := t.IntN(21); {
	case n < 6:
		cause := t.IntN(40)
		t.write(tidemill.TypeRunRequested, fmt.Sprint("run-", cause), tidemill.RunRequested{Cause: causeOf(fmt.Sprint(cause)),
			Debounce: time.Duration(t.IntN(30)) * time.Second, MaxWait: time.Duration(t.IntN(100)) * time.Second, Delay: time.Duration(t.IntN(2)*t.IntN(100)) * time.Second,
			Priority: t.IntN(3), Events: []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"id":"%d","<":"&"}`, cause))}, Config: fmt.Sprint(t.IntN(3))})
	case n < 10 && live == nil && waiting != nil:
		t.write(tidemill.TypeRunStarted, waiting.ID, t.firstStart(waiting))
	case n < 10 && live != nil && live.State == tidemill.RunWaiting:
		t.write(tidemill.TypeRunStarted, live.ID, t.firstStart(live))
	case n < 10 && live != nil:
		d := tidemill.RunStarted{Attempt: live.NextAttempt(), Where: tidemill.Where{ResumedFrom: "t"}}
		if live.PlanMAC == "" && t.IntN(2) == 0 {
			d.Plan, d.MAC = &t.plan, "mac"
		}
		t.write(tidemill.TypeRunStarted, live.ID, d)
	case n < 15 && live != nil && len(live.Attempts) > 0:
		outcome := []tidemill.Outcome{"succeeded", "succeeded", "failed", "failed", "failed", "lost", "lost", "cancelled", "tired"}[t.IntN(9)]
		t.write(tidemill.TypeRunFinished, live.ID, tidemill.RunFinished{Attempt: 1 + t.IntN(len(live.Attempts)), Outcome: outcome, Permanent: t.IntN(9) == 0,
			Result: tidemill.Result{Exit: t.IntN(3), Metrics: map[string]float64{"a": t.Float64()}}})
	case n == 15 && live != nil:
		t.write(tidemill.TypeRunCommitted, live.ID, tidemill.RunCommitted{Commit: fmt.Sprint(t.IntN(9))})
	case n == 16 && waiting != nil && t.IntN(3) == 0:
		t.write(tidemill.TypeRunCancelled, waiting.ID, tidemill.RunCancelledData{Reason: "why"})
	case n == 16 && live != nil:
		t.write(tidemill.TypeRunCancelled, live.ID, nil)
	case n == 20 && live != nil:
		t.write(tidemill.TypeRunSeen, live.ID, tidemill.RunSeen{Attempt: t.IntN(len(live.Attempts) + 2), Pending: []string{"", "no GPU", "no image"}[t.IntN(3)],
			Where: tidemill.Where{Node: []string{"", "b"}[t.IntN(2)], Image: []string{"", "sha256:1"}[t.IntN(2)]}})
	case n == 17 && t.IntN(10) == 0:
		t.write(tidemill.TypeRunForgotten, "", tidemill.RunForgotten{Cause: causeOf(fmt.Sprint("end-", t.IntN(5))), Reason: "gone"})
	case n < 19 && len(t.facts) > 0:
		t.put(t.facts[t.IntN(len(t.facts))]) // a producer repeats it without an answer, or a zombie writes it
	default:
		t.write([]string{tidemill.TypeRunSeen, tidemill.TypeRunStarted, tidemill.TypeRunFinished, tidemill.TypeRunCommitted, tidemill.TypeRunCancelled, "tidemill.run.dreamt"}[t.IntN(6)], run,
			map[string]any{"attempt": t.IntN(3), "outcome": "failed", "seen": t.IntN(50), "plan": t.plan})
	}
}

// firstStart returns the start of a run, as this version writes it or as an earlier one did.
func (t *runWriter) firstStart(r *tidemill.Run) tidemill.RunStarted {
	d := tidemill.RunStarted{Attempt: 1, Seen: r.LastAsked(), Plan: &t.plan, Where: tidemill.Where{Node: "a"}}
	if t.IntN(3) > 0 {
		d.Causes = r.Causes
	}
	if t.IntN(2) == 0 {
		d.MAC = "mac"
	}
	return d
}

// copyMaking encodes and decodes a making.
func copyMaking(m fold.Making) (c fold.Making) {
	data, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		panic(err)
	}
	return c
}

// runChecker checks that the fold keeps the rules for runs.
type runChecker struct {
	*testing.T
	runOf    map[tidemill.Cause]string
	causes   map[string]int
	newest   map[string]int64 // offset of the newest request, by run
	attempts map[string]int
	ended    map[string]string // state of each run at its end
	closed   int               // number of runs that a start has closed
	gone     map[string]bool   // data of the facts that ended the key
}

func newRunChecker(t *testing.T) *runChecker {
	return &runChecker{T: t, runOf: map[tidemill.Cause]string{}, causes: map[string]int{}, newest: map[string]int64{}, attempts: map[string]int{}, ended: map[string]string{}, gone: map[string]bool{}}
}

func (a *runChecker) watch(m *fold.Making, f fold.Fact) {
	a.Helper()
	before := encodeMaking(a.T, m)
	var was tidemill.Run // the run that may begin
	if r, _ := m.DueRun(); r != nil {
		was = *r
	}
	v := m.Apply(f)
	switch {
	case m.Live != nil && m.Waiting != nil && m.Live.ID == m.Waiting.ID:
		a.Fatalf("%d: one run is live and waits: %s", f.Offset, m.Live.ID)
	case m.Waiting != nil && (m.Waiting.State != tidemill.RunWaiting || len(m.Waiting.Attempts) > 0):
		a.Fatalf("%d: what waits is %+v", f.Offset, m.Waiting)
	case m.Live != nil && (m.Live.State.Ended() || (m.Live.State == tidemill.RunWaiting) != (len(m.Live.Attempts) == 0)):
		a.Fatalf("%d: what is live is %+v", f.Offset, m.Live)
	case (v.Result == fold.Refused) != (v.Reason != ""):
		a.Fatalf("%d: %+v", f.Offset, v)
	case v.Result == fold.Refused || v.Result == fold.Known:
		m := copyMaking(*m)
		m.Next, m.Recipe, m.Key = 0, "", ""
		if after := encodeMaking(a.T, &m); after != before {
			a.Fatalf("%d: %s, and yet\n%s became\n%s", f.Offset, v.Reason, before, after)
		}
		return
	}
	if a.ended[f.Run] != "" && f.Type != tidemill.TypeRunRequested {
		a.Fatalf("%d: a run that has ended is changed by %s", f.Offset, f.Type)
	}
	a.accepted(m, f, v, &was)
	if m.Waiting != nil && (m.Waiting.Due.After(m.Waiting.Latest) || m.Waiting.Causes != a.causes[m.Waiting.ID]) {
		a.Fatalf("%d: what waits is %+v", f.Offset, m.Waiting)
	}
	if v.Ended != nil {
		a.end(m, f, v.Ended)
	}
}

func (a *runChecker) accepted(m *fold.Making, f fold.Fact, v fold.Verdict, was *tidemill.Run) {
	a.Helper()
	switch f.Type {
	case tidemill.TypeRunRequested:
		var d tidemill.RunRequested
		if err := json.Unmarshal(f.Data, &d); err != nil {
			a.Fatal(err)
		}
		if run, again := a.runOf[d.Cause]; again {
			a.Fatalf("%d: the cause %v asks again, after %s", f.Offset, d.Cause, run)
		}
		if (v.Result == fold.Accepted) != (m.Waiting.Causes == 1) {
			a.Fatalf("%d: %s, of %d causes", f.Offset, v.Result, m.Waiting.Causes)
		}
		a.runOf[d.Cause] = m.Waiting.ID
		a.causes[m.Waiting.ID]++
		if got := m.RunOf(d.Cause); got != m.Waiting.ID {
			a.Fatalf("%d: the cause is known to have asked for %q", f.Offset, got)
		}
	case tidemill.TypeRunStarted:
		var d tidemill.RunStarted
		if err := json.Unmarshal(f.Data, &d); err != nil {
			a.Fatal(err)
		}
		if v.Result == fold.Closed {
			a.checkClosed(m, f, d, was)
			return
		}
		if a.attempts[f.Run]++; d.Attempt != a.attempts[f.Run] || m.Live.ID != f.Run || m.Live.Attempt() == nil || m.Live.Attempt().Offset != f.Offset {
			a.Fatalf("%d: attempt %d begins, the %dth of %+v", f.Offset, d.Attempt, a.attempts[f.Run], m.Live)
		}
		if d.Attempt == 1 && (d.Causes == 0 && d.Seen != was.LastAsked() || d.Causes > 0 && d.Causes < was.Causes) {
			a.Fatalf("%d: it begins after %+v, although it was %+v", f.Offset, d, was)
		}
	case tidemill.TypeRunFinished, tidemill.TypeRunCancelled, tidemill.TypeRunCommitted:
		if v.Ended == nil && (m.Live == nil || m.Live.ID != f.Run) {
			a.Fatalf("%d: accepted for %s, and live is %+v", f.Offset, f.Run, m.Live)
		}
	case tidemill.TypeRunSeen:
		var d tidemill.RunSeen
		if err := json.Unmarshal(f.Data, &d); err != nil {
			a.Fatal(err)
		}
		if v.Ended != nil || m.Live == nil || m.Live.ID != f.Run || d.Attempt != a.attempts[f.Run] {
			a.Fatalf("%d: attempt %d of %s was seen, and %d have begun: %+v", f.Offset, d.Attempt, f.Run, a.attempts[f.Run], m.Live)
		}
	case tidemill.TypeRunForgotten:
		a.checkForgotten(m, f, v)
	default:
		a.Fatalf("%d: %s is accepted", f.Offset, f.Type)
	}
}

// checkClosed checks a run that a start has closed: it keeps its causes, and the next one has none.
func (a *runChecker) checkClosed(m *fold.Making, f fold.Fact, d tidemill.RunStarted, was *tidemill.Run) {
	a.Helper()
	if m.Live == nil || m.Waiting != nil || m.Live.ID != f.Run || m.Live.Causes != was.Causes || d.Causes >= was.Causes || a.attempts[f.Run] > 0 || was.Due.After(f.At) {
		a.Fatalf("%d: %+v closes %+v, and there is %s", f.Offset, d, was, encodeMaking(a.T, m))
	}
	a.closed++
}

// checkForgotten checks the end of a key: no run waits, and a live run is to end.
func (a *runChecker) checkForgotten(m *fold.Making, f fold.Fact, v fold.Verdict) {
	a.Helper()
	if m.Waiting != nil || len(m.Ended) > 0 || !m.Gone || m.Live != nil && (m.Live.State == tidemill.RunRetrying || m.Live.Cancel == nil) {
		a.Fatalf("%d: the key has gone, and there is %s", f.Offset, encodeMaking(a.T, m))
	}
	if a.gone[string(f.Data)] {
		a.Fatalf("%d: the key has gone again for %s", f.Offset, f.Data)
	}
	a.gone[string(f.Data)] = true
	for _, id := range v.Forgotten {
		if a.ended[id] == "" {
			a.ended[id] = "forgotten"
		}
	}
}

func (a *runChecker) end(m *fold.Making, f fold.Fact, r *tidemill.Run) {
	a.Helper()
	if a.ended[r.ID] != "" {
		a.Fatalf("%d: %s ends again", f.Offset, r.ID)
	}
	if !r.State.Ended() || r.Event != nil || r.Plan != nil || !r.End.Equal(f.At) || m.Find(r.ID) != nil || slices.Contains(m.Ended, r.ID) == m.Gone || r.Causes != a.causes[r.ID] {
		a.Fatalf("%d: it has ended as %+v", f.Offset, r)
	}
	for i, at := range r.Attempts {
		if at.Number != i+1 || at.Outcome == "" || at.Pending != "" || i > 0 && at.Offset <= r.Attempts[i-1].Offset {
			a.Fatalf("%d: it has ended after %+v", f.Offset, r.Attempts)
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		a.Fatal(err)
	}
	a.ended[r.ID] = string(data)
}

// encodeMaking encodes a making without its offset.
func encodeMaking(t *testing.T, m *fold.Making) string {
	t.Helper()
	c := *m
	c.Next, c.Recipe, c.Key = 0, "", ""
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// For any facts, there is at most one live run and one waiting run. Each cause is in one run,
// each attempt begins once, and a run that has ended does not change.
func TestAnyFacts(t *testing.T) {
	t.Parallel()
	ended, closed, states := 0, 0, map[tidemill.RunState]int{}
	for seed := range uint64(20) {
		crowd := newRunWriter(seed)
		for range 250 {
			crowd.act()
		}
		a := newRunChecker(t)
		var m fold.Making
		for _, f := range crowd.facts {
			a.watch(&m, f)
		}
		ended, closed = ended+len(a.ended), closed+a.closed
		for _, data := range a.ended {
			if data == "forgotten" {
				states["forgotten"]++
				continue
			}
			var r tidemill.Run
			if err := json.Unmarshal([]byte(data), &r); err != nil {
				t.Fatal(err)
			}
			states[r.State]++
		}
	}
	if ended < 80 || closed < 5 || min(states[tidemill.RunSucceeded], states[tidemill.RunFailed], states[tidemill.RunCancelled], states["forgotten"]) < 5 {
		t.Errorf("the facts are too dull: %d runs ended, %d were closed, %v", ended, closed, states)
	}
}

// The same facts give the same state for all batches, if another process folds the next
// batch, and if a batch is folded twice.
func TestAnyBatching(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		crowd := newRunWriter(seed)
		for range 200 {
			crowd.act()
		}
		want := tell(crowd.facts)
		r := rand.New(rand.NewPCG(seed, 9))
		var m fold.Making
		var ended []*tidemill.Run
		for from := 0; from < len(crowd.facts); {
			m = copyMaking(m)
			to := min(len(crowd.facts), from+1+r.IntN(20))
			for _, f := range crowd.facts[max(0, from-r.IntN(5)):to] { // a part of the batch before is folded again
				v := m.Apply(f)
				if v.Ended != nil {
					ended = append(ended, v.Ended)
				}
				if f.Offset < crowd.facts[from].Offset && v.Result != fold.Known {
					t.Fatalf("seed %d: offset %d comes again and is %+v", seed, f.Offset, v)
				}
			}
			from = to
		}
		got, err := json.Marshal(foldResult{Ended: ended, Making: &m})
		if err != nil {
			t.Fatal(err)
		}
		want.Verdicts = nil
		again, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(again) {
			t.Fatalf("seed %d: in batches\n%s\nand at once\n%s", seed, got, again)
		}
	}
}

// After every fact, the run that is due can be started and ended. In the end no run is left.
func TestNoRunIsStuck(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		crowd := newRunWriter(seed)
		for range 1 + seed%80 {
			crowd.act()
		}
		for range 60 {
			m := &crowd.now
			run, _ := m.DueRun()
			switch {
			case run == nil && m.Live == nil:
			case run != nil && run.State == tidemill.RunWaiting:
				crowd.write(tidemill.TypeRunStarted, run.ID, crowd.firstStart(run))
			case run != nil:
				crowd.write(tidemill.TypeRunStarted, run.ID, tidemill.RunStarted{Attempt: run.NextAttempt()})
			case m.Live.State == tidemill.RunCommitting:
				crowd.write(tidemill.TypeRunCommitted, m.Live.ID, tidemill.RunCommitted{Commit: "c"})
			default:
				outcome := []tidemill.Outcome{"failed", "lost", "succeeded"}[crowd.IntN(3)]
				crowd.write(tidemill.TypeRunFinished, m.Live.ID, tidemill.RunFinished{Attempt: m.Live.Attempt().Number, Outcome: outcome})
			}
		}
		if crowd.now.Live != nil || crowd.now.Waiting != nil {
			t.Errorf("seed %d: left are %+v and %+v", seed, crowd.now.Live, crowd.now.Waiting)
		}
	}
}

// Hostile data breaks no rule.
func FuzzMaking(f *testing.F) {
	crowd := newRunWriter(1)
	for range 60 {
		crowd.act()
	}
	for _, fact := range crowd.facts {
		f.Add(fact.Type, fact.Run, string(fact.Data), byte(7))
	}
	for _, s := range []string{"null", "{}", "[]", "", `{"attempt":-1}`, `{"attempt":1e99}`, `{"outcome":7}`, `{"cause":{"id":"x"},"events":[null],"debounce":-9223372036854775808,"delay":9223372036854775807}`} {
		f.Add(tidemill.TypeRunRequested, "run-1", s, byte(1))
	}
	f.Fuzz(func(t *testing.T, typ, run, data string, seed byte) {
		crowd := newRunWriter(uint64(seed))
		for range seed {
			crowd.act()
		}
		fact := fold.Fact{Offset: crowd.now.Next, Type: typ, Run: run, Recipe: "r", Key: "k", At: crowd.at, Data: []byte(data)}
		m := copyMaking(crowd.now)
		v := m.Apply(fact)
		if m.Next != fact.Offset+1 || v.Result == "" || (v.Result == fold.Refused) != (v.Reason != "") {
			t.Errorf("%+v, next %d", v, m.Next)
		}
		again := copyMaking(m)
		if encodeMaking(t, &m) != encodeMaking(t, &again) {
			t.Errorf("%s\nis not what is read back:\n%s", encodeMaking(t, &m), encodeMaking(t, &again))
		}
		m.Apply(fold.Fact{Offset: m.Next, Type: tidemill.TypeRunRequested, Run: "z", At: crowd.at, Data: []byte(`{"cause":{"source":"z","id":"z"}}`)})
		if m.Waiting == nil {
			t.Error("nothing can be asked for any more")
		}
	})
}
