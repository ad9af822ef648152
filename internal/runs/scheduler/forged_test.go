package scheduler

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/config"
)

// forge writes a fact that begins the first attempt of a waiting run, as any client of Kafka can. No
// process launches this attempt, so it counts as lost.
func (w *world) forge(f *Foreman, run *tidemill.Run, mac string) {
	w.Helper()
	plan := &tidemill.Plan{Dir: "/", Command: []string{"sh", "-c", "id"}, Pool: "default", Attempts: 3}
	_, m, err := f.appendFact(w.ctx(), startedFact(run, tidemill.RunStarted{Attempt: 1, Causes: run.Causes, Plan: plan, MAC: mac}), f.now())
	w.must(err)
	if m.Live == nil || m.Live.ID != run.ID || !strings.Contains(string(m.Live.Plan), "sh") {
		w.Fatalf("the forged fact changes nothing: %+v", m)
	}
}

// A plan that a stranger has written to the log never becomes a command. This was an attack: the
// second attempt took its plan from the log.
func TestAForgedPlanIsNotLaunched(t *testing.T) {
	ask := func(w *world) (*Foreman, *tidemill.Run) {
		f := w.foreman(alone)
		a := w.ask(f.withoutLauncher(), wish("intent", "k", "1"))
		return f, w.run(f, a.Run)
	}
	t.Run("without a MAC", func(t *testing.T) {
		w := newWorld(t, plain("intent"))
		f, run := ask(w)
		w.forge(f, run, "")
		w.watch(f)
		w.waitUntil("the next attempt is launched", func() bool { return len(w.launch.of(run.ID)) == 1 })
		if a := w.launch.of(run.ID)[0]; a.Number != 2 || a.Plan.Dir != "/home/ada/trainer" || !slices.Equal(a.Plan.Command, []string{"true"}) {
			t.Errorf("launched is %+v, want the recipe's command", a)
		}
		now := w.run(f, run.ID)
		if !w.tokens.Signed(now) || strings.Contains(string(now.Plan), "sh") {
			t.Errorf("the run is %+v", now)
		}
		w.finish(f, w.launch.of(run.ID)[0], broken)
		w.waitUntil("the third attempt is launched", func() bool { return len(w.launch.of(run.ID)) == 2 })
		if again := w.run(f, run.ID); string(again.Plan) != string(now.Plan) {
			t.Errorf("the plan changes from\n%s\nto\n%s", now.Plan, again.Plan)
		}
	})
	for name, mac := range map[string]func(*world, *tidemill.Run) string{
		"an invented MAC": func(*world, *tidemill.Run) string { return strings.Repeat("a", 52) },
		"the MAC of another plan": func(w *world, r *tidemill.Run) string {
			return w.tokens.Sign(r, []byte(`{}`))
		},
		"the MAC of another install": func(w *world, r *tidemill.Run) string {
			other, err := NewTokens([]byte(strings.Repeat("x", SecretSize)))
			w.must(err)
			plan, err := json.Marshal(tidemill.Plan{Dir: "/", Command: []string{"sh", "-c", "id"}, Pool: "default", Attempts: 3})
			w.must(err)
			return other.Sign(r, plan)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, plain("intent"))
			f, run := ask(w)
			w.forge(f, run, mac(w, run))
			w.watch(f)
			end := w.until(f, run.ID, tidemill.RunFailed)
			if !strings.Contains(end.Reason, "nothing was launched") || !strings.Contains(end.Reason, "tidemill runs retry "+run.ID) || len(end.Attempts) != 2 {
				t.Errorf("the run ends with %+v", end)
			}
			if all := w.launch.launched(); len(all) > 0 {
				t.Errorf("launched are %+v", all)
			}
		})
	}
}

// The plan of a run that began with an earlier version has no MAC. Its next attempt uses a plan that
// is made again, with the data of that time.
func TestARunOfAnEarlierVersionGoesOn(t *testing.T) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main"}}
	w := newWorld(t, r)
	w.putFile("bots/k", "a.csv", "1")
	f := w.foreman(alone)
	run := w.run(f, w.ask(f.withoutLauncher(), wish("intent", "k", "1")).Run)
	plan, err := f.settlePlan(w.ctx(), r, run)
	w.must(err)
	_, _, err = f.appendFact(w.ctx(), startedFact(run, tidemill.RunStarted{Attempt: 1, Causes: run.Causes, Plan: &plan}), f.now())
	w.must(err)
	newer := w.putFile("bots/k", "b.csv", "2")
	w.watch(f)
	w.waitUntil("the next attempt is launched", func() bool { return len(w.launch.of(run.ID)) == 1 })
	if a := w.launch.of(run.ID)[0]; a.Plan.Inputs[0].Commit != newer.ID {
		t.Errorf("launched is %+v, want commit %s", a, newer.ID)
	}
	if from := w.run(f, run.ID).From; !slices.Equal(from, []string{plan.Inputs[0].Commit, newer.ID}) {
		t.Errorf("its commits are %v", from)
	}
}

// The MAC covers the bytes as the state keeps them, for any text.
func TestThePlanStaysSigned(t *testing.T) {
	r := plain("intent")
	r.Run.Command = []string{"python", "-c", "print(\"<&>\", '\u2028ü\xff')"}
	r.Run.Env = map[string]string{"B": "</script>", "A": "{key} \U0001F600"}
	w := newWorld(t, r)
	f := w.foreman(nil)
	a := w.begun(f, wish("intent", "k<1>", "1"))
	if run := w.run(w.foreman(nil), a.Run); !w.tokens.Signed(run) {
		t.Errorf("the run is %+v", run)
	}
}

func TestSignaturesAreOfOneRun(t *testing.T) {
	t.Parallel()
	tokens, err := NewTokens(make([]byte, SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	run := tidemill.Run{ID: "run", Recipe: "r", Key: "k", Plan: json.RawMessage(`{"dir":"/x"}`)}
	run.PlanMAC = tokens.Sign(&run, run.Plan)
	if !tokens.Signed(&run) {
		t.Error("a signed plan does not count")
	}
	for name, change := range map[string]func(*tidemill.Run){
		"another run":    func(r *tidemill.Run) { r.ID = "ru" },
		"another recipe": func(r *tidemill.Run) { r.Recipe, r.Key = "rk", "" },
		"another key":    func(r *tidemill.Run) { r.Key = "k2" },
		"another plan":   func(r *tidemill.Run) { r.Plan = json.RawMessage(`{"dir":"/y"}`) },
		"no plan":        func(r *tidemill.Run) { r.Plan = nil },
		"no MAC":         func(r *tidemill.Run) { r.PlanMAC = "" },
		"a token":        func(r *tidemill.Run) { r.PlanMAC = tokens.Of("run", tidemill.Attempt{Number: 1}) },
	} {
		other := run
		change(&other)
		if tokens.Signed(&other) {
			t.Errorf("it counts for %s", name)
		}
	}
}
