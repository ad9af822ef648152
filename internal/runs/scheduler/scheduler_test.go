package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
)

// plain is a recipe without inputs and outputs.
func plain(name string) config.Recipe {
	return config.Recipe{Name: name, Key: config.KeySubject, Run: config.Job{Dir: "trainer", Command: []string{"true"}, Pool: "default",
		Deadline: time.Hour, Attempts: 2, Backoff: config.Backoff{First: time.Millisecond, Cap: time.Millisecond}}}
}

var succeeded = tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded} // read only
var broken = tidemill.RunFinished{Outcome: tidemill.OutcomeFailed, Reason: "exit 1", Result: tidemill.Result{Exit: 1}}

func (w *world) finish(f *Foreman, a Attempt, d tidemill.RunFinished) *tidemill.Run {
	w.Helper()
	run, err := f.Finish(w.ctx(), w.run(f, a.Run), a.Number, d)
	w.must(err)
	w.launch.end(a.Name)
	return run
}

func TestARequestStartsARun(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	first := w.ask(f, wish("intent", "bot-42", "1"))
	if first.Result != fold.Accepted {
		t.Fatalf("the answer is %+v", first)
	}
	all := w.launch.launched()
	if len(all) != 1 || all[0].Run != first.Run || all[0].Number != 1 || all[0].Key != "bot-42" || all[0].Plan.Dir != "/home/ada/trainer" {
		t.Fatalf("launched are %+v", all)
	}
	run := w.run(f, first.Run)
	if run.State != tidemill.RunRunning || !w.tokens.Counts(all[0].Token, run.ID, *run.Attempt()) {
		t.Errorf("the run is %+v, and its token does not count", run)
	}
	second := w.ask(f, wish("intent", "bot-42", "2"))
	third := w.ask(f, wish("intent", "bot-42", "3"))
	again := w.ask(f, wish("intent", "bot-42", "3"))
	if second.Result != fold.Accepted || third != (Answer{second.Run, fold.Merged}) || again != (Answer{second.Run, fold.Known}) {
		t.Errorf("more wishes are answered %+v, %+v and %+v", second, third, again)
	}
	if n := len(w.launch.launched()); n != 1 {
		t.Fatalf("%d attempts while one is live", n)
	}
	if run := w.finish(f, all[0], succeeded); run.State != tidemill.RunSucceeded {
		t.Errorf("the run is %+v", run)
	}
	if all = w.launch.launched(); len(all) != 2 || all[1].Run != second.Run {
		t.Errorf("after its end launched are %+v", all)
	}
}

func TestWhatCannotBeAskedFor(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	for _, c := range []struct {
		r    Request
		want error
	}{
		{wish("other", "k", "1"), ErrNoRecipe},
		{wish("intent", "", "1"), ErrKey},
		{Request{Recipe: "intent", Key: "k"}, nil},
	} {
		if _, err := f.Request(w.ctx(), c.r); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.r, err, c.want)
		}
	}
}

func TestAFailureIsTriedAgain(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.watch(f)
	a := w.ask(f, wish("intent", "k", "1"))
	for n := 1; n <= 2; n++ {
		w.waitUntil("the next attempt is launched", func() bool { return len(w.launch.of(a.Run)) == n })
		w.finish(f, w.launch.of(a.Run)[n-1], broken)
	}
	run := w.until(f, a.Run, tidemill.RunFailed)
	if run.Reason != "exit 1" || len(run.Attempts) != 2 || len(w.launch.of(a.Run)) != 2 {
		t.Errorf("the run is %+v", run)
	}
}

func TestAWordSaidTwiceIsSaidOnce(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	a := w.ask(f, wish("intent", "k", "1"))
	run := w.run(f, a.Run)
	for range 3 {
		got, err := f.Finish(w.ctx(), run, 1, succeeded) // an old state of the run, as a gateway may have it
		if w.must(err); got.State != tidemill.RunSucceeded || len(got.Attempts) != 1 {
			t.Errorf("the run is %+v", got)
		}
	}
	if got, err := f.Finish(w.ctx(), w.run(f, a.Run), 1, broken); err != nil || got.State != tidemill.RunSucceeded {
		t.Errorf("after its end the run is %+v, %v", got, err)
	}
}

func TestBadPlansEndRuns(t *testing.T) {
	noData, noField, noName := plain("no-data"), plain("no-field"), plain("no-name")
	noData.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main"}}
	noField.Run.Env = map[string]string{"URI": "{data.uri}"}
	noName.Makes = config.Makes{Model: "m/{source}"}
	w := newWorld(t, noData, noField, noName)
	f := w.foreman(nil)
	for _, c := range []struct{ recipe, key, says string }{
		{"no-data", "bot-7", "dataset bots/bot-7 has no commit on branch main yet"},
		{"no-field", "bot-7", "there is no value for {data.uri}"},
		{"no-name", "bot-7", "the model that it makes would be \"m//"},
	} {
		a := w.ask(f, wish(c.recipe, c.key, "1"))
		run := w.run(f, a.Run)
		if run.State != tidemill.RunFailed || !strings.Contains(run.Reason, c.says) || len(run.Attempts) != 1 {
			t.Errorf("%s: the run is %+v", c.recipe, run)
		}
	}
	if all := w.launch.launched(); len(all) > 0 {
		t.Errorf("launched are %+v", all)
	}
	c := w.putFile("bots/bot-7", "a.csv", "1")
	w.ask(f, wish("no-data", "bot-7", "2"))
	all := w.launch.launched()
	if len(all) != 1 || len(all[0].Plan.Inputs) != 1 || all[0].Plan.Inputs[0].Commit != c.ID || all[0].Plan.Inputs[0].Tree != c.Tree {
		t.Errorf("with data launched are %+v", all)
	}
}

// A commit that an event names may come into the store after the event, for example if the bucket is
// a copy of another one. The run waits for it, and it says so. It does not begin with an older commit.
func TestACommitMayComeAfterItsEvent(t *testing.T) {
	t.Run("the commit of the event", func(t *testing.T) { commitIsLate(t, true, true) })
	t.Run("the newest commit", func(t *testing.T) { commitIsLate(t, false, true) })
	t.Run("the newest commit, and an older one is there", func(t *testing.T) { commitIsLate(t, false, false) })
}

func commitIsLate(t *testing.T, atCause, isFirst bool) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main", AtCause: atCause}}
	w := newWorld(t, r)
	if !isFirst {
		w.putFile("bots/k", "a.csv", "0")
	}
	c := w.putFile("bots/k", "a.csv", "1")
	refs := filepath.Join(w.dir, "refs")
	w.must(os.Rename(refs, refs+".late"))
	if !isFirst {
		w.must(os.CopyFS(refs, os.DirFS(refs+".late")))
		w.must(os.Remove(filepath.Join(refs, "bots/k/_/main", fmt.Sprintf("%012d", c.Number))))
	}
	f := w.foreman(nil)
	asked := wish("intent", "k", "1")
	asked.Events[0] = fmt.Appendf(nil, `{"specversion":"1.0","id":"1","source":"/s","type":"new-data","subject":"k","dataset":"bots/k","branch":"main","commit":%q,"data":{"number":%d}}`, c.ID, c.Number)
	a := w.ask(f, asked)
	w.waitUntil("an attempt ends without the commit", func() bool {
		run := w.run(f, a.Run)
		return len(run.Attempts) > 0 && run.Attempts[0].Outcome == tidemill.OutcomeLost && strings.Contains(run.Attempts[0].Reason, "has no commit "+c.ID)
	})
	w.must(os.RemoveAll(refs))
	w.must(os.Rename(refs+".late", refs))
	w.watch(f)
	w.waitUntil("the run is launched with the commit", func() bool {
		all := w.launch.of(a.Run)
		return len(all) == 1 && all[0].Number > 1 && all[0].Plan.Inputs[0].Commit == c.ID && all[0].Plan.Inputs[0].Tree == c.Tree
	})
}

// The events of two commits are on the log in another order than the commits. A run with both gets the newer commit.
func TestEventsOfCommitsInAnotherOrder(t *testing.T) {
	for _, atCause := range []bool{false, true} {
		r := plain("intent")
		r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main", AtCause: atCause}}
		w := newWorld(t, r)
		older, newer := w.putFile("bots/k", "a.csv", "1"), w.putFile("bots/k", "a.csv", "2")
		f := w.foreman(func(o *Options) { o.Broker = w.dial() })
		of := func(c api.Commit) Request {
			asked := wish("intent", "k", c.ID)
			asked.Debounce = 300 * time.Millisecond
			asked.Events[0] = fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/s","type":"new-data","subject":"k","dataset":"bots/k","branch":"main","commit":%[1]q,"data":{"number":%d}}`, c.ID, c.Number)
			return asked
		}
		a := w.ask(f, of(newer))
		w.ask(f, of(older))
		w.watch(f)
		w.waitUntil("it is launched", func() bool { return len(w.launch.of(a.Run)) == 1 })
		if one := w.launch.of(a.Run)[0]; w.run(f, a.Run).Causes != 2 || one.Plan.Inputs[0].Commit != newer.ID {
			t.Errorf("at the cause: %v: the run has %d causes and commit %s; the newer one is %s", atCause, w.run(f, a.Run).Causes, one.Plan.Inputs[0].Commit, newer.ID)
		}
	}
}

func TestLaunchersThatCannot(t *testing.T) {
	w := newWorld(t, plain("intent"))
	w.launch.fail = func(a Attempt) error {
		if a.Key == "hopeless" {
			return fmt.Errorf("%w: neither docker nor podman is here", ErrUnlaunchable)
		}
		if a.Number == 1 {
			return errors.New("the cluster is busy")
		}
		return nil
	}
	f := w.foreman(nil)
	w.watch(f)
	hopeless := w.until(f, w.ask(f, wish("intent", "hopeless", "1")).Run, tidemill.RunFailed)
	if !strings.Contains(hopeless.Reason, "neither docker nor podman") {
		t.Errorf("the run is %+v", hopeless)
	}
	busy := w.ask(f, wish("intent", "busy", "1"))
	w.waitUntil("it is launched after all", func() bool { return len(w.launch.of(busy.Run)) == 1 })
	run := w.run(f, busy.Run)
	if run.Attempts[0].Outcome != tidemill.OutcomeLost || !strings.Contains(run.Attempts[0].Reason, "the cluster is busy") || run.Attempt().Number != 2 {
		t.Errorf("the run is %+v", run)
	}
}

func TestWhatIsPausedRests(t *testing.T) {
	w := newWorld(t, plain("a"), plain("b"))
	f := w.foreman(nil)
	w.act(tidemill.TypeRecipePaused, "a")
	stop := w.watch(f) // only now: a watcher from before the pause may still start a claimed run
	a := w.ask(f, wish("a", "k", "1"))
	b := w.ask(f, wish("b", "k", "1"))
	w.waitUntil("the other begins", func() bool { return len(w.launch.of(b.Run)) == 1 }) // started by the first to claim it
	if len(w.launch.of(a.Run)) > 0 {
		t.Errorf("launched are %+v", w.launch.launched())
	}
	stop()
	w.act(tidemill.TypePoolPaused, "default")
	w.watch(f)
	c := w.ask(f, wish("b", "l", "1"))
	if len(w.launch.of(c.Run)) > 0 {
		t.Error("a run began in a pool that is paused")
	}
	w.act(tidemill.TypeRecipeResumed, "a")
	w.act(tidemill.TypePoolResumed, "default")
	w.waitUntil("both begin", func() bool { return len(w.launch.of(a.Run)) == 1 && len(w.launch.of(c.Run)) == 1 })
}

func TestSlotsAreFilledInTurn(t *testing.T) {
	r := plain("intent")
	r.MaxRunning = 3
	w := newWorld(t, r, plain("other"))
	f := w.foreman(nil)
	var asked []string
	for i := range 10 {
		asked = append(asked, w.ask(f, wish("intent", fmt.Sprint("k", i), "1")).Run)
	}
	if n := len(w.launch.launched()); n != 3 {
		t.Fatalf("%d run at once, and maxRunning is 3", n)
	}
	for i := range 3 {
		w.ask(f, wish("other", fmt.Sprint("k", i), "1"))
	}
	if n := len(w.launch.launched()); n != 4 {
		t.Fatalf("%d run at once in 4 slots", n)
	}
	for i := 0; i < len(w.launch.launched()); i++ {
		w.finish(f, w.launch.launched()[i], succeeded)
	}
	var order []string
	for _, a := range w.launch.launched() {
		if a.Recipe == "intent" {
			order = append(order, a.Run)
		}
	}
	if len(w.launch.launched()) != 13 || !slices.Equal(order, asked) {
		t.Errorf("%d were launched; those of intent in the order %v, want %v", len(w.launch.launched()), order, asked)
	}
}

func TestDebounce(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.watch(f)
	r := wish("intent", "k", "1")
	r.Delay = 300 * time.Millisecond
	a := w.ask(f, r)
	w.waitUntil("it begins", func() bool { return len(w.launch.of(a.Run)) == 1 })
	run := w.run(f, a.Run)
	if early := run.Attempts[0].Started.Sub(run.Asking); early < r.Delay {
		t.Errorf("it began after %s", early)
	}
}

// If a cause arrives between the look-up of the inputs and the start, the run must not begin
// without the data of that cause.
func TestNoRunBeginsWithoutTheNewestData(t *testing.T) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/k", Branch: "main"}}
	w := newWorld(t, r)
	w.putFile("bots/k", "a.csv", "1")
	other := w.foreman(nil)
	between := 3
	f := w.foreman(func(o *Options) {
		o.Config = func() *config.Config {
			// The config is read at each request and for each plan. There is no run before both.
			if m, err := other.ledger.Making(w.ctx(), "intent", "k"); err == nil && m.Waiting != nil && between > 0 {
				between--
				w.putFile("bots/k", "a.csv", fmt.Sprint("between ", between))
				w.ask(other.withoutLauncher(), wish("intent", "k", fmt.Sprint("between ", between)))
			}
			return w.configNow()
		}
	})
	a := w.ask(f, wish("intent", "k", "1"))
	w.waitUntil("it begins", func() bool { return len(w.launch.of(a.Run)) > 0 })
	head, err := w.store.Head(w.ctx(), "bots/k", "main")
	w.must(err)
	all := w.launch.launched()
	if len(all) != 1 || all[0].Plan.Inputs[0].Commit != head.ID || between > 0 {
		t.Errorf("launched are %+v, the head is %s", all, head.ID)
	}
	if run := w.run(f, a.Run); run.Causes != 4 || len(run.Attempts) != 1 {
		t.Errorf("the run is %+v", run)
	}
}

// withoutLauncher returns a Foreman that launches nothing, like that of a dispatcher in a cluster.
func (f *Foreman) withoutLauncher() *Foreman {
	o := f.opt
	o.Launcher = nil
	g, _ := New(o)
	return g
}

func TestWhoCannotLaunchAsksAllTheSame(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.watch(f)
	a := w.ask(w.foreman(func(o *Options) { o.Launcher = nil }), wish("intent", "k", "1"))
	w.waitUntil("who watches begins it", func() bool { return len(w.launch.of(a.Run)) == 1 })
}

func TestARecipeThatHasGoneWaits(t *testing.T) {
	r := plain("intent")
	w := newWorld(t, r, plain("other"))
	f := w.foreman(nil)
	w.act(tidemill.TypeRecipePaused, "intent")
	a := w.ask(f, wish("intent", "k", "1"))
	w.change(func(c *config.Config) { c.Recipes = c.Recipes[1:] })
	w.act(tidemill.TypeRecipeResumed, "intent")
	w.watch(f)
	b := w.ask(f, wish("other", "k", "1"))
	w.waitUntil("another recipe's run begins", func() bool { return len(w.launch.of(b.Run)) == 1 })
	if run := w.run(f, a.Run); run.State != tidemill.RunWaiting {
		t.Errorf("the run is %+v", run)
	}
	w.change(func(c *config.Config) { c.Recipes = append(slices.Clone(c.Recipes), r) })
	w.waitUntil("it begins", func() bool { return len(w.launch.of(a.Run)) == 1 })
}

func TestKeysOfASchedule(t *testing.T) {
	a, b, c := plain("a"), plain("b"), plain("c")
	a.When = []config.RecipeWhen{{Schedule: "nightly"}}
	b.When = []config.RecipeWhen{{}, {Schedule: "nightly"}}
	w := newWorld(t, a, b, c)
	f := w.foreman(nil)
	for _, r := range []Request{wish("a", "2", "1"), wish("a", "1", "1"), wish("b", "2", "1"), wish("b", "3", "1"), wish("c", "4", "1")} {
		w.ask(f, r)
	}
	var keys []string
	take := func(key string) bool { keys = append(keys, key); return len(keys) < 9 }
	w.must(f.Keys(w.ctx(), "nightly", take))
	if slices.Sort(keys); !slices.Equal(keys, []string{"1", "2", "2", "3"}) {
		t.Errorf("the keys are %v", keys)
	}
	w.must(f.Keys(w.ctx(), "hourly", func(key string) bool { t.Errorf("a schedule that no recipe names has key %s", key); return true }))
	keys = make([]string, 8)
	if w.must(f.Keys(w.ctx(), "nightly", take)); len(keys) != 9 {
		t.Errorf("after the last wanted key came %v", keys[8:])
	}
}

func TestMoreThanAFactHolds(t *testing.T) {
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	a := w.ask(f, wish("intent", "k", "1"))
	d := succeeded
	d.Metrics = map[string]float64{}
	for i := range 100_000 {
		d.Metrics[fmt.Sprintf("metric-%d", i)] = 0.123456789
	}
	run := w.finish(f, w.launch.of(a.Run)[0], d)
	if run.State != tidemill.RunFailed || !strings.Contains(run.Reason, "100000 metrics") {
		t.Errorf("the run is %s: %s", run.State, run.Reason)
	}
	big := wish("intent", "l", "1")
	big.Events = []json.RawMessage{json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)}
	if _, err := f.Request(w.ctx(), big); err == nil {
		t.Error("an event of 2 MiB was put on the log")
	}
}

// A key whose input can never be made ends its run, and does not keep the runs of other keys from starting.
func TestAnInputThatCanNeverBeMade(t *testing.T) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "history", Outcomes: "bots", Last: time.Hour}}
	w := newWorld(t, r)
	w.change(func(c *config.Config) { c.Scorers = []config.Scorer{{Name: "bots"}} })
	f := w.foreman(func(o *Options) {
		o.Outcomes = func(_ context.Context, _ config.Scorer, key string, _ time.Duration) (tidemill.Input, error) {
			if key == "busy" {
				return tidemill.Input{}, Hopeless(errors.New("there are too many outcomes"))
			}
			return tidemill.Input{Outcomes: "bots"}, nil
		}
	})
	busy, other := w.ask(f, wish("intent", "busy", "1")), w.ask(f, wish("intent", "other", "2"))
	if run := w.run(f, busy.Run); run.State != tidemill.RunFailed || !strings.Contains(run.Reason, "the input history: there are too many outcomes") {
		t.Errorf("the run is %s: %s", run.State, run.Reason)
	}
	if n := len(w.launch.of(other.Run)); n != 1 {
		t.Errorf("the run of the other key was launched %d times", n)
	}
}
