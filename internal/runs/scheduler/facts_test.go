package scheduler

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// learner is a recipe that makes a model from a dataset and has a secret in its environment.
func learner() config.Recipe {
	r := plain("learn")
	r.Makes.Model = "intent/{key}"
	r.Gate, r.GateOn, r.Keep = []string{"metrics.accuracy > 0.8"}, tidemill.GateOnRecorded, 7
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}"}}
	r.Run.Env = map[string]string{"SECRET": "hunter2"}
	return r
}

// A run that makes a model ends with a candidate, which has all data that its judge needs.
func TestASuccessBringsACandidate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, learner())
	f := w.foreman(nil)
	commit := w.putFile("bots/bot-42", "a.csv", "a")
	a := w.begun(f, wish("learn", "bot-42", "1"))
	run := w.run(f, a.Run)
	tree := w.tree("model.onnx", "a model")
	done, err := f.Finish(w.ctx(), run, 1, tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded, Where: tidemill.Where{Node: "here"},
		Result: tidemill.Result{Artifact: tree, Metrics: map[string]float64{"accuracy": 0.9}}})
	w.must(err)
	if done.State != tidemill.RunSucceeded {
		t.Fatalf("the run is %+v", done)
	}
	v := w.lastFact(f, run.Partition)
	if model, _ := v.Attribute(tidemill.AttrModel); model != "intent/bot-42" || v.Type != tidemill.TypeRunFinished {
		t.Errorf("the fact is %+v", v)
	}
	var d tidemill.RunFinished
	w.must(json.Unmarshal(v.Data, &d))
	c := d.Candidate
	if c == nil || c.Model != "intent/bot-42" || c.Champion != nil || c.Run != run.ID || c.Recipe != "learn" || c.Key != "bot-42" || c.Attempt != 1 ||
		!c.Began.Equal(run.Attempts[0].Started) || c.Ended.IsZero() || c.Causes != 1 || c.First != run.First || c.Config != run.Config || c.Node != "here" ||
		c.Mark != (tidemill.Mark{Partition: run.Partition, Offset: run.Attempts[0].Offset, Making: "learn/bot-42", Number: 1}) {
		t.Fatalf("the candidate is %+v", c)
	}
	if len(c.Inputs) != 1 || c.Inputs[0].Commit != commit.ID || c.Judge.Keep != 7 || c.Judge.On != tidemill.GateOnRecorded || len(c.Judge.Gate) != 1 || c.Judge.Promote != tidemill.PromoteAuto {
		t.Errorf("the candidate is %+v", c)
	}
	if strings.Contains(string(v.Data), "hunter2") {
		t.Errorf("its environment is told to all: %s", v.Data)
	}
	w.begun(f, wish("learn", "bot-42", "2"))
	at, m, err := f.Forget(w.ctx(), Forgetting{Recipe: "learn", Key: "bot-42", Cause: tidemill.Cause{Source: "/crm", ID: "end"}})
	if w.must(err); at.Making != "learn/bot-42" || at.Number != 2 || at.Offset != m.Next-1 {
		t.Errorf("the mark of the key's end is %+v", at)
	}
}

// lastFact returns the newest fact of a partition.
func (w *world) lastFact(f *Foreman, partition int32) (last broker.View) {
	w.Helper()
	b := w.dial()
	ends, err := b.Ends(w.ctx(), tidemill.StreamFacts)
	w.must(err)
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition}
	for from.Offset < ends[partition].Offset {
		from.Offset, err = b.Read(w.ctx(), from, 1<<20, func(e *broker.Incoming) bool { last = e.View.Clone(); return true })
		w.must(err)
	}
	return last
}

// A run that does not succeed, or makes no model, has no candidate.
func TestWhatBringsNoCandidate(t *testing.T) {
	t.Parallel()
	plan := func(p tidemill.Plan) json.RawMessage { text, _ := json.Marshal(p); return text }
	run := func(p tidemill.Plan, set func(*tidemill.Run)) *tidemill.Run {
		r := &tidemill.Run{ID: "r", State: tidemill.RunRunning, Attempts: []tidemill.Attempt{{Number: 1}}, Plan: plan(p)}
		if set != nil {
			set(r)
		}
		return r
	}
	model, data := tidemill.Plan{Model: "m", Attempts: 1}, tidemill.Plan{Dataset: "d", Attempts: 1}
	for name, c := range map[string]struct {
		run     *tidemill.Run
		outcome tidemill.Outcome
		want    bool
	}{
		"a success":   {run(model, nil), tidemill.OutcomeSucceeded, true},
		"a failure":   {run(model, nil), tidemill.OutcomeFailed, false},
		"a dataset":   {run(data, nil), tidemill.OutcomeSucceeded, false},
		"a cancelled": {run(model, func(r *tidemill.Run) { r.Cancel = &tidemill.Cancel{} }), tidemill.OutcomeSucceeded, false},
	} {
		if got := candidate(c.run, tidemill.RunFinished{Attempt: 1, Outcome: c.outcome}, time.Unix(1, 0)); (got != nil) != c.want {
			t.Errorf("%s brings %+v", name, got)
		}
	}
}

// Readers of a model's facts do not see credentials in the addresses of inputs.
func TestInputsAreToldWithoutKeys(t *testing.T) {
	t.Parallel()
	inputs := []tidemill.Input{{Name: "a", URI: "https://ada:pw@data.example/x.csv?sig=secret", Allow: []string{"https://data.example/"}}, {Name: "b", Dataset: "d", Commit: "c"}}
	got := withoutCredentials(inputs)
	if got[0].URI != "https://data.example/x.csv" || got[0].Allow != nil || got[1].Commit != "c" || inputs[0].Allow == nil {
		t.Errorf("told are %+v of %+v", got, inputs)
	}
}

// A success without a model becomes a failure.
func TestASuccessWithoutAModelFails(t *testing.T) {
	t.Parallel()
	plan, err := json.Marshal(tidemill.Plan{Model: "intent/bot-42"})
	if err != nil {
		t.Fatal(err)
	}
	d := checkOutput(&tidemill.Run{Plan: plan}, tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded})
	if d.Outcome != tidemill.OutcomeFailed || !d.Permanent || !strings.Contains(d.Reason, "nothing for the model intent/bot-42") {
		t.Errorf("it is %+v", d)
	}
}

// facts returns the ids of all facts of a type on the log.
func (w *world) facts(typ string) (ids []string) {
	w.Helper()
	b := w.dial()
	from, err := b.Places(w.ctx(), tidemill.StreamFacts, broker.Earliest())
	w.must(err)
	_, err = b.ReadBack(w.ctx(), from, func(e *broker.Incoming) {
		if e.Type == typ {
			ids = append(ids, strings.Clone(e.ID))
		}
	})
	w.must(err)
	return ids
}

func TestWhatControllersSeeIsSaidOnce(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f, g := w.foreman(nil), w.foreman(nil)
	id := w.begun(f, wish("intent", "bot-42", "1")).Run
	run := w.run(f, id)
	waits := tidemill.RunSeen{Pending: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"}
	var both sync.WaitGroup
	for _, controller := range []*Foreman{f, g} {
		both.Go(func() {
			if err := controller.Seen(w.ctx(), run, 1, waits); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if got := w.run(f, id).Attempt().Pending; got != waits.Pending {
		t.Errorf("it is pending for %q", got)
	}
	w.must(f.Seen(w.ctx(), w.run(f, id), 1, waits))
	ids := w.facts(tidemill.TypeRunSeen)
	for _, other := range ids[1:] {
		if other != ids[0] {
			t.Errorf("two controllers say %v", ids)
		}
	}
	if len(ids) > 2 {
		t.Errorf("it is said %d times", len(ids))
	}
	w.must(g.Seen(w.ctx(), w.run(f, id), 1, tidemill.RunSeen{Where: tidemill.Where{Node: "gpu-1", Image: "sha256:aa"}}))
	w.must(g.Seen(w.ctx(), w.run(f, id), 2, waits))
	if a := w.run(f, id).Attempt(); a.Pending != "" || a.Node != "gpu-1" || a.Image != "sha256:aa" {
		t.Errorf("the attempt is %+v", a)
	}
	w.finish(f, w.launch.launched()[0], succeeded)
	said := len(w.facts(tidemill.TypeRunSeen))
	w.must(f.Seen(w.ctx(), w.run(f, id), 1, waits))
	if after := len(w.facts(tidemill.TypeRunSeen)); after != said {
		t.Errorf("%d facts of what was seen were %d before it was said of a run that has ended", after, said)
	}
}
