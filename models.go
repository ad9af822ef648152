package tidemill

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// VersionState is how far a version has come.
type VersionState string

// The states.
const (
	VersionRegistered VersionState = "registered" // not judged yet
	VersionAwaiting   VersionState = "awaiting"   // it passed, and a person has to promote it
	VersionRefused    VersionState = "refused"
	VersionPromoted   VersionState = "promoted" // is the champion, or was
)

// Version is one making of a model as it was registered. It never changes.
type Version struct {
	Model    string             `json:"model"`
	Number   int                `json:"number"` // from 1
	At       time.Time          `json:"at"`     // registered
	Artifact string             `json:"artifact"`
	Bytes    int64              `json:"bytes"`
	Files    int                `json:"files"`
	Report   string             `json:"report"`            // tree with report.json
	Metrics  map[string]float64 `json:"metrics,omitempty"` // some of the report's; see MaxMetrics
	Judge    Judge              `json:"judge"`
	Origin
}

// MaxMetrics is how many metrics a version is registered with; the report has
// all.
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

// Action is what a proposal wants.
type Action string

// The actions. All but ActionJudge are those of people.
const (
	ActionJudge    Action = "judge" // a version was judged: promote it, or note why not
	ActionPromote  Action = "promote"
	ActionRollback Action = "rollback"
	ActionPin      Action = "pin" // the version is the champion, and stays it until unpinned
	ActionUnpin    Action = "unpin"
)

// PromotionProposed is the data of tidemill.model.promotion-proposed. It counts
// only if Turn is the model's: if the champion is still the one that it was
// judged against, or that its person saw.
type PromotionProposed struct {
	Action  Action `json:"action"`
	Version int    `json:"version"`          // of ActionUnpin: 0
	Run     string `json:"run,omitempty"`    // of ActionJudge: whose version it is
	Basis   int    `json:"basis"`            // the champion; 0 for none
	Turn    int64  `json:"turn"`             // see Model.Turn
	Force   bool   `json:"force,omitempty"`  // of ActionPromote: also one that was refused
	Reason  string `json:"reason,omitempty"` // a person's
	Hold    string `json:"hold,omitempty"`   // of ActionJudge: why it is not promoted although it passed, such as a freeze

	Judgement *Judgement `json:"judgement,omitempty"` // of ActionJudge
	Origin    *Origin    `json:"origin,omitempty"`    // of the version, for who hears of it
	Artifact  string     `json:"artifact,omitempty"`
}

// ModelAnnounced is the data of what tells of an accepted proposal:
// tidemill.model.promoted, .refused, .awaiting, .rolled-back, .pinned and
// .unpinned.
type ModelAnnounced struct {
	Proposal  string     `json:"proposal"` // id of the fact that was accepted
	Version   int        `json:"version"`
	Champion  int        `json:"champion"` // from then on; 0 for none
	Artifact  string     `json:"artifact,omitempty"`
	Before    int        `json:"before"` // the champion until then
	Turn      int64      `json:"turn"`   // from then on
	Reason    string     `json:"reason,omitempty"`
	Judgement *Judgement `json:"judgement,omitempty"`
	Origin    *Origin    `json:"origin,omitempty"`
}

// ModelRetired is the data of tidemill.model.retired: the model's key has gone.
// It ends the versions of runs that began at or before the marks, and, where
// there is none for their part of the log, those that were registered before it
// was asked for. Later ones begin the model anew, also if this is said again.
type ModelRetired struct {
	Asked  time.Time `json:"asked"`
	Reason string    `json:"reason,omitempty"`
	Marks  []Mark    `json:"marks"`
}

// ModelUnloadable is the data of tidemill.model.unloadable, which changes no
// model: a scorer cannot serve its champion.
type ModelUnloadable struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"` // the champion
	Kept    int    `json:"kept"`    // that answers instead; 0 for none
	Error   string `json:"error"`
}

// ModelKey is the record key of all facts of a model.
func ModelKey(model string) string { return model }

// VersionName names a version: intent/bot-42@7.
func VersionName(model string, number int) string { return model + "@" + strconv.Itoa(number) }

// CutVersionName takes such a name apart. What stands behind the @ is a number,
// champion, previous or newest, and empty without an @.
func CutVersionName(name string) (model, which string, err error) {
	model, which, found := strings.Cut(name, "@")
	if err := CheckDataset(model); err != nil {
		return "", "", fmt.Errorf("%q names no model: %w", name, err)
	}
	switch n, err := strconv.Atoi(which); {
	case !found, which == WhichChampion, which == WhichPrevious, which == WhichNewest:
	case err != nil || n < 1 || strconv.Itoa(n) != which:
		return "", "", fmt.Errorf("%q names no version: behind the @ stands a number, %s, %s or %s", name, WhichChampion, WhichPrevious, WhichNewest)
	}
	return model, which, nil
}

// What may stand behind the @ of a version's name instead of a number.
const (
	WhichChampion = "champion"
	WhichPrevious = "previous" // the champion before
	WhichNewest   = "newest"
)
