package fold

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

// Model is a name with versions, of which at most one is the champion. Like a Making, it is
// a pure function of the order of its facts on the log. The content of a version is in
// separate records (Version, Judgement), which the fold does not read again.
type Model struct {
	Name   string `json:"name"`
	Key    string `json:"key"`
	Recipe string `json:"recipe,omitempty"` // recipe of the newest version
	Next   int64  `json:"next"`             // offset after the last fact that was folded in

	Last     int   `json:"last"`               // number of the newest version
	Champion int   `json:"champion,omitempty"` // version of the champion; 0 for none
	Previous int   `json:"previous,omitempty"` // version of the former champion; 0 for none
	Turn     int64 `json:"turn"`               // counter that a change of the champion or of the pin increases; a proposal of another turn is refused
	Pin      *Pin  `json:"pin,omitempty"`

	Canary *Canary `json:"canary,omitempty"` // version that answers a share of the events beside the champion; nil for none

	Versions []Held          `json:"versions,omitempty"` // kept versions, in the order of their numbers
	Changes  []Change        `json:"changes,omitempty"`  // newest keptChanges changes of the champion, the newest last
	Asked    []Asked         `json:"asked,omitempty"`    // newest keptAsked requests of people, the newest last
	Floors   []tidemill.Mark `json:"floors,omitempty"`   // starts of runs; a version whose run began at or before one is refused
	Owed     []Owed          `json:"owed,omitempty"`     // announcements of accepted proposals that are not made yet
	Retired  time.Time       `json:"retired,omitzero"`   // time of the removal of its key; zero once it has a later version

	Trials   []TrialEnd          `json:"trials,omitempty"`   // newest keptTrials trials that have ended, the newest last
	Unserved *Unserved           `json:"unserved,omitempty"` // last report that a scorer cannot serve the champion; nil if there is none
	Drifts   []Drift             `json:"drifts,omitempty"`   // figures of the champion that have drifted, the newest last
	Live     []tidemill.Measured `json:"live,omitempty"`     // figures by outcomes, of up to KeptLive versions and scorers, sorted by these
}

// Held has the parts of a version that the fold needs.
type Held struct {
	Number int                   `json:"number"`
	Run    string                `json:"run"`
	State  tidemill.VersionState `json:"state"`
	Mark   tidemill.Mark         `json:"mark"`           // place of the fact that started its run
	Began  time.Time             `json:"began"`          // start of its run
	At     time.Time             `json:"at"`             // time of its registration
	Tried  time.Time             `json:"tried,omitzero"` // beginning of its trial; zero if it has had none
	Why    string                `json:"why,omitempty"`  // reason why its trial ended without a verdict; empty if it did not
}

// Pin keeps the champion until it is removed.
type Pin struct {
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Change describes how a version became the champion.
type Change struct {
	At       time.Time       `json:"at"`
	Action   tidemill.Action `json:"action"`
	Version  int             `json:"version"`
	Before   int             `json:"before"`
	By       string          `json:"by,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Proposal string          `json:"proposal"` // id of the proposal's fact
}

// How says how the version became the champion, as in "promoted by its gate". The version's judgement may be nil.
func (c *Change) How(j *tidemill.Judgement) string {
	switch c.Action {
	case tidemill.ActionJudge:
		if j.Gateless() {
			return "promoted without a gate"
		}
		return "promoted by its gate"
	case tidemill.ActionConclude:
		return "promoted by its trial"
	case tidemill.ActionSettle:
		return "promoted by its canary"
	}
	done := map[tidemill.Action]string{tidemill.ActionPromote: "promoted", tidemill.ActionRollback: "restored", tidemill.ActionPin: "pinned", tidemill.ActionUnpin: "unpinned"}
	return cmp.Or(done[c.Action], string(c.Action))
}

// Asked is a person's request, so that a repeat of it changes nothing.
type Asked struct {
	Proposal string `json:"proposal"`          // id of the proposal's fact
	Version  int    `json:"version,omitempty"` // version that it means; 0 for the removal of the pin
	Basis    int    `json:"basis,omitempty"`   // champion that it was proposed against; 0 for none
	Accepted bool   `json:"accepted,omitempty"`
}

// Owed is an announcement that is due.
type Owed struct {
	Type     string        `json:"type"`
	Proposal string        `json:"proposal"` // id of the fact that was accepted
	At       tidemill.Mark `json:"at"`       // place of that fact
	Time     time.Time     `json:"time"`
	By       string        `json:"by,omitempty"`
	Version  int           `json:"version"`
	Champion int           `json:"champion"`
	Before   int           `json:"before"`
	Turn     int64         `json:"turn"`
}

// ModelVerdict is the result of folding a fact of a model in.
type ModelVerdict struct {
	Result     VerdictResult
	Reason     string              // reason why it was refused
	Registered *tidemill.Version   // record to be kept
	Judged     int                 // number of the version that was judged
	Judgement  *tidemill.Judgement // record to be kept
	Dropped    []int               // numbers of versions whose records are to be deleted
}

const (
	keptChanges  = 20
	keptAsked    = 20
	keptTrials   = 5
	maxKeep      = 10_000
	mostUnjudged = 10
)

// Apply folds a fact in. The facts of a model must come in their order.
func (m *Model) Apply(f Fact) ModelVerdict {
	if f.Offset < m.Next {
		return ModelVerdict{Result: Known}
	}
	m.Name, m.Next = f.Model, f.Offset+1
	if f.Key != "" {
		m.Key = f.Key
	}
	f.By = strings.ToValidUTF8(f.By, "\uFFFD")
	switch f.Type {
	case tidemill.TypeModelRegistered:
		return decodedOf(f, m.register)
	case tidemill.TypeModelPromotionProposed:
		return decodedOf(f, func(f Fact, d proposedFact) ModelVerdict {
			v := m.propose(f, d.PromotionProposed)
			m.noteAsked(f, &d.PromotionProposed, v.Result == Accepted)
			return v
		})
	case tidemill.TypeModelRetired:
		return decodedOf(f, m.retire)
	case tidemill.TypeModelUnloadable:
		return decodedOf(f, m.unloadable)
	case tidemill.TypeModelLoaded:
		return decodedOf(f, m.loaded)
	case tidemill.TypeModelDrifted:
		return decodedOf(f, m.drifted)
	case tidemill.TypeModelDriftEnded:
		return decodedOf(f, m.driftEnded)
	case tidemill.TypeModelMeasured:
		return decodedOf(f, m.measured)
	case tidemill.TypeModelPromoted, tidemill.TypeModelRefused, tidemill.TypeModelAwaiting, tidemill.TypeModelCanary, tidemill.TypeModelRolledBack, tidemill.TypeModelPinned, tidemill.TypeModelUnpinned, tidemill.TypeTrialBegun:
		return decodedOf(f, func(f Fact, d announcedFact) ModelVerdict { return m.announced(f, d.ModelAnnounced) })
	}
	return void("the type is not one that decides about models")
}

// proposedFact and announcedFact have the fields that the fold reads. The other fields are
// for subscribers.
type (
	proposedFact struct {
		tidemill.PromotionProposed
		Origin unreadField `json:"origin"`
	}
	announcedFact struct {
		tidemill.ModelAnnounced
		Origin    unreadField `json:"origin"`
		Judgement unreadField `json:"judgement"`
	}
)

func decodedOf[D any](f Fact, fold func(Fact, D) ModelVerdict) ModelVerdict {
	var d D
	if len(f.Data) > 0 {
		if err := json.Unmarshal(f.Data, &d); err != nil {
			return void("the data cannot be read: " + err.Error())
		}
	}
	return fold(f, d)
}

func void(reason string) ModelVerdict { return ModelVerdict{Result: Refused, Reason: reason} }

// Find returns a version; nil if it is not kept.
func (m *Model) Find(number int) *Held {
	i, ok := slices.BinarySearchFunc(m.Versions, number, func(h Held, n int) int { return cmp.Compare(h.Number, n) })
	if !ok {
		return nil
	}
	return &m.Versions[i]
}

// OfRun returns the version that a run has made; nil if none is kept.
func (m *Model) OfRun(run string) *Held {
	for i := range m.Versions {
		if m.Versions[i].Run == run {
			return &m.Versions[i]
		}
	}
	return nil
}

// Which returns the number of a version, given the part after the @ of its name; 0 if there
// is none. An empty part means the champion, or the newest version if there is no champion.
func (m *Model) Which(which string) int {
	switch which {
	case "":
		if m.Champion != 0 {
			return m.Champion
		}
		return m.newest()
	case tidemill.WhichChampion:
		return m.Champion
	case tidemill.WhichPrevious:
		return m.Previous
	case tidemill.WhichNewest:
		return m.newest()
	}
	n, _ := strconv.Atoi(which)
	if m.Find(n) == nil {
		return 0
	}
	return n
}

func (m *Model) newest() int {
	if len(m.Versions) == 0 {
		return 0
	}
	return m.Versions[len(m.Versions)-1].Number
}

func (m *Model) register(f Fact, d tidemill.ModelRegistered) ModelVerdict {
	switch {
	case f.Run == "" || f.Run != d.Run:
		return void("it names no run, or two")
	case m.OfRun(f.Run) != nil:
		return ModelVerdict{Result: Known}
	case m.isBelowFloor(&d.Origin):
		return void("its run began before versions that are no longer kept, or before its key went")
	}
	m.Last++
	m.Recipe, m.Retired = d.Recipe, time.Time{}
	h := Held{Number: m.Last, Run: f.Run, State: tidemill.VersionRegistered, Mark: d.Mark, Began: d.Began, At: f.At}
	m.Versions = append(m.Versions, h)
	v := ModelVerdict{Result: Accepted, Registered: &tidemill.Version{Model: m.Name, Number: h.Number, At: f.At, Artifact: d.Artifact,
		Bytes: d.Bytes, Files: d.Files, Report: d.Report, Metrics: d.Metrics, Judge: d.Judge, Origin: d.Origin}}
	v.Dropped = m.trim(d.Judge.Keep)
	return v
}

// isBelowFloor reports whether a run began at or before a floor. A run without a number began before
// all runs of its recipe and key that have one.
func (m *Model) isBelowFloor(o *tidemill.Origin) bool {
	return slices.ContainsFunc(m.Floors, func(f tidemill.Mark) bool {
		if o.Mark.Making == "" && f.Making != "" {
			return f.Making == tidemill.RunKey(o.Recipe, o.Key)
		}
		order, ok := o.Mark.Order(f)
		return ok && order <= 0
	})
}

// HasFloor reports whether a floor is at a mark or after it.
func (m *Model) HasFloor(at tidemill.Mark) bool {
	return slices.ContainsFunc(m.Floors, func(f tidemill.Mark) bool {
		order, ok := at.Order(f)
		return ok && order <= 0
	})
}

// raiseFloor adds or raises the floor of a recipe and key, or of a partition.
func (m *Model) raiseFloor(at tidemill.Mark) {
	for i, f := range m.Floors {
		if order, ok := at.Order(f); ok {
			if order > 0 {
				m.Floors[i] = at
			}
			return
		}
	}
	m.Floors = append(m.Floors, at)
}

// trim drops the oldest versions if there are more than keep. It never drops the champion, the
// former champion, the version on trial, the canary, and the newest version. trim also keeps up to mostUnjudged versions that are not
// judged yet: otherwise a version that arrives late could push out a better one before its
// judgement.
func (m *Model) trim(keep int) (dropped []int) {
	keep = min(max(keep, 2), maxKeep)
	for i := 0; i < len(m.Versions)-1 && len(m.Versions) > keep; {
		h := m.Versions[i]
		unjudged := h.State == tidemill.VersionRegistered && len(m.Versions) <= keep+mostUnjudged
		if h.Number == m.Champion || h.Number == m.Previous || unjudged || h.State == tidemill.VersionTrial || h.State == tidemill.VersionCanary {
			i++
			continue
		}
		m.raiseFloor(h.Mark)
		dropped = append(dropped, h.Number)
		m.Versions = slices.Delete(m.Versions, i, i+1)
	}
	return dropped
}

func (m *Model) propose(f Fact, d tidemill.PromotionProposed) ModelVerdict {
	if d.Turn != m.Turn || d.Basis != m.Champion {
		return void("the champion is version " + strconv.Itoa(m.Champion) + " in turn " + strconv.FormatInt(m.Turn, 10) +
			", and it was proposed against version " + strconv.Itoa(d.Basis) + " in turn " + strconv.FormatInt(d.Turn, 10))
	}
	if d.Action == tidemill.ActionUnpin {
		return m.unpin(f)
	}
	h := m.Find(d.Version)
	if h == nil {
		return void("version " + strconv.Itoa(d.Version) + " is not kept")
	}
	switch d.Action {
	case tidemill.ActionJudge:
		return m.judge(f, d, h)
	case tidemill.ActionTry:
		return m.try(f, d, h)
	case tidemill.ActionConclude:
		return m.conclude(f, d, h)
	case tidemill.ActionSettle:
		return m.settleCanary(f, d, h)
	case tidemill.ActionPromote:
		return m.promote(f, d, h)
	case tidemill.ActionRollback:
		return m.rollback(f, d, h)
	case tidemill.ActionPin:
		return m.pin(f, d, h)
	case tidemill.ActionRefuse:
		return m.refuse(f, d, h)
	}
	return void("it wants " + strconv.Quote(string(d.Action)) + ", which is nothing that can be proposed")
}

// noteAsked keeps a person's request. A request that was refused keeps its version, because its proposer, or a repeat of
// it, may propose it again.
func (m *Model) noteAsked(f Fact, d *tidemill.PromotionProposed, accepted bool) {
	people := []tidemill.Action{tidemill.ActionPromote, tidemill.ActionRollback, tidemill.ActionPin, tidemill.ActionUnpin, tidemill.ActionRefuse}
	if m.Last == 0 || !slices.Contains(people, d.Action) {
		return
	}
	is := Asked{Proposal: f.ID, Version: d.Version, Basis: d.Basis, Accepted: accepted}
	if i := slices.IndexFunc(m.Asked, func(a Asked) bool { return a.Proposal == f.ID }); i >= 0 {
		if accepted {
			m.Asked[i] = is
		}
		return
	}
	m.Asked = append(m.Asked, is)
	if len(m.Asked) > keptAsked {
		m.Asked = slices.Delete(m.Asked, 0, len(m.Asked)-keptAsked)
	}
}

// judge folds a gate's judgement in. A second judgement of a version changes nothing.
func (m *Model) judge(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch {
	case d.Judgement == nil || d.Run != h.Run:
		return void("it has no judgement, or that of another run")
	case h.State != tidemill.VersionRegistered:
		return ModelVerdict{Result: Known}
	}
	return m.settle(f, d, h)
}

// settle promotes or refuses a version by its judgement.
func (m *Model) settle(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	v := ModelVerdict{Result: Accepted, Judged: h.Number, Judgement: d.Judgement}
	switch older := m.olderThanChampion(h); {
	case !d.Judgement.Passed:
		h.State = tidemill.VersionRefused
		m.owe(f, tidemill.TypeModelRefused, h.Number, m.Champion)
	case older:
		h.State = tidemill.VersionRefused
		v.Judgement = refuseInstead(*d.Judgement, "its run began before that of the champion, version "+strconv.Itoa(m.Champion)+", so it has older data")
		m.owe(f, tidemill.TypeModelRefused, h.Number, m.Champion)
	case m.Pin != nil:
		m.await(f, h, &v, d, "version "+strconv.Itoa(m.Champion)+" is pinned")
	case d.Hold != "":
		m.await(f, h, &v, d, d.Hold)
	case d.Canary != nil && m.Champion != 0:
		m.beginCanary(f, h, *d.Canary)
	default:
		m.setChampion(f, d, h, tidemill.TypeModelPromoted, "")
	}
	return v
}

func (m *Model) await(f Fact, h *Held, v *ModelVerdict, d tidemill.PromotionProposed, why string) {
	h.State = tidemill.VersionAwaiting
	held := *d.Judgement
	held.Sentence += "; it awaits a person: " + why
	v.Judgement = &held
	m.owe(f, tidemill.TypeModelAwaiting, h.Number, m.Champion)
}

// refuseInstead turns a judgement that passed into a refusal for another reason.
func refuseInstead(j tidemill.Judgement, why string) *tidemill.Judgement {
	j.Passed = false
	j.Sentence += "; refused all the same: " + why
	return &j
}

// olderThanChampion reports whether a version's run began before the champion's, so that it
// has older data.
func (m *Model) olderThanChampion(h *Held) bool {
	c := m.Find(m.Champion)
	return c != nil && h.BeganBefore(c)
}

// BeganBefore reports whether the run of a version began before that of another. If the marks of the
// starts do not tell, their times decide.
func (h *Held) BeganBefore(o *Held) bool {
	if order, ok := h.Mark.Order(o.Mark); ok {
		return order < 0
	}
	return h.Began.Before(o.Began)
}

// promote makes a version the champion, as a person asked.
func (m *Model) promote(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch {
	case h.Number == m.Champion:
		return void("version " + strconv.Itoa(h.Number) + " is the champion")
	case m.Pin != nil:
		return void("version " + strconv.Itoa(m.Champion) + " is pinned")
	case !d.Force && (h.State == tidemill.VersionRefused || h.State == tidemill.VersionRegistered || h.State == tidemill.VersionTrial):
		return void("version " + strconv.Itoa(h.Number) + " is " + string(h.State) + ", and it was not forced")
	}
	m.setChampion(f, d, h, tidemill.TypeModelPromoted, d.Reason)
	return ModelVerdict{Result: Accepted}
}

func (m *Model) rollback(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	if h.State == tidemill.VersionCanary {
		m.refuseCanary(f)
		return ModelVerdict{Result: Accepted}
	}
	switch {
	case m.Champion == 0 || h.Number == m.Champion:
		return void("there is no champion to go back from, or it is that version")
	case m.Pin != nil:
		return void("version " + strconv.Itoa(m.Champion) + " is pinned")
	case h.State != tidemill.VersionPromoted:
		return void("version " + strconv.Itoa(h.Number) + " has never been the champion")
	}
	m.setChampion(f, d, h, tidemill.TypeModelRolledBack, d.Reason)
	return ModelVerdict{Result: Accepted}
}

func (m *Model) pin(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	if m.Pin != nil && h.Number == m.Champion {
		return ModelVerdict{Result: Known}
	}
	m.Pin = &Pin{At: f.At, By: f.By, Reason: d.Reason}
	if h.State != tidemill.VersionCanary {
		m.refuseCanary(f)
	}
	if h.Number == m.Champion {
		m.Turn++
		m.owe(f, tidemill.TypeModelPinned, h.Number, h.Number)
		return ModelVerdict{Result: Accepted}
	}
	m.setChampion(f, d, h, tidemill.TypeModelPinned, d.Reason)
	return ModelVerdict{Result: Accepted}
}

// refuse refuses a version that waits for a person, or the canary, as a person asked.
func (m *Model) refuse(f Fact, d tidemill.PromotionProposed, h *Held) ModelVerdict {
	switch h.State {
	case tidemill.VersionAwaiting:
		h.State = tidemill.VersionRefused
		m.owe(f, tidemill.TypeModelRefused, h.Number, m.Champion)
	case tidemill.VersionCanary:
		m.refuseCanary(f)
	case tidemill.VersionRefused:
		return ModelVerdict{Result: Known}
	default:
		return void("version " + strconv.Itoa(h.Number) + " is " + string(h.State) + ", and only a version that waits for a person, or a canary, can be refused")
	}
	if d.Judgement == nil {
		return ModelVerdict{Result: Accepted}
	}
	return ModelVerdict{Result: Accepted, Judged: h.Number, Judgement: d.Judgement}
}

func (m *Model) unpin(f Fact) ModelVerdict {
	if m.Pin == nil {
		return void("nothing is pinned")
	}
	m.Pin = nil
	m.Turn++
	m.owe(f, tidemill.TypeModelUnpinned, m.Champion, m.Champion)
	return ModelVerdict{Result: Accepted}
}

// setChampion makes a version the champion.
func (m *Model) setChampion(f Fact, d tidemill.PromotionProposed, h *Held, announce, reason string) {
	before := m.Champion
	h.State = tidemill.VersionPromoted
	if m.Canary != nil && m.Canary.Version == h.Number {
		m.Canary = nil
	}
	m.Champion, m.Previous, m.Unserved, m.Drifts = h.Number, before, nil, nil
	m.Turn++
	m.refuseCanary(f) // it was compared with another champion
	m.Changes = append(m.Changes, Change{At: f.At, Action: d.Action, Version: h.Number, Before: before, By: f.By, Reason: reason, Proposal: f.ID})
	if len(m.Changes) > keptChanges {
		m.Changes = slices.Delete(m.Changes, 0, len(m.Changes)-keptChanges)
	}
	m.owe(f, announce, h.Number, before)
}

func (m *Model) owe(f Fact, typ string, version, before int) {
	m.Owed = append(m.Owed, Owed{Type: typ, Proposal: f.ID, At: tidemill.Mark{Partition: f.Partition, Offset: f.Offset}, Time: f.At, By: f.By,
		Version: version, Champion: m.Champion, Before: before, Turn: m.Turn})
}

func (m *Model) announced(f Fact, d tidemill.ModelAnnounced) ModelVerdict {
	i := slices.IndexFunc(m.Owed, func(o Owed) bool { return o.Type == f.Type && o.Proposal == d.Proposal })
	if i < 0 {
		return ModelVerdict{Result: Known}
	}
	m.Owed = slices.Delete(m.Owed, i, i+1)
	return ModelVerdict{Result: Accepted}
}

// retire drops the versions that end with the key. It keeps floors, so that a late version
// of an old run is refused.
func (m *Model) retire(f Fact, d tidemill.ModelRetired) ModelVerdict {
	v := ModelVerdict{Result: Accepted}
	var left []Held
	floors := slices.Clone(m.Floors)
	for _, h := range m.Versions {
		if endsWithKey(&d, h) {
			v.Dropped = append(v.Dropped, h.Number)
			m.raiseFloor(h.Mark)
		} else {
			left = append(left, h)
		}
	}
	for _, at := range d.Marks {
		m.raiseFloor(at)
	}
	if len(left) > 0 && len(v.Dropped) == 0 {
		if slices.Equal(floors, m.Floors) {
			v.Result = Known
		}
		return v // all versions were registered after the removal
	}
	m.Versions = left
	m.Owed = slices.DeleteFunc(m.Owed, func(o Owed) bool { return m.Find(o.Version) == nil })
	m.Live = slices.DeleteFunc(m.Live, func(d tidemill.Measured) bool { return m.Find(d.Version) == nil })
	m.Turn++
	if m.Find(m.Previous) == nil {
		m.Previous = 0
	}
	if m.Canary != nil && (m.Find(m.Canary.Version) == nil || m.Find(m.Champion) == nil) {
		if h := m.Find(m.Canary.Version); h != nil {
			h.State = tidemill.VersionRefused
		}
		m.Canary = nil
	}
	if m.Find(m.Champion) == nil {
		m.Champion, m.Pin, m.Changes, m.Asked, m.Unserved, m.Drifts = 0, nil, nil, nil, nil, nil
	}
	if len(left) == 0 {
		m.Previous, m.Owed, m.Retired = 0, nil, f.At
	}
	return v
}

// endsWithKey reports whether a version ends with the key. A run without a number began before all
// runs of its recipe and key that have one.
func endsWithKey(d *tidemill.ModelRetired, h Held) bool {
	marked := false
	for _, at := range d.Marks { // one for each recipe, so a partition may have several
		if at.Making != "" && h.Mark.Making == "" {
			return true
		}
		order, ok := h.Mark.Order(at)
		if ok && order <= 0 {
			return true
		}
		marked = marked || ok
	}
	return !marked && !h.At.After(d.Asked)
}
