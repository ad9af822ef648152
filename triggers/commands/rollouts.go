package commands

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// RolloutState is the state of a recipe's newest rollout.
type RolloutState string

// The states. A stopped rollout waits for a person.
const (
	RolloutIdle     RolloutState = ""         // all keys have the same way
	RolloutRunning  RolloutState = "running"  // a share of the keys takes part
	RolloutPaused   RolloutState = "paused"   // the share does not grow
	RolloutStopped  RolloutState = "stopped"  // a stop clause was true; its keys are rolled back
	RolloutAborting RolloutState = "aborting" // its keys are rolled back, and then it ends
)

// Rollout is the state of a recipe that has a rollout. It is a fold of the stream commands, on which the decisions
// of the controllers and the commands of people have one order. So two controllers cannot both advance a rollout,
// and a pause counts from its place on.
type Rollout struct {
	Recipe string
	Number int           // number of the newest rollout; 0 if there was none
	Base   *tidemill.Way // way of all keys that take no part
	Way    *tidemill.Way // new way; nil if no rollout is open
	State  RolloutState
	Share  float64   // share of the keys that take part
	Began  time.Time // begin of the rollout
	Since  time.Time // begin of the present share or state
	Fresh  time.Time // time from which the evidence counts: the begin, or the time at which a person resumed a stopped rollout

	By      string             // person who paused or aborted it
	Reason  string             // reason why it is not running
	Figures map[string]float64 // evidence at the last decision

	Refused string // hash of the way of the last rollout that was aborted; it does not begin again by itself

	Last   tidemill.RolloutResult // result of the last rollout that has ended
	LastAt time.Time
	Back   int // number of keys that the last rollout has rolled back

	aborted []string // names of the newest rollouts that were aborted
}

// Open reports whether a rollout is under way.
func (r *Rollout) Open() bool { return r.State != RolloutIdle }

// GoesBack reports whether the keys of a rollout are rolled back.
func (r *Rollout) GoesBack() bool { return r.State == RolloutStopped || r.State == RolloutAborting }

// Name returns the name of the newest rollout.
func (r *Rollout) Name() string { return tidemill.RolloutName(r.Recipe, r.Number) }

// Choice says in which way a run of a key is made.
type Choice struct {
	Base    *tidemill.Way // way that replaces that of the config; nil for the way of the config
	Rollout string        // rollout in which the run takes part; empty for none
}

// Choose returns the way for a run of a key, if the config has the way with a hash. The config may be newer than the
// state: a change that no rollout has begun to bring reaches no key.
func (r *Rollout) Choose(hash, key string) Choice {
	switch {
	case r == nil || r.Base == nil || r.Base.Hash == hash:
		return Choice{}
	case r.Way != nil && r.Way.Hash == hash && (r.State == RolloutRunning || r.State == RolloutPaused) && tidemill.TakesPart(r.Recipe, key, r.Share):
		return Choice{Rollout: r.Name()}
	}
	return Choice{Base: r.Base}
}

// Rollout returns the state of a recipe's rollouts; nil if it never had one.
func (s *State) Rollout(recipe string) *Rollout { return s.rollouts[recipe] }

// Rollouts returns the states of all recipes that have or had rollouts, by name. The caller must not change them.
func (s *State) Rollouts() []*Rollout {
	all := make([]*Rollout, 0, len(s.rollouts))
	for _, name := range slices.Sorted(maps.Keys(s.rollouts)) {
		all = append(all, s.rollouts[name])
	}
	return all
}

// GivenUp reports whether a rollout was stopped or aborted, so that no gate may promote its versions.
func (s *State) GivenUp(rollout string) bool {
	i := strings.LastIndexByte(rollout, '/')
	if i < 0 {
		return false
	}
	r := s.rollouts[rollout[:i]]
	switch {
	case r == nil:
		return false
	case r.Open() && r.Name() == rollout:
		return r.GoesBack()
	}
	return slices.Contains(r.aborted, rollout)
}

// keptAborted is the number of aborted rollouts that a recipe's state names. A run of an older one has ended.
const keptAborted = 20

// applyRollout folds a fact or a command about a rollout. One that does not fit the state is ignored: another
// controller, or a person, was faster.
func (s *State) applyRollout(act Command) {
	var d tidemill.RolloutData
	if act.Subject == "" || len(act.Data) > 0 && json.Unmarshal(act.Data, &d) != nil {
		return
	}
	r := Rollout{Recipe: act.Subject}
	if had := s.rollouts[act.Subject]; had != nil {
		r = *had
	}
	if r.apply(act, &d) {
		s.rollouts = with(s.rollouts, act.Subject, &r)
	}
}

// apply changes the state, and reports whether the fact or command fits it.
func (r *Rollout) apply(act Command, d *tidemill.RolloutData) bool {
	ours := r.Open() && d.Rollout == r.Name()
	switch act.Type {
	case tidemill.TypeRolloutBegun:
		if r.Open() || r.Base == nil || d.Way == nil || d.Number != r.Number+1 {
			return false
		}
		r.Refused = ""
		r.Number, r.Way, r.Began, r.Fresh = d.Number, d.Way, act.At, act.At
		r.set(RolloutRunning, act, "")
		r.Share, r.Figures = d.Share, nil
	case tidemill.TypeRolloutAdvanced:
		if !ours || r.State != RolloutRunning || d.From != r.Share || d.Share <= r.Share {
			return false
		}
		r.set(RolloutRunning, act, "")
		r.Share, r.Figures = d.Share, d.Figures
	case tidemill.TypeRolloutStopped:
		if !ours || r.State != RolloutRunning && r.State != RolloutPaused {
			return false
		}
		r.set(RolloutStopped, act, d.Reason)
		r.Figures = d.Figures
	case tidemill.TypeRolloutEnded:
		return r.end(act, d, ours)
	}
	return r.applyCommand(act, d, ours)
}

// applyCommand folds a person's command. It returns true for facts, which apply has folded.
func (r *Rollout) applyCommand(act Command, d *tidemill.RolloutData, ours bool) bool {
	named := r.Open() && (ours || d.Rollout == "")
	switch act.Type {
	case tidemill.TypeRolloutPaused:
		if !named || r.State != RolloutRunning {
			return false
		}
		r.set(RolloutPaused, act, d.Reason)
	case tidemill.TypeRolloutResumed:
		if !r.Open() && r.Refused != "" { // the way may begin again
			r.Refused = ""
			return true
		}
		if !named || r.State != RolloutPaused && r.State != RolloutStopped {
			return false
		}
		if r.State == RolloutStopped { // the evidence that stopped it would stop it again
			r.Fresh = act.At
		}
		r.set(RolloutRunning, act, "")
	case tidemill.TypeRolloutAborted:
		if !named || r.State == RolloutAborting {
			return false
		}
		r.set(RolloutAborting, act, d.Reason)
	}
	return true
}

func (r *Rollout) set(s RolloutState, act Command, reason string) {
	r.State, r.Since, r.By, r.Reason = s, act.At, act.By, reason
}

// end folds the end of a rollout, or the way of a recipe whose rollouts begin or end.
func (r *Rollout) end(act Command, d *tidemill.RolloutData, ours bool) bool {
	switch {
	case d.Result == tidemill.RolloutAdopted && r.Base == nil && d.Way != nil:
		r.Base = d.Way
	case d.Result == tidemill.RolloutRemoved && r.Base != nil:
		r.Base, r.Way = nil, nil
	case d.Result == tidemill.RolloutDone && ours && r.State == RolloutRunning && r.Share == 1:
		r.Base, r.Way = r.Way, nil
	case d.Result == tidemill.RolloutAborted && ours && r.State == RolloutAborting:
		r.Refused, r.Way = r.Way.Hash, nil
		r.aborted = append(slices.Clone(r.aborted[max(0, len(r.aborted)-keptAborted+1):]), r.Name())
	default:
		return false
	}
	r.Last, r.LastAt, r.Back, r.Share = d.Result, act.At, d.Back, 0
	if d.Figures != nil {
		r.Figures = d.Figures
	}
	r.State, r.Since = RolloutIdle, act.At // the person and the reason of an abort stay
	return true
}

// RolloutFact returns a decision of a controller about a recipe's rollout. Its id derives from its content, so the
// same decision of two controllers is one event.
func RolloutFact(names tidemill.Names, typ, recipe string, d tidemill.RolloutData, now time.Time) (broker.View, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return broker.View{}, fmt.Errorf("write %s of recipe %s: %w", typ, recipe, err)
	}
	a := Author{Names: names, Now: now}
	way := ""
	if d.Way != nil {
		way = d.Way.Hash
	}
	v := a.of(typ, tidemill.AttrRecipe, recipe, tidemill.ID(typ, recipe, d.Rollout, string(d.Result), way,
		strconv.FormatFloat(d.Share, 'g', -1, 64), now.UTC().Format(time.RFC3339Nano)), data)
	v.Source = names.Source("controller")
	return v, nil
}

// PauseRollout pauses the rollout of a recipe: no further keys take part.
func (a Author) PauseRollout(recipe, rollout, reason string) (broker.View, error) {
	return a.rollout(tidemill.TypeRolloutPaused, recipe, rollout, reason)
}

// ResumeRollout resumes a rollout that is paused or has stopped.
func (a Author) ResumeRollout(recipe, rollout, reason string) (broker.View, error) {
	return a.rollout(tidemill.TypeRolloutResumed, recipe, rollout, reason)
}

// AbortRollout ends a rollout: its keys are rolled back.
func (a Author) AbortRollout(recipe, rollout, reason string) (broker.View, error) {
	return a.rollout(tidemill.TypeRolloutAborted, recipe, rollout, reason)
}

func (a Author) rollout(typ, recipe, rollout, reason string) (broker.View, error) {
	data, err := json.Marshal(tidemill.RolloutData{Rollout: rollout, Reason: reason})
	if err != nil {
		return broker.View{}, fmt.Errorf("write %s of recipe %s: %w", typ, recipe, err)
	}
	return a.of(typ, tidemill.AttrRecipe, recipe, a.id(typ, recipe, rollout), data), nil
}
