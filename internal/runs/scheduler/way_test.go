package scheduler

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
)

// rollout folds a fact about the rollout of a recipe.
func (w *world) rollout(typ, recipe string, d tidemill.RolloutData) {
	w.Helper()
	data, err := json.Marshal(d)
	w.must(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts.Apply(commands.Command{Offset: w.acts.Next(), Type: typ, Subject: recipe, At: time.Unix(1, 0), Data: data})
}

// memberOf returns a key that takes part in a share, and one that does not.
func memberOf(recipe string, share float64) (inside, outside string) {
	for i := 0; inside == "" || outside == ""; i++ {
		if key := fmt.Sprint("k", i); tidemill.TakesPart(recipe, key, share) {
			inside = key
		} else {
			outside = key
		}
	}
	return inside, outside
}

// A changed command reaches the cohort of its rollout. The others keep the command before, although the config no
// longer has it, and the facts of the cohort name the rollout.
func TestOnlyTheCohortRunsTheNewWay(t *testing.T) {
	r := plain("intent")
	r.Makes, r.Rollout = config.Makes{Model: "intent/{key}"}, &config.Rollout{Keys: []float64{0.5, 1}}
	before := r.Way()
	r.Run.Command = []string{"new"}
	w := newWorld(t, r)
	w.rollout(tidemill.TypeRolloutEnded, "intent", tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: new(w.tokens.SignWay("intent", before))})
	f := w.foreman(nil)
	inside, outside := memberOf("intent", 0.5)
	commandOf := func(key, event string) string {
		t.Helper()
		a := w.begun(f, wish("intent", key, event))
		w.launch.end(tidemill.AttemptName(a.Run, 1))
		launched := w.launch.of(a.Run)[0]
		if _, err := f.Finish(w.ctx(), w.run(f, a.Run), 1, tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: "tree"}}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(launched.Plan.Command, " ") + " " + launched.Plan.Rollout
	}
	old := strings.Join(plain("intent").Run.Command, " ") + " "
	if got := commandOf(inside, "1"); got != old {
		t.Errorf("before its rollout begins, a change runs %q", got)
	}
	w.rollout(tidemill.TypeRolloutBegun, "intent", tidemill.RolloutData{Rollout: "intent/1", Number: 1, Way: new(w.tokens.SignWay("intent", r.Way())), Share: 0.5})
	if got := commandOf(inside, "2"); got != "new intent/1" {
		t.Errorf("a key of the cohort runs %q", got)
	}
	if got := commandOf(outside, "1"); got != old {
		t.Errorf("another key runs %q", got)
	}
	w.rollout(tidemill.TypeRolloutStopped, "intent", tidemill.RolloutData{Rollout: "intent/1", Reason: "fleet.worse > 0.02"})
	if got := commandOf(inside, "3"); got != old {
		t.Errorf("after the stop, a key of the cohort runs %q", got)
	}
}

// A way that another client of Kafka has written starts nothing: the way has a command.
func TestAForeignWayStartsNothing(t *testing.T) {
	r := plain("intent")
	r.Makes, r.Rollout = config.Makes{Model: "intent/{key}"}, &config.Rollout{Keys: []float64{0.5, 1}}
	w := newWorld(t, r)
	foreign := plain("intent")
	foreign.Run.Command = []string{"steal"}
	way := foreign.Way()
	way.MAC = w.tokens.SignWay("another", way).MAC
	w.rollout(tidemill.TypeRolloutEnded, "intent", tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: &way})
	f := w.foreman(nil)
	a := w.ask(f, wish("intent", "k", "1"))
	if n := len(w.launch.of(a.Run)); n > 0 {
		t.Fatalf("%d attempts were launched", n)
	}
	err := f.troubles.err(f.now())
	if err == nil || !strings.Contains(err.Error(), "another client of Kafka has written it") {
		t.Errorf("the status says %v", err)
	}
}
