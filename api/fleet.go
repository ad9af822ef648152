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
