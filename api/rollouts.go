package api

import "time"

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
