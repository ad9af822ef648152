package api

import (
	"encoding/json"
	"time"

	"tidemill.dev"
)

// Runs are the body of GET /api/v1/runs: newest first.
type Runs struct {
	Runs []RunShown `json:"runs"`
	Next string     `json:"next,omitempty"` // the after of the next page
}

// RunShown is a run, and how far it is.
type RunShown struct {
	tidemill.Run
	Progress *Progress `json:"progress,omitempty"` // of a live run
	Waits    string    `json:"waits,omitempty"`    // what a run waits for, in words
}

// Progress is the newest that a run has told.
type Progress struct {
	Time    time.Time          `json:"time"`
	Attempt int                `json:"attempt"`
	Step    float64            `json:"step"`
	Total   float64            `json:"total,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// RunWhole is the body of GET /api/v1/runs/{run}.
type RunWhole struct {
	RunShown
	Plan   *tidemill.Plan    `json:"plan"`   // null before it has begun
	Events []json.RawMessage `json:"events"` // that asked for it, oldest first, as far as they are kept
}

// RunsAsked is the body of POST /api/v1/runs, which starts runs.
type RunsAsked struct {
	Recipe   string   `json:"recipe"`
	Keys     []string `json:"keys,omitempty"`
	All      bool     `json:"all,omitempty"`   // every key that the recipe knows
	Where    string   `json:"where,omitempty"` // CESQL over subject (the key) and recipe, with all
	Rate     float64  `json:"rate,omitempty"`  // runs a second, by when each is due; 0 is all at once
	Priority int      `json:"priority,omitempty"`
	// Event is what the runs see as their cause, in the CloudEvents JSON format,
	// instead of the wish itself.
	Event  json.RawMessage `json:"event,omitempty"`
	After  string          `json:"after,omitempty"` // an answer's Next: the same is asked for the keys behind it
	DryRun bool            `json:"dryRun,omitempty"`
}

// HeaderIdempotencyKey names a request that starts or retries runs: sent again
// under the same name it asks for the same runs, and not for others.
const HeaderIdempotencyKey = "Idempotency-Key"

// RunsSelected is the body of POST /api/v1/runs/cancel and …/retry: either runs
// by their ids, or all that the others select.
type RunsSelected struct {
	Runs   []string            `json:"runs,omitempty"`
	Recipe string              `json:"recipe,omitempty"`
	Key    string              `json:"key,omitempty"`
	States []tidemill.RunState `json:"states,omitempty"`
	Since  *time.Time          `json:"since,omitempty"`
	Where  string              `json:"where,omitempty"`  // CESQL over subject, recipe, run, state, reason
	All    bool                `json:"all,omitempty"`    // instead of the others: every run in the states that can be meant
	Reason string              `json:"reason,omitempty"` // of a cancel
	Rate   float64             `json:"rate,omitempty"`   // of a retry, as in RunsAsked
	After  string              `json:"after,omitempty"`  // an answer's Next
	First  int                 `json:"first,omitempty"`  // of a retry with a rate: how many runs were asked for before
	DryRun bool                `json:"dryRun,omitempty"`
}

// RunsDone is the body of the answers: a line a run.
type RunsDone struct {
	Runs []RunDone `json:"runs"`
	Next string    `json:"next,omitempty"` // there was more than one request does: ask again with it as After
}

// RunDone is what became of one.
type RunDone struct {
	Run     string `json:"run"` // empty where none was asked for
	Recipe  string `json:"recipe"`
	Key     string `json:"key"`
	Done    string `json:"done"`              // requested, absorbed, cancelled, cancelling, would …, or why not
	Refused bool   `json:"refused,omitempty"` // nothing was, or would be, done
}

// Recipes are the body of GET /api/v1/recipes.
type Recipes struct {
	Recipes []Recipe `json:"recipes"`
}

// Recipe is one recipe of the config, and how it stands.
type Recipe struct {
	Name        string     `json:"name"`
	Team        string     `json:"team,omitempty"`
	Pool        string     `json:"pool"`
	Makes       string     `json:"makes"` // in words
	Keys        int        `json:"keys"`
	Waiting     int        `json:"waiting"`
	Running     int        `json:"running"`
	PausedBy    string     `json:"pausedBy,omitempty"`
	PausedSince *time.Time `json:"pausedSince,omitempty"`
}

// Pools are the body of GET /api/v1/pools.
type Pools struct {
	Pools []Pool `json:"pools"`
}

// Pool is one pool of the config, and how it stands.
type Pool struct {
	Name        string     `json:"name"`
	Slots       int        `json:"slots"` // 0 is no bound
	Running     int        `json:"running"`
	Waiting     int        `json:"waiting"` // whose time has come
	GPUs        int        `json:"gpus"`    // that the machine has; -1 where that is not known
	Lingering   int        `json:"lingering,omitempty"`
	IdleSeconds float64    `json:"idleGpuSeconds,omitempty"` // that GPUs have waited in pods that linger
	PausedBy    string     `json:"pausedBy,omitempty"`
	PausedSince *time.Time `json:"pausedSince,omitempty"`
}

// Rested is the body of the answer to a pause or a resume of a recipe or pool.
type Rested struct {
	Name     string    `json:"name"`
	Changed  bool      `json:"changed"` // false: it was so before, and nothing was written
	Position *Position `json:"position,omitempty"`
}

// HeaderAttempt is a header of the answer to GET /api/v1/runs/{run}/log: the
// number of the attempt whose log it begins with. Whoever was cut off comes back
// with that attempt, and with skip, the bytes that have come.
const HeaderAttempt = "Tidemill-Attempt"
