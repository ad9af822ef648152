package rollout

import (
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/config/gate"
	"tidemill.dev/triggers/commands"
)

// Input is all that a decision about a recipe's rollout depends on.
type Input struct {
	Recipe  *config.Recipe
	State   *commands.Rollout // nil if the recipe never had a rollout
	Figures map[string]float64
	Judged  int  // number of keys whose version was judged since the present share began
	Back    int  // number of keys that are rolled back
	Left    int  // number of keys that are still to be rolled back
	Settled bool // whether the way of the config is old enough that all processes have it
	Now     time.Time
}

// Decision is a fact to publish. Without a fact, Wait says why nothing happens; empty if all keys have the way of the
// config.
type Decision struct {
	Type string
	Data tidemill.RolloutData
	Wait string
}

// Decide returns the next fact of a recipe's rollout. It is a pure function, and the fold of the facts ignores what does
// not fit its state: two controllers that decide the same do not advance a rollout twice.
func Decide(in Input) (Decision, error) {
	s, r := in.State, in.Recipe
	switch {
	case r.Rollout == nil && s != nil && s.Base != nil:
		return wait("the config", in, Decision{Type: tidemill.TypeRolloutEnded, Data: tidemill.RolloutData{Rollout: s.Name(), Result: tidemill.RolloutRemoved}})
	case r.Rollout == nil:
		return Decision{}, nil
	}
	way := r.Way()
	switch {
	case s == nil || s.Base == nil:
		return wait("the config", in, Decision{Type: tidemill.TypeRolloutEnded, Data: tidemill.RolloutData{Result: tidemill.RolloutAdopted, Way: &way}})
	case !s.Open():
		return begin(in, way)
	case s.State == commands.RolloutAborting:
		return endAborted(in)
	case way.Hash != s.Way.Hash && s.State == commands.RolloutRunning:
		return wait("the config", in, Decision{Type: tidemill.TypeRolloutAborted, Data: tidemill.RolloutData{Rollout: s.Name(), Reason: "the config has another way now"}})
	}
	return goOn(in)
}

// wait returns a decision about a change of the config, once all processes have the change. A controller with an older
// config would otherwise decide against the newer one.
func wait(what string, in Input, d Decision) (Decision, error) {
	if !in.Settled {
		return Decision{Wait: "until all processes have " + what}, nil
	}
	return d, nil
}

// begin begins the rollout of a way that the keys do not have. A way that was aborted does not begin again by itself.
func begin(in Input, way tidemill.Way) (Decision, error) {
	s := in.State
	switch way.Hash {
	case s.Base.Hash:
		return Decision{}, nil
	case s.Refused:
		return Decision{Wait: fmt.Sprintf("for a person or another change: rollout %s of this way was aborted; tidemill rollouts resume %s begins another one", s.Name(), s.Recipe)}, nil
	}
	d := tidemill.RolloutData{Rollout: tidemill.RolloutName(s.Recipe, s.Number+1), Number: s.Number + 1, Way: &way, Share: in.Recipe.Rollout.Keys[0]}
	return wait("the config", in, Decision{Type: tidemill.TypeRolloutBegun, Data: d})
}

func endAborted(in Input) (Decision, error) {
	if in.Left > 0 {
		return Decision{Wait: fmt.Sprintf("until %d keys are rolled back", in.Left)}, nil
	}
	return Decision{Type: tidemill.TypeRolloutEnded, Data: tidemill.RolloutData{Rollout: in.State.Name(), Result: tidemill.RolloutAborted, Figures: in.Figures, Back: in.Back}}, nil
}

// goOn decides about an open rollout. One that is paused or has stopped waits for a person, even if the config has
// another way now.
func goOn(in Input) (Decision, error) {
	s, c := in.State, in.Recipe.Rollout
	if s.State == commands.RolloutStopped {
		return Decision{Wait: "for a person: tidemill rollouts abort or resume " + s.Recipe}, nil
	}
	clause, err := gate.Stops(c.Stop, in.Figures)
	if err != nil {
		return Decision{}, fmt.Errorf("decide about rollout %s: %w", s.Name(), err)
	}
	if clause != "" {
		return Decision{Type: tidemill.TypeRolloutStopped, Data: tidemill.RolloutData{Rollout: s.Name(), Share: s.Share, Reason: clause, Figures: in.Figures}}, nil
	}
	if s.State == commands.RolloutPaused {
		return Decision{Wait: "for a person: tidemill rollouts resume " + s.Recipe}, nil
	}
	next := nextShare(c.Keys, s.Share)
	switch until := s.Since.Add(c.Hold); {
	case in.Now.Before(until):
		return Decision{Wait: "until " + until.UTC().Format(time.RFC3339)}, nil
	case next == 0:
		return Decision{Type: tidemill.TypeRolloutEnded, Data: tidemill.RolloutData{Rollout: s.Name(), Result: tidemill.RolloutDone, Figures: in.Figures}}, nil
	case in.Judged == 0:
		return Decision{Wait: "until a key of its share has a judged version"}, nil
	}
	return Decision{Type: tidemill.TypeRolloutAdvanced, Data: tidemill.RolloutData{Rollout: s.Name(), From: s.Share, Share: next, Figures: in.Figures}}, nil
}

// nextShare returns the first share of the config above the present one; 0 if all keys take part. The config may have
// changed since the share began.
func nextShare(shares []float64, now float64) float64 {
	for _, share := range shares {
		if share > now {
			return share
		}
	}
	return 0
}
