package fold

import (
	"time"

	"tidemill.dev"
)

// Canary is a version that answers a share of the events beside the champion.
type Canary struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"` // time of its begin
	tidemill.Canary
	Unserved *Unserved `json:"unserved,omitempty"` // last report that a scorer cannot serve it; nil if there is none
}

// beginCanary makes a version the canary. A canary before it is refused, because the newer version has newer data.
func (m *Model) beginCanary(f Fact, h *Held, c tidemill.Canary) {
	m.refuseCanary(f)
	h.State = tidemill.VersionCanary
	m.Canary = &Canary{Version: h.Number, At: f.At, Canary: c}
	m.owe(f, tidemill.TypeModelCanary, h.Number, m.Champion)
}

// refuseCanary ends the canary, if there is one.
func (m *Model) refuseCanary(f Fact) {
	if m.Canary == nil {
		return
	}
	if h := m.Find(m.Canary.Version); h != nil {
		h.State = tidemill.VersionRefused
		m.owe(f, tidemill.TypeModelRefused, h.Number, m.Champion)
	}
	m.Canary = nil
}

// settleCanary folds the judgement of the canary in. A second judgement changes nothing.
func (m *Model) settleCanary(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch {
	case d.Judgement == nil || d.Run != h.Run:
		return void("it has no judgement, or that of another run")
	case m.Canary == nil || m.Canary.Version != h.Number:
		return ModelVerdict{Result: Known}
	}
	v := ModelVerdict{Result: Accepted, Judged: h.Number, Judgement: d.Judgement}
	switch {
	case !d.Judgement.Passed:
		m.refuseCanary(f)
	case d.Hold != "":
		m.Canary = nil
		m.await(f, h, &v, d, d.Hold)
	default:
		m.setChampion(f, d, h, tidemill.TypeModelPromoted, "")
	}
	return v
}
