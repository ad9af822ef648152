package rollout

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/models/evidence"
)

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
