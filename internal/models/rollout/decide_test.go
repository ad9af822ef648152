package rollout

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/config/gate"
	"tidemill.dev/triggers/commands"
)

var start = time.Date(2026, 11, 27, 3, 0, 0, 0, time.UTC)

func trainer(image string) *config.Recipe {
	return &config.Recipe{Name: "intent", Key: config.KeySubject, Run: config.Job{Image: image}, Makes: config.Makes{Model: "intent/{key}"},
		Rollout: &config.Rollout{Keys: []float64{0.01, 0.1, 1}, Hold: 24 * time.Hour, Stop: []string{"fleet.worse > 0.02"}}}
}

func wayOf(image string) *tidemill.Way { return new(trainer(image).Way()) }

// running is a rollout of image 2, whose share began at the start.
func running(set func(*commands.Rollout)) *commands.Rollout {
	s := &commands.Rollout{Recipe: "intent", Number: 3, Base: wayOf("1"), Way: wayOf("2"), State: commands.RolloutRunning, Share: 0.01, Began: start, Since: start, Fresh: start}
	if set != nil {
		set(s)
	}
	return s
}

func in(state commands.RolloutState) func(*commands.Rollout) {
	return func(s *commands.Rollout) { s.State = state }
}

func TestDecide(t *testing.T) {
	t.Parallel()
	idle := running(func(s *commands.Rollout) { s.State, s.Way = commands.RolloutIdle, nil })
	all := func(s *commands.Rollout) { s.Share = 1 }
	fine, worse := map[string]float64{gate.FleetWorse: -0.3}, map[string]float64{gate.FleetWorse: 0.03}
	later := start.Add(25 * time.Hour)
	without := trainer("2")
	without.Rollout = nil
	for name, c := range map[string]struct {
		in   Input
		typ  string
		data tidemill.RolloutData
		wait string
	}{
		"a recipe that never had a rollout": {Input{Recipe: trainer("1")}, tidemill.TypeRolloutEnded, tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: wayOf("1")}, ""},
		"all keys have the way":             {Input{Recipe: trainer("1"), State: idle}, "", tidemill.RolloutData{}, ""},
		"a change": {Input{Recipe: trainer("2"), State: idle}, tidemill.TypeRolloutBegun,
			tidemill.RolloutData{Rollout: "intent/4", Number: 4, Way: wayOf("2"), Share: 0.01}, ""},
		"a way that was aborted": {Input{Recipe: trainer("2"), State: running(func(s *commands.Rollout) { s.State, s.Way, s.Refused = "", nil, wayOf("2").Hash })},
			"", tidemill.RolloutData{}, "tidemill rollouts resume intent"},
		"the hold has not passed": {Input{Recipe: trainer("2"), State: running(nil), Figures: fine, Judged: 5, Now: start.Add(time.Hour)}, "", tidemill.RolloutData{}, "until 2026-11-28T03:00:00Z"},
		"the hold has passed": {Input{Recipe: trainer("2"), State: running(nil), Figures: fine, Judged: 1, Now: later}, tidemill.TypeRolloutAdvanced,
			tidemill.RolloutData{Rollout: "intent/3", From: 0.01, Share: 0.1, Figures: fine}, ""},
		"no key was judged": {Input{Recipe: trainer("2"), State: running(nil), Figures: fine, Now: later}, "", tidemill.RolloutData{}, "judged version"},
		"all keys take part": {Input{Recipe: trainer("2"), State: running(all), Figures: fine, Now: later}, tidemill.TypeRolloutEnded,
			tidemill.RolloutData{Rollout: "intent/3", Result: tidemill.RolloutDone, Figures: fine}, ""},
		"the fleet is worse": {Input{Recipe: trainer("2"), State: running(nil), Figures: worse, Now: start}, tidemill.TypeRolloutStopped,
			tidemill.RolloutData{Rollout: "intent/3", Share: 0.01, Reason: "fleet.worse > 0.02", Figures: worse}, ""},
		"it is paused": {Input{Recipe: trainer("2"), State: running(in(commands.RolloutPaused)), Figures: fine, Judged: 5, Now: later}, "", tidemill.RolloutData{}, "rollouts resume"},
		"it is paused, and the fleet is worse": {Input{Recipe: trainer("2"), State: running(in(commands.RolloutPaused)), Figures: worse, Now: later}, tidemill.TypeRolloutStopped,
			tidemill.RolloutData{Rollout: "intent/3", Share: 0.01, Reason: "fleet.worse > 0.02", Figures: worse}, ""},
		"it has stopped":                     {Input{Recipe: trainer("2"), State: running(in(commands.RolloutStopped)), Figures: worse, Now: later}, "", tidemill.RolloutData{}, "for a person"},
		"it has stopped, and a later change": {Input{Recipe: trainer("3"), State: running(in(commands.RolloutStopped)), Figures: worse, Now: later}, "", tidemill.RolloutData{}, "for a person"},
		"a later change": {Input{Recipe: trainer("3"), State: running(nil), Figures: fine, Now: later}, tidemill.TypeRolloutAborted,
			tidemill.RolloutData{Rollout: "intent/3", Reason: "the config has another way now"}, ""},
		"keys are still to go back": {Input{Recipe: trainer("2"), State: running(in(commands.RolloutAborting)), Left: 2, Back: 1}, "", tidemill.RolloutData{}, "until 2 keys are rolled back"},
		"all keys are back": {Input{Recipe: trainer("2"), State: running(func(s *commands.Rollout) { s.State, s.Reason = commands.RolloutAborting, "complaints" }), Back: 3}, tidemill.TypeRolloutEnded,
			tidemill.RolloutData{Rollout: "intent/3", Result: tidemill.RolloutAborted, Reason: "complaints", Back: 3}, ""},
		"the recipe has no rollout any more": {Input{Recipe: without, State: running(nil)}, tidemill.TypeRolloutEnded,
			tidemill.RolloutData{Rollout: "intent/3", Result: tidemill.RolloutRemoved}, ""},
		"the recipe has no rollout": {Input{Recipe: without}, "", tidemill.RolloutData{}, ""},
	} {
		c.in.Settled = true
		d, err := Decide(c.in)
		if err != nil || d.Type != c.typ || !reflect.DeepEqual(d.Data, c.data) || (d.Wait == "") != (c.wait == "") || !strings.Contains(d.Wait, c.wait) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		c.in.Settled = false // another process may have a newer config
		switch d, err := Decide(c.in); d.Type {
		case tidemill.TypeRolloutBegun, tidemill.TypeRolloutAborted:
			t.Errorf("%s: decided by a config that may be old: %+v, %v", name, d, err)
		}
	}
}
