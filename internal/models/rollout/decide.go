package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/models/evidence"
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
	return Decision{Type: tidemill.TypeRolloutEnded, Data: tidemill.RolloutData{Rollout: in.State.Name(), Result: tidemill.RolloutAborted, Reason: in.State.Reason, Figures: in.Figures, Back: in.Back}}, nil
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

const (
	// alpha is the probability with which each figure may ever be wrong. Half of it is for the outcomes and half
	// for the gates, because fleet.worse is the greater of two bounds.
	alpha = 0.05
	// block is the number of outcomes of each of two versions that a key is compared by. Each key counts once, so
	// that a busy key does not decide for the fleet.
	block = 20
)

// Evidence is what the log has about the keys of one rollout. It is a fold of the facts and the outcomes, so each
// controller has the same evidence.
type Evidence struct {
	recipe, rollout string
	fresh           time.Time // facts before it are no evidence, but their keys are rolled back

	runs   map[string]bool // runs that have ended
	failed *evidence.Mean
	models map[string]*member
	tried  map[string]map[int]*tally // results of the versions of each model
	now    map[string]float64        // figures; nil if events have come since they were computed
}

// member is a model with a version of the rollout.
type member struct {
	versions  map[int]bool // versions that were made in the rollout
	promoted  int          // first of them that was promoted; 0 if none was
	back      int          // champion before it; 0 if there was none
	champion  int          // champion by the newest fact
	judged    time.Time    // time of the first judgement that counts; zero if there is none
	refused   bool         // whether that judgement was a refusal
	lead      *float64     // lead of the version by the gate; nil if it was not compared
	since     time.Time    // time of the promotion
	reverted  bool         // whether it was rolled back
	announced map[string]bool
}

// tally counts the first outcomes of a version.
type tally struct{ n, right int }

// NewEvidence returns the evidence of a rollout before any fact. Facts before fresh do not count as evidence.
func NewEvidence(recipe, rollout string, fresh time.Time) *Evidence {
	return &Evidence{recipe: recipe, rollout: rollout, fresh: fresh, runs: map[string]bool{}, failed: evidence.NewMean(0, 1),
		models: map[string]*member{}, tried: map[string]map[int]*tally{}}
}

// Add folds an event of the stream facts or outcomes. It ignores all others.
func (e *Evidence) Add(v *broker.View) {
	e.now = nil
	switch v.Type {
	case tidemill.TypeRunFinished:
		e.addRun(v)
	case tidemill.TypeModelPromoted, tidemill.TypeModelRefused, tidemill.TypeModelAwaiting, tidemill.TypeModelCanary, tidemill.TypeModelRolledBack, tidemill.TypeModelPinned:
		e.addAnnouncement(v)
	case tidemill.TypeOutcome:
		e.addOutcome(v)
	}
}

func (e *Evidence) addRun(v *broker.View) {
	if of, _ := v.Attribute(tidemill.AttrRollout); of != e.rollout || e.isBefore(v) {
		return
	}
	run, _ := v.Attribute(tidemill.AttrRun)
	outcome, _ := v.Attribute(tidemill.AttrOutcome)
	failed := outcome == string(tidemill.RunFailed)
	if run == "" || e.runs[run] || !failed && outcome != string(tidemill.RunSucceeded) {
		return
	}
	e.runs[strings.Clone(run)] = true
	if failed {
		e.failed.Add(1)
	} else {
		e.failed.Add(0)
	}
}

// isBefore reports whether an event is older than the evidence.
func (e *Evidence) isBefore(v *broker.View) bool { return timeOf(v).Before(e.fresh) }

func timeOf(v *broker.View) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, v.Time) // our facts have one
	return at
}

func (e *Evidence) addAnnouncement(v *broker.View) {
	if recipe, ok := v.Attribute(tidemill.AttrRecipe); ok && recipe != e.recipe {
		return
	}
	model, _ := v.Attribute(tidemill.AttrModel)
	var d tidemill.ModelAnnounced
	if model == "" || json.Unmarshal(v.Data, &d) != nil {
		return
	}
	m := e.models[model]
	if d.Origin != nil && d.Origin.Rollout == e.rollout {
		if m == nil {
			m = &member{versions: map[int]bool{}, announced: map[string]bool{}}
			e.models[strings.Clone(model)] = m
		}
		m.versions[d.Version] = true
	}
	if m == nil || m.announced[v.ID] {
		return
	}
	m.announced[strings.Clone(v.ID)] = true
	e.judge(m, v, &d)
	switch v.Type {
	case tidemill.TypeModelPromoted, tidemill.TypeModelRolledBack, tidemill.TypeModelPinned:
		m.change(v, &d)
	}
}

// judge notes the first judgement of a member.
func (e *Evidence) judge(m *member, v *broker.View, d *tidemill.ModelAnnounced) {
	if !m.versions[d.Version] || d.Judgement == nil || !m.judged.IsZero() || e.isBefore(v) {
		return
	}
	m.judged, m.refused, m.lead = timeOf(v), v.Type == tidemill.TypeModelRefused, d.Judgement.Lead
}

// change notes a change of the champion.
func (m *member) change(v *broker.View, d *tidemill.ModelAnnounced) {
	m.champion = d.Champion
	switch {
	case m.versions[d.Champion]:
		m.reverted = false
		if m.promoted == 0 && d.Before != 0 && !m.versions[d.Before] {
			m.promoted, m.back, m.since = d.Champion, d.Before, timeOf(v)
		}
	case m.versions[d.Before]:
		m.reverted = true
	}
}

// addOutcome counts the first outcomes of each version of a model. Corrections do not count, because the block of a
// version may have been looked at.
func (e *Evidence) addOutcome(v *broker.View) {
	var d tidemill.OutcomeData
	if json.Unmarshal(v.Data, &d) != nil || d.Model == "" {
		return
	}
	of := e.tried[d.Model]
	if of == nil {
		of = map[int]*tally{}
		e.tried[d.Model] = of
	}
	t := of[d.Version]
	if t == nil {
		t = &tally{}
		of[d.Version] = t
	}
	if t.n < block {
		t.n++
		if d.Right() {
			t.right++
		}
	}
}

// Figures returns the figures of gate.FleetFigures, and WorseMean. The caller must not change them.
func (e *Evidence) Figures() map[string]float64 {
	if e.now == nil {
		e.now = e.figures()
	}
	return e.now
}

func (e *Evidence) figures() map[string]float64 {
	byGate, byOutcomes, refused := evidence.NewMean(-1, 1), evidence.NewMean(-1, 1), evidence.NewMean(0, 1)
	promoted := 0
	for name, m := range e.models {
		if !m.judged.IsZero() {
			refused.Add(oneIf(m.refused))
			if m.lead != nil {
				byGate.Add(-*m.lead)
			}
		}
		if m.promoted == 0 || m.since.Before(e.fresh) {
			continue
		}
		promoted++
		before, after := e.tried[name][m.back], e.tried[name][m.promoted]
		if before != nil && after != nil && before.n == block && after.n == block {
			byOutcomes.Add(float64(before.right-after.right) / block)
		}
	}
	mean := byGate.Value()
	if byOutcomes.Len() > 0 {
		mean = byOutcomes.Value()
	}
	return map[string]float64{
		gate.FleetWorse:    max(byGate.Lowest(alpha/2), byOutcomes.Lowest(alpha/2)),
		gate.FleetFailed:   e.failed.Lowest(alpha),
		gate.FleetRefused:  refused.Lowest(alpha),
		gate.FleetRuns:     float64(len(e.runs)),
		gate.FleetKeys:     float64(refused.Len()),
		gate.FleetPromoted: float64(promoted),
		gate.FleetMeasured: float64(byGate.Len()),
		gate.FleetLabelled: float64(byOutcomes.Len()),
		WorseMean:          mean,
	}
}

// WorseMean is the name of the mean by which the new versions are worse, by outcomes if there are any, else by the
// figures of the gates. It has no bound, so no clause may name it.
const WorseMean = "worse.mean"

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// JudgedSince returns the number of keys whose version was judged at a time or later.
func (e *Evidence) JudgedSince(at time.Time) (n int) {
	for _, m := range e.models {
		if !m.judged.IsZero() && !m.judged.Before(at) {
			n++
		}
	}
	return n
}

// ToRollBack is a model whose champion was made in a rollout.
type ToRollBack struct {
	Model    string
	Champion int
	To       int // version before the rollout; 0 if there was none
}

// Cohort returns the models to roll back, sorted, and the number of those that are rolled back.
func (e *Evidence) Cohort() (todo []ToRollBack, back int) {
	for name, m := range e.models {
		switch {
		case m.versions[m.champion]:
			todo = append(todo, ToRollBack{name, m.champion, m.back})
		case m.reverted:
			back++
		}
	}
	slices.SortFunc(todo, func(a, b ToRollBack) int { return strings.Compare(a.Model, b.Model) })
	return todo, back
}

// RolledBack notes a rollback whose fact has not been read yet.
func (e *Evidence) RolledBack(model string, to int) {
	if m := e.models[model]; m != nil {
		m.champion, m.reverted = to, true
	}
}
