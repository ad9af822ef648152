package tidemill

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// VersionState is the state of a version.
type VersionState string

// The states.
const (
	VersionRegistered VersionState = "registered" // not judged yet
	VersionAwaiting   VersionState = "awaiting"   // passed its gate; a person has to promote it
	VersionTrial      VersionState = "on-trial"   // passed its gate; answers the stream beside the champion
	VersionCanary     VersionState = "canary"     // passed its gate; answers a share of the events beside the champion
	VersionRefused    VersionState = "refused"
	VersionPromoted   VersionState = "promoted" // is the champion, or was
)

// Version is one version of a model as it was registered. It never changes.
type Version struct {
	Model    string             `json:"model"`
	Number   int                `json:"number"` // number, from 1
	At       time.Time          `json:"at"`     // time of the registration
	Artifact string             `json:"artifact"`
	Bytes    int64              `json:"bytes"`
	Files    int                `json:"files"`
	Report   string             `json:"report"`            // tree with report.json
	Metrics  map[string]float64 `json:"metrics,omitempty"` // some metrics of the report; see MaxMetrics
	Judge    Judge              `json:"judge"`
	Origin
}

// MaxMetrics is the number of metrics that a version is registered with. The report has
// all of them.
const MaxMetrics = 32

// ModelRegistered is the data of tidemill.model.registered.
type ModelRegistered struct {
	Artifact string             `json:"artifact"`
	Bytes    int64              `json:"bytes"`
	Files    int                `json:"files"`
	Report   string             `json:"report"`
	Metrics  map[string]float64 `json:"metrics,omitempty"`
	Judge    Judge              `json:"judge"`
	Origin
}

// Action is the change that a proposal asks for.
type Action string

// The actions.
const (
	ActionJudge    Action = "judge"    // a version was judged: promote it, or note why it is not promoted
	ActionTry      Action = "try"      // a version has passed its gate: its trial begins
	ActionConclude Action = "conclude" // the trial of a version has ended: promote it, or note why it is not promoted
	ActionPromote  Action = "promote"
	ActionSettle   Action = "settle" // the canary of a model is judged: promote it, or refuse it
	ActionRollback Action = "rollback"
	ActionPin      Action = "pin" // the version is the champion until it is unpinned
	ActionUnpin    Action = "unpin"
	ActionRefuse   Action = "refuse" // a person refuses a version that waits for a person, or the canary
)

// OfPeople reports whether a person proposes it.
func (a Action) OfPeople() bool {
	return a != ActionJudge && a != ActionTry && a != ActionConclude && a != ActionSettle
}

// PromotionProposed is the data of tidemill.model.promotion-proposed. It counts only if
// Turn is still the model's turn: then the champion is the one that the version was judged
// against, or that the person saw.
type PromotionProposed struct {
	Action  Action `json:"action"`
	Version int    `json:"version"`          // 0 for ActionUnpin
	Run     string `json:"run,omitempty"`    // for ActionJudge, ActionTry and ActionConclude: the run that made the version
	Basis   int    `json:"basis"`            // version of the champion; 0 for none
	Turn    int64  `json:"turn"`             // see Model.Turn
	Force   bool   `json:"force,omitempty"`  // for ActionPromote: promote even a version that was refused or not judged
	Reason  string `json:"reason,omitempty"` // reason that a person gave
	Hold    string `json:"hold,omitempty"`   // for ActionJudge and ActionConclude: why a version that passed is not promoted, such as a freeze

	Judgement *Judgement `json:"judgement,omitempty"` // for ActionJudge, ActionTry, ActionConclude, ActionSettle and ActionRefuse
	Canary    *Canary    `json:"canary,omitempty"`    // for ActionJudge and ActionConclude: a version that passed becomes a canary, if there is a champion
	Origin    *Origin    `json:"origin,omitempty"`    // origin of the version, for subscribers
	Artifact  string     `json:"artifact,omitempty"`
}

// ModelAnnounced is the data of events that announce an accepted proposal:
// tidemill.model.promoted, .refused, .awaiting, .rolled-back, .pinned and .unpinned, and tidemill.trial.begun.
type ModelAnnounced struct {
	Proposal  string     `json:"proposal"` // id of the fact that was accepted
	Version   int        `json:"version"`
	Champion  int        `json:"champion"` // champion after the proposal; 0 for none
	Artifact  string     `json:"artifact,omitempty"`
	Before    int        `json:"before"` // champion before the proposal
	Turn      int64      `json:"turn"`   // turn after the proposal
	Reason    string     `json:"reason,omitempty"`
	Judgement *Judgement `json:"judgement,omitempty"`
	Origin    *Origin    `json:"origin,omitempty"`
}

// ModelRetired is the data of tidemill.model.retired: the model's key is removed. It ends
// the versions whose runs began at or before a mark. Where no mark tells, it ends the versions that were registered before the request. Later versions
// begin the model again, and a repetition of this fact does not end them.
type ModelRetired struct {
	Asked  time.Time `json:"asked"`
	Reason string    `json:"reason,omitempty"`
	Marks  []Mark    `json:"marks"`
}

// ModelUnloadable is the data of tidemill.model.unloadable: a scorer cannot serve the
// champion of a model, or its canary. It changes no champion.
type ModelUnloadable struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"` // version of the champion or canary
	Kept    int    `json:"kept"`    // version that answers instead; 0 for none
	Error   string `json:"error"`
}

// ModelLoaded is the data of tidemill.model.loaded: a scorer serves the champion or canary that it could not
// load before.
type ModelLoaded struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"` // version of the champion or canary
}

// ModelKey returns the record key of all facts of a model.
func ModelKey(model string) string { return model }

// VersionName returns the name of a version, such as intent/bot-42@7.
func VersionName(model string, number int) string { return model + "@" + strconv.Itoa(number) }

// CutVersionName splits a version's name at its last @ into the model and the part after it, which is a number, champion,
// previous or newest. The name of a model may have an @ too, as in intent/ana@example.com: then the part is empty. It is
// also empty in a name of WholeName.
func CutVersionName(name string) (model, which string, err error) {
	model, which, found := cutLast(name, func(text string) bool { return text == "" || CheckWhich(text) == nil || isDecimal(text) })
	if err := CheckDataset(model); err != nil {
		return "", "", fmt.Errorf("%q names no model: %w", name, err)
	}
	if found && (which != "" || WholeName(model) != name) {
		if err := CheckWhich(which); err != nil {
			return "", "", fmt.Errorf("%q names no version: %w after the @", name, err)
		}
	}
	return model, which, nil
}

// WholeName returns a name that CutVersionName takes for the whole model: bot@3@ for the model bot@3.
func WholeName(model string) string {
	if cut, _, _ := CutVersionName(model); cut != model && strings.Contains(model, "@") {
		return model + "@"
	}
	return model
}

// CheckWhich returns an error if a text does not say which version of a model is meant.
func CheckWhich(text string) error {
	switch n, err := strconv.Atoi(text); {
	case text == WhichChampion, text == WhichPrevious, text == WhichNewest:
	case err != nil || n < 1 || strconv.Itoa(n) != text:
		return fmt.Errorf("write a number, %s, %s or %s", WhichChampion, WhichPrevious, WhichNewest)
	}
	return nil
}

// Words that may follow the @ of a version's name instead of a number.
const (
	WhichChampion = "champion"
	WhichPrevious = "previous" // the champion before the present one
	WhichNewest   = "newest"
)

// ScorerSwappedData is the data of tidemill.scorer.swapped: a version of a model scores a
// partition from an offset on. Of several such events, the one with the lowest offset counts.
type ScorerSwappedData struct {
	Scorer    string `json:"scorer"`
	Stream    string `json:"stream"` // stream of the events that are scored
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Before    int    `json:"before,omitempty"` // version that scored until then, if it is known
}
