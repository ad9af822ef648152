package fold

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
)

// Drift is a figure of the champion that has drifted.
type Drift struct {
	At time.Time `json:"at"`
	tidemill.ModelDrifted
}

// keptDrifts is more than the figures of a model, which several scorers may watch.
const keptDrifts = 32

// Unserved is a scorer's report that it could not load the champion, or cannot serve the canary.
type Unserved struct {
	At     time.Time `json:"at"`
	Scorer string    `json:"scorer"`
	Kept   int       `json:"kept"` // version that answered instead; 0 for none
	Error  string    `json:"error"`
}

// unloadable notes that a scorer could not load the champion, or the version that was to answer
// instead, or cannot serve the canary.
func (m *Model) unloadable(f Fact, d tidemill.ModelUnloadable) ModelVerdict {
	told := Unserved{At: f.At, Scorer: strings.ToValidUTF8(d.Scorer, "\uFFFD"), Kept: d.Kept, Error: strings.ToValidUTF8(d.Error, "\uFFFD")}
	switch u := m.Unserved; {
	case d.Version < 1:
		return void("it names no version")
	case m.Canary != nil && d.Version == m.Canary.Version:
		m.Canary.Unserved = &told
		return ModelVerdict{Result: Accepted}
	case d.Version == m.Champion:
	case u != nil && u.Scorer == told.Scorer && u.Kept == d.Version:
		told.At, told.Error = u.At, u.Error
	default:
		return void("the version is not the champion")
	}
	m.Unserved = &told
	return ModelVerdict{Result: Accepted}
}

// loaded withdraws the report of a scorer that has loaded the champion or the canary since.
func (m *Model) loaded(_ Fact, d tidemill.ModelLoaded) ModelVerdict {
	of, version := &m.Unserved, m.Champion
	if m.Canary != nil && d.Version == m.Canary.Version {
		of, version = &m.Canary.Unserved, d.Version
	}
	if *of == nil || d.Version != version || strings.ToValidUTF8(d.Scorer, "\uFFFD") != (*of).Scorer {
		return ModelVerdict{Result: Known}
	}
	*of = nil
	return ModelVerdict{Result: Accepted}
}

// drifted notes that a figure of the champion has drifted.
func (m *Model) drifted(f Fact, d tidemill.ModelDrifted) ModelVerdict {
	d.Scorer, d.Figure, d.Value = strings.ToValidUTF8(d.Scorer, "\uFFFD"), strings.ToValidUTF8(d.Figure, "\uFFFD"), strings.ToValidUTF8(d.Value, "\uFFFD")
	d.Since = strings.ToValidUTF8(d.Since, "\uFFFD")
	switch {
	case d.Version < 1 || d.Version != m.Champion:
		return void("the version is not the champion")
	case m.findDrift(d.Scorer, d.Figure) >= 0:
		return ModelVerdict{Result: Known}
	case len(m.Drifts) == keptDrifts:
		return void("too many figures of the model have drifted")
	}
	m.Drifts = append(m.Drifts, Drift{f.At, d})
	return ModelVerdict{Result: Accepted}
}

// driftEnded notes that a figure of the champion has returned.
func (m *Model) driftEnded(_ Fact, d tidemill.ModelDriftEnded) ModelVerdict {
	i := m.findDrift(strings.ToValidUTF8(d.Scorer, "\uFFFD"), strings.ToValidUTF8(d.Figure, "\uFFFD"))
	if i < 0 || d.Version != m.Champion {
		return ModelVerdict{Result: Known}
	}
	if m.Drifts = slices.Delete(m.Drifts, i, i+1); len(m.Drifts) == 0 {
		m.Drifts = nil
	}
	return ModelVerdict{Result: Accepted}
}

// KeptLive is the number of pairs of version and scorer whose figures a model keeps. The oldest versions go.
const KeptLive = 6

// measured keeps the newest figures of a version in a scorer. They are sums over a beginning of each partition
// of outcomes. A fact whose beginnings are shorter, or shorter in some partition, comes from a reader that
// another one has displaced, and changes nothing.
func (m *Model) measured(_ Fact, d tidemill.Measured) ModelVerdict {
	d.Scorer = strings.ToValidUTF8(d.Scorer, "\uFFFD")
	i, found := m.FindLive(d.Version, d.Scorer)
	switch {
	case d.Version < 1 || d.Scorer == "":
		return void("it names no version, or no scorer")
	case m.Last == 0 || !m.Retired.IsZero():
		return void("the model has no versions")
	case found && (d.Folded <= m.Live[i].Folded || !d.Reaches(&m.Live[i])):
		return ModelVerdict{Result: Known}
	case found:
		m.Live[i] = d
		return ModelVerdict{Result: Accepted}
	case len(m.Live) >= KeptLive && i == 0:
		return void("the figures of later versions are kept")
	}
	m.Live = slices.Insert(m.Live, i, d)
	if len(m.Live) > KeptLive {
		m.Live = slices.Delete(m.Live, 0, 1)
	}
	return ModelVerdict{Result: Accepted}
}

func (m *Model) findDrift(scorer, figure string) int {
	return slices.IndexFunc(m.Drifts, func(d Drift) bool { return d.Scorer == scorer && d.Figure == figure })
}

// FindLive returns the index of the figures of a version in a scorer, or the index that they would have.
func (m *Model) FindLive(version int, scorer string) (int, bool) {
	return slices.BinarySearchFunc(m.Live, tidemill.Measured{Version: version, Scorer: scorer}, func(a, b tidemill.Measured) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), strings.Compare(a.Scorer, b.Scorer))
	})
}
