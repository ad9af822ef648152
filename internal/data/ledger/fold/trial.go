package fold

import (
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
)

// TrialEnd is a trial that has ended. The budget of wrong promotions counts it.
type TrialEnd struct {
	Version int       `json:"version"`
	Recipe  string    `json:"recipe,omitempty"`
	At      time.Time `json:"at"`
	Level   float64   `json:"level,omitempty"` // level at which it passed, as in [tidemill.TrialBudget]; 0 if it did not
}

// try begins the trial of a version that has passed its gate. It ends an older trial of the model, because
// the newer version has newer data.
func (m *Model) try(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch {
	case d.Judgement == nil || !d.Judgement.Passed || d.Run != h.Run:
		return void("it has no judgement that passed, or that of another run")
	case h.State != tidemill.VersionRegistered:
		return ModelVerdict{Result: Known}
	case m.Champion == 0:
		return void("there is no champion to be tried beside")
	case m.olderThanChampion(h):
		return m.settle(f, d, h)
	}
	if o := m.OnTrial(); o != nil {
		if h.BeganBefore(o) {
			h.State, h.Why = tidemill.VersionRefused, "version "+strconv.Itoa(o.Number)+", which has newer data, is on trial"
			m.owe(f, tidemill.TypeModelRefused, h.Number, m.Champion)
			return ModelVerdict{Result: Accepted, Judged: h.Number, Judgement: d.Judgement}
		}
		o.State, o.Why = tidemill.VersionRefused, "its trial ended without a verdict: the trial of version "+strconv.Itoa(h.Number)+", which has newer data, began"
		m.owe(f, tidemill.TypeModelRefused, o.Number, m.Champion)
		m.endTrial(TrialEnd{Version: o.Number, Recipe: m.Recipe, At: f.At})
	}
	h.State, h.Tried = tidemill.VersionTrial, f.At
	m.owe(f, tidemill.TypeTrialBegun, h.Number, m.Champion)
	return ModelVerdict{Result: Accepted, Judged: h.Number, Judgement: d.Judgement}
}

// conclude ends the trial of a version. A second end changes nothing.
func (m *Model) conclude(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch {
	case d.Judgement == nil || d.Judgement.Trial == nil || d.Run != h.Run:
		return void("it has no end of a trial, or that of another run")
	case h.State != tidemill.VersionTrial:
		return ModelVerdict{Result: Known}
	}
	end := TrialEnd{Version: h.Number, Recipe: d.Judgement.Trial.Recipe, At: f.At}
	if d.Judgement.Passed {
		end.Level = d.Judgement.Trial.Budget.Level
	}
	m.endTrial(end)
	return m.settle(f, d, h)
}

func (m *Model) endTrial(e TrialEnd) {
	m.Trials = append(m.Trials, e)
	if len(m.Trials) > keptTrials {
		m.Trials = slices.Delete(m.Trials, 0, len(m.Trials)-keptTrials)
	}
}

// OnTrial returns the version that is on trial; nil if there is none.
func (m *Model) OnTrial() *Held {
	for i := range m.Versions {
		if m.Versions[i].State == tidemill.VersionTrial {
			return &m.Versions[i]
		}
	}
	return nil
}
