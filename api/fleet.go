package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
)

// KeyState is the state of a key of a recipe.
type KeyState string

// The states, in the order of their priority. A key has the first one that applies. A key of a
// recipe that makes no models is failing, fresh or none, as its last run has ended.
const (
	KeyAwaiting KeyState = "awaiting" // the newest version waits for a person
	KeyRefused  KeyState = "refused"  // the newest version was refused
	KeyFailing  KeyState = "failing"  // a run has failed since the newest version
	KeyUnserved KeyState = "unserved" // a scorer cannot serve the champion
	KeyNone     KeyState = "none"     // there is no champion
	KeyDrifting KeyState = "drifting" // a figure of the champion's answers has drifted
	KeyStale    KeyState = "stale"    // the champion's run began too long ago
	KeyFresh    KeyState = "fresh"
)

// KeyStates returns all states in the order of their priority.
func KeyStates() []KeyState {
	return []KeyState{KeyAwaiting, KeyRefused, KeyFailing, KeyUnserved, KeyNone, KeyDrifting, KeyStale, KeyFresh}
}

// Fleet is the body of GET /api/v1/fleet.
type Fleet struct {
	Recipes []FleetRecipe `json:"recipes"` // recipes by name
	Version string        `json:"version"` // text that changes when the recipes change
}

// FleetRecipe has the numbers of keys of one recipe.
type FleetRecipe struct {
	Recipe  string           `json:"recipe"`
	Models  bool             `json:"models"` // whether the recipe makes models
	Total   int              `json:"total"`
	States  map[KeyState]int `json:"states"` // number of keys in each state
	Pinned  int              `json:"pinned"`
	Running int              `json:"running"` // number of keys with a run that is live or waits
	Ages    []FleetAge       `json:"ages"`    // ages of the champions, the youngest first
}

// FleetAge is the number of keys whose champions are of an age. The age is the time since the start of the champion's run.
type FleetAge struct {
	Within string `json:"within"` // greatest age, such as 6h; older, or none for keys without a champion
	Keys   int    `json:"keys"`
}

// FleetKeys is the body of GET /api/v1/fleet/keys.
type FleetKeys struct {
	Keys  []FleetKey `json:"keys"`
	Next  string     `json:"next,omitempty"` // value of after for the next page
	Total int        `json:"total"`          // number of keys on all pages
	Index int        `json:"index"`          // index of the first key of this page among all
}

// FleetKey is a key of a recipe.
type FleetKey struct {
	Recipe      string                `json:"recipe"`
	Key         string                `json:"key"`
	Model       string                `json:"model,omitempty"` // name of the model; empty if there is none
	State       KeyState              `json:"state"`
	Why         string                `json:"why,omitempty"` // reason for the state; empty if the key is fresh
	Champion    int                   `json:"champion"`      // version of the champion; 0 for none
	Newest      int                   `json:"newest"`        // newest version; 0 for none
	NewestState tidemill.VersionState `json:"newestState,omitempty"`
	Registered  *time.Time            `json:"registered,omitempty"` // time of the newest version's registration
	Began       *time.Time            `json:"began,omitempty"`      // start of the champion's run
	Promoted    *time.Time            `json:"promoted,omitempty"`   // time of the champion's promotion
	Pinned      bool                  `json:"pinned,omitempty"`
	Running     bool                  `json:"running,omitempty"`
	Metrics     map[string]float64    `json:"metrics,omitempty"` // metrics of the champion
}

// FleetStrip is the body of GET /api/v1/fleet/strip: all keys in their order, without their names.
type FleetStrip struct {
	Total   int        `json:"total"`
	By      string     `json:"by"` // meaning of the values: state or age
	Runs    []StripRun `json:"runs"`
	Version string     `json:"version"` // text that changes when the runs change
}

// StripRun is a number of keys in a row with the same value. Its JSON is ["fresh",812].
type StripRun struct {
	Value string
	Keys  int
}

// MarshalJSON writes an array of the value and the number. The values need no escapes.
func (r StripRun) MarshalJSON() ([]byte, error) {
	text := append(append(make([]byte, 0, 24), `["`...), r.Value...)
	return append(strconv.AppendInt(append(text, `",`...), int64(r.Keys), 10), ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *StripRun) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &[]any{&r.Value, &r.Keys}); err != nil {
		return fmt.Errorf("read a run of a strip: %w", err)
	}
	return nil
}

// History is the answer of GET /api/v1/history: the numbers of one scorer, stream, pool or trigger in the last two
// hours. A series has a point for each step, the oldest first. A point is null if it is not known.
type History struct {
	Of     string                `json:"of"`
	Every  int                   `json:"every"` // seconds between two points
	Until  time.Time             `json:"until"` // time of the last point
	Series map[string][]*float64 `json:"series"`
	Events []HistorySwap         `json:"events"` // swaps of a scorer, the oldest first
}

// HistorySwap is the time at which a version began to score.
type HistorySwap struct {
	At      time.Time `json:"at"`
	Model   string    `json:"model"`
	Before  int       `json:"before"` // version before the swap; 0 if not known
	Version int       `json:"version"`
}

// FreshStages are the seconds from an event to the first score of the version that the event led to, stage by stage.
// A stage is null if it is not known.
type FreshStages struct {
	Waiting  *float64 `json:"waiting"`  // from the newest request to the start of the attempt that succeeded
	Starting *float64 `json:"starting"` // time of the attempt that is in no other stage, such as the start of its pod
	Fetching *float64 `json:"fetching"`
	Training *float64 `json:"training"` // the command
	Judging  *float64 `json:"judging"`  // from the end of the command to the promotion
	Swapping *float64 `json:"swapping"` // from the promotion to the first score
	Total    *float64 `json:"total"`
}

// Each calls fn with each stage and its name.
func (s *FreshStages) Each(fn func(stage string, seconds *float64)) {
	fn("waiting", s.Waiting)
	fn("starting", s.Starting)
	fn("fetching", s.Fetching)
	fn("training", s.Training)
	fn("judging", s.Judging)
	fn("swapping", s.Swapping)
	fn("total", s.Total)
}

// Freshness is the answer of GET /api/v1/freshness.
type Freshness struct {
	Recipes []RecipeFreshness `json:"recipes"`
}

// RecipeFreshness is the time to a fresh model of one recipe.
type RecipeFreshness struct {
	Recipe string                  `json:"recipe"`
	Models int                     `json:"models"` // number of versions, of the newest 500
	Stages map[string]*Percentiles `json:"stages"` // null if no version has the stage
}

// Percentiles are percentiles of seconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Rollouts is the body of GET /api/v1/rollouts.
type Rollouts struct {
	Rollouts []Rollout `json:"rollouts"`
}

// RolloutState is the state of a recipe's rollout.
type RolloutState string

// The states.
const (
	RolloutNone     RolloutState = "none" // all keys have the same way
	RolloutRunning  RolloutState = "running"
	RolloutPaused   RolloutState = "paused"
	RolloutStopped  RolloutState = "stopped"  // it has stopped by itself, and waits for a person
	RolloutAborting RolloutState = "aborting" // its keys are rolled back
)

// Rollout is the state of a recipe that has a rollout.
type Rollout struct {
	Recipe  string       `json:"recipe"`
	Rollout string       `json:"rollout,omitempty"` // name of the newest rollout, such as intent/3
	State   RolloutState `json:"state"`
	Share   float64      `json:"share"`             // share of the keys that take part, from 0 to 1
	Keys    []float64    `json:"keys"`              // shares of the config
	Cohorts []int        `json:"cohorts,omitempty"` // number of known keys up to each share; nil if the caller may not read all keys, or the ledger is away
	Hold    string       `json:"hold"`
	Stop    []string     `json:"stop"`
	Began   *time.Time   `json:"began,omitempty"`
	Since   *time.Time   `json:"since,omitempty"` // begin of the present share or state
	By      string       `json:"by,omitempty"`    // person who has paused or aborted it
	Reason  string       `json:"reason,omitempty"`
	Wait    string       `json:"wait,omitempty"` // what it waits for; empty if no controller has looked lately

	Figures    map[string]float64 `json:"figures,omitempty"`    // evidence now, such as worse; at the last decision if no controller has looked lately
	RolledBack int                `json:"rolledBack,omitempty"` // number of keys that have gone back
	Remaining  int                `json:"remaining,omitempty"`  // number of keys that are still to go back
	Left       int                `json:"left,omitempty"`       // number of keys that cannot go back
	Why        map[string]string  `json:"why,omitempty"`        // by model: the reason, for some of them

	Last   string     `json:"last,omitempty"` // result of the last rollout that has ended: done, aborted or adopted
	LastAt *time.Time `json:"lastAt,omitempty"`
}

// RolloutAsked is the body of POST /api/v1/rollouts/{recipe}/pause, …/resume and …/abort.
type RolloutAsked struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"` // answer with what would happen, and change nothing
}
