package commands

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"tidemill.dev"
)

func rolloutOf(t *testing.T, facts ...any) *State {
	t.Helper()
	s := &State{}
	for i := 0; i < len(facts); i += 2 {
		data, err := json.Marshal(facts[i+1])
		if err != nil {
			t.Fatal(err)
		}
		by := ""
		if facts[i] == tidemill.TypeRolloutAborted {
			by = "ada"
		}
		s.Apply(Command{Offset: int64(i), ID: fmt.Sprint(i), Type: facts[i].(string), Subject: "intent", By: by, At: time.Unix(int64(i), 0), Data: data})
	}
	return s
}

// A change reaches the keys of its cohort alone, and none before its rollout begins or after it has stopped.
func TestChoose(t *testing.T) {
	one, two := &tidemill.Way{Hash: "one"}, &tidemill.Way{Hash: "two"}
	inside, outside := "", ""
	for i := 0; inside == "" || outside == ""; i++ {
		if key := fmt.Sprint("bot-", i); tidemill.TakesPart("intent", key, 0.1) {
			inside = key
		} else {
			outside = key
		}
	}
	adopted := []any{tidemill.TypeRolloutEnded, tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: one}}
	begun := append(adopted, tidemill.TypeRolloutBegun, tidemill.RolloutData{Rollout: "intent/1", Number: 1, Way: two, Share: 0.1})
	stopped := append(begun, tidemill.TypeRolloutStopped, tidemill.RolloutData{Rollout: "intent/1", Reason: "fleet.worse > 0.02"})
	paused := append(begun, tidemill.TypeRolloutPaused, tidemill.RolloutData{})
	done := append(begun, tidemill.TypeRolloutAdvanced, tidemill.RolloutData{Rollout: "intent/1", From: 0.1, Share: 1},
		tidemill.TypeRolloutEnded, tidemill.RolloutData{Rollout: "intent/1", Result: tidemill.RolloutDone})
	for name, c := range map[string]struct {
		facts     []any
		hash, key string
		want      Choice
	}{
		"no rollout yet":                            {nil, "one", inside, Choice{}},
		"the way of all keys":                       {adopted, "one", inside, Choice{}},
		"a change before its rollout begins":        {adopted, "two", inside, Choice{Base: one}},
		"a key of the cohort":                       {begun, "two", inside, Choice{Rollout: "intent/1"}},
		"another key":                               {begun, "two", outside, Choice{Base: one}},
		"a third way, which no rollout brings":      {begun, "three", inside, Choice{Base: one}},
		"a process with the config before":          {begun, "one", inside, Choice{}},
		"a pause keeps the cohort":                  {paused, "two", inside, Choice{Rollout: "intent/1"}},
		"a stopped rollout":                         {stopped, "two", inside, Choice{Base: one}},
		"a rollout that is done":                    {done, "two", outside, Choice{}},
		"a process with the config before, is done": {done, "one", outside, Choice{Base: two}},
	} {
		got := rolloutOf(t, c.facts...).Rollout("intent").Choose(c.hash, c.key)
		if got.Rollout != c.want.Rollout || (got.Base == nil) != (c.want.Base == nil) || got.Base != nil && got.Base.Hash != c.want.Base.Hash {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if rolloutOf(t, begun...).GivenUp("intent/1") || !rolloutOf(t, stopped...).GivenUp("intent/1") || rolloutOf(t, stopped...).GivenUp("intent/2") || rolloutOf(t, done...).GivenUp("intent/1") {
		t.Error("a rollout that is given up is not the stopped one")
	}
	ended := append(stopped, tidemill.TypeRolloutAborted, tidemill.RolloutData{Reason: "complaints"}, tidemill.TypeRolloutEnded, tidemill.RolloutData{Rollout: "intent/1", Result: tidemill.RolloutAborted})
	if s := rolloutOf(t, ended...); !s.GivenUp("intent/1") || s.Rollout("intent").Open() || s.Rollout("intent").Reason != "complaints" || s.Rollout("intent").By != "ada" {
		t.Errorf("an aborted rollout is %+v", s.Rollout("intent"))
	}
}

// A cohort has its share of the keys, and only grows.
func TestCohortsGrow(t *testing.T) {
	const keys = 20_000
	counts := map[float64]int{}
	for i := range keys {
		key, before := fmt.Sprint("bot-", i), false
		for _, share := range []float64{0.01, 0.1, 0.5, 1} {
			now := tidemill.TakesPart("intent", key, share)
			if before && !now {
				t.Fatalf("key %s leaves the cohort of %g", key, share)
			}
			if before = now; now {
				counts[share]++
			}
		}
	}
	for share, n := range counts {
		if deviation := math.Sqrt(keys * share * (1 - share)); math.Abs(float64(n)-keys*share) > 4*deviation {
			t.Errorf("%d of %d keys are in a cohort of %g", n, keys, share)
		}
	}
	if n := counts[0.01]; n > keys*12/1000 {
		t.Errorf("1 %% has %d of %d keys", n, keys)
	}
}
