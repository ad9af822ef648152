package scheduler

import (
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
)

// A run that is requested again gets the events of the first request, and the model's champion. The
// result is one new run, however often it is requested.
func TestAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, learner())
	f := w.foreman(func(o *Options) { o.Broker = w.dial() })
	w.putFile("bots/bot-42", "a.csv", "a")
	a := w.begun(f, wish("learn", "bot-42", "1"))
	tree := w.tree("model.onnx", "a model")
	_, err := f.Finish(w.ctx(), w.run(f, a.Run), 1, tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: tree}})
	w.must(err)
	w.crown(f, a.Run, tree)

	cause := tidemill.Cause{Source: "/s", ID: "finished"}
	for range 2 {
		w.must(f.Again(w.ctx(), a.Run, cause, "the-first", ""))
	}
	next := tidemill.RunID("learn", "bot-42", cause)
	w.waitUntil("it begins", func() bool { return len(w.launch.of(next)) == 1 })
	run := w.run(f, next)
	if run.Again != a.Run || run.Causes != 1 || !strings.Contains(string(run.Event), `"id":"1"`) {
		t.Errorf("the run is %+v of %s", run, run.Event)
	}
	if c := w.launch.of(next)[0].Plan.Champion; c == nil || c.Version != 1 || c.Artifact != tree {
		t.Errorf("it is given the champion %+v", c)
	}
	w.must(f.Again(w.ctx(), tidemill.ID("nobody"), cause, "", "")) // an unknown run
	w.change(func(c *config.Config) { c.Recipes = nil })
	w.must(f.Again(w.ctx(), a.Run, tidemill.Cause{Source: "/s", ID: "later"}, "", ""))
}

// crown makes a run's version the champion of the model intent/bot-42.
func (w *world) crown(f *Foreman, run, artifact string) {
	w.Helper()
	say := func(typ string, data any) {
		a := fact{typ: typ, id: tidemill.ID(typ, run), component: "promote", recipe: "learn", key: "bot-42", run: run, data: data}
		v, err := a.view(w.names, f.now())
		w.must(err)
		w.must(v.Set(tidemill.AttrModel, "intent/bot-42"))
		_, _, err = f.ledger.AppendModel(w.ctx(), &v)
		w.must(err)
	}
	say(tidemill.TypeModelRegistered, tidemill.ModelRegistered{Artifact: artifact, Report: artifact, Judge: tidemill.Judge{Keep: 10}, Origin: tidemill.Origin{Run: run, Recipe: "learn"}})
	say(tidemill.TypeModelPromotionProposed, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: run, Judgement: &tidemill.Judgement{Passed: true}})
}

// A run gets no champion whose files are lost, because a new version must replace it.
func TestALostChampionIsGivenToNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, learner())
	f := w.foreman(nil)
	w.putFile("bots/bot-42", "a.csv", "a")
	w.crown(f, "r1", strings.Repeat("ab", 32))
	a := w.begun(f, wish("learn", "bot-42", "1"))
	if c := w.launch.of(a.Run)[0].Plan.Champion; c != nil {
		t.Errorf("it is given %+v", c)
	}
}

// A request that looks first writes no fact if its cause is known.
func TestARequestThatIsLikelyKnown(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(func(o *Options) { o.Launcher = nil })
	r := wish("intent", "k", "1")
	r.Once = true
	first := w.ask(f, r)
	before, err := f.ledger.Making(w.ctx(), "intent", "k")
	w.must(err)
	again := w.ask(f, r)
	after, err := f.ledger.Making(w.ctx(), "intent", "k")
	w.must(err)
	if first.Result != fold.Accepted || again.Result != fold.Known || again.Run != first.Run || after.Next != before.Next {
		t.Errorf("the answers are %+v and %+v, and the log went from %d to %d", first, again, before.Next, after.Next)
	}
}
