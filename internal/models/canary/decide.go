package canary

import (
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/evidence"
)

// alpha is the probability with which a canary that is not worse is ever refused for being worse.
const alpha = 0.05

// Record has the outcomes of a canary and of the champion beside it.
type Record struct {
	champion int
	version  int
	before   evidence.Before // outcomes of the champion that are not compared yet
	lead     *evidence.Lead
	outcomes int // of the canary
}

// NewRecord returns the record of a model's canary before any outcome.
func NewRecord(m *fold.Model) *Record {
	return &Record{champion: m.Champion, version: m.Canary.Version, lead: evidence.NewLead(alpha)}
}

// Add counts an outcome of the model. The canary's outcome is compared with the champion's newest one that is not
// compared yet: the two versions answer different events, which a hash has chosen.
func (r *Record) Add(o *tidemill.OutcomeData) {
	switch o.Version {
	case r.champion:
		r.before.Add(o.Right())
	case r.version:
		r.outcomes++
		if right, ok := r.before.Take(); ok {
			r.lead.Add(o.Group, o.Right(), right)
		}
	}
}

// Decide returns the judgement of a canary; nil if it goes on.
func Decide(m *fold.Model, r *Record, now time.Time) *tidemill.Judgement {
	c := m.Canary
	age := now.Sub(c.At)
	switch {
	case r.lead.Worse(c.Worse) >= 1/alpha:
		return r.judgement(m, false, "its answers are worse: "+r.figures())
	case age < c.Hold:
		return nil
	case r.outcomes >= c.Least:
		return r.judgement(m, true, "its answers are not worse: "+r.figures())
	case age >= c.Until:
		return r.judgement(m, false, fmt.Sprintf("it has %d outcomes after %s, fewer than %d", r.outcomes, c.Until, c.Least))
	}
	return nil
}

func (r *Record) figures() string {
	low, value, high := r.lead.Bounds()
	return fmt.Sprintf("%d outcomes, its accuracy minus that of version %d is %.3f (%.3f to %.3f)", r.outcomes, r.champion, value, low, high)
}

func (r *Record) judgement(m *fold.Model, passed bool, why string) *tidemill.Judgement {
	low, value, high := r.lead.Bounds()
	verb := "is refused"
	if passed {
		verb = "passes"
	}
	return &tidemill.Judgement{Passed: passed, Against: m.Champion, Lead: &value,
		Sentence: fmt.Sprintf("the canary, version %d of %s, %s: %s", r.version, m.Name, verb, why),
		Clauses: []tidemill.Clause{{Text: "the canary is not worse than the champion", Passed: passed,
			Values: map[string]float64{"canary.outcomes": float64(r.outcomes), "canary.lead.low": low, "canary.lead.value": value, "canary.lead.high": high}}}}
}
