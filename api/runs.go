package api

import (
	"encoding/json"
	"time"

	"tidemill.dev"
)

// Runs is the body of GET /api/v1/runs, newest first.
type Runs struct {
	Runs  []RunShown `json:"runs"`
	Next  string     `json:"next,omitempty"`  // value of after for the next page
	Total *int       `json:"total,omitempty"` // number of runs on all pages, if it is known
}

// RunShown is a run and its progress.
type RunShown struct {
	tidemill.Run
	Progress *Progress `json:"progress,omitempty"` // progress of a live run
	Waits    string    `json:"waits,omitempty"`    // reason why the run waits
	// GateMetrics are the metrics that the recipe's gate names, in the order of its clauses.
	GateMetrics []string `json:"gateMetrics,omitempty"`
}

// Progress is the newest progress that a run has reported.
type Progress struct {
	Time    time.Time          `json:"time"`
	Attempt int                `json:"attempt"`
	Step    float64            `json:"step"`
	Total   float64            `json:"total,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// RunCurves is the body of GET /api/v1/runs/{run}/curves.
type RunCurves struct {
	Run    string  `json:"run"`
	Source string  `json:"source"` // progress or metrics.jsonl
	Steps  int     `json:"steps"`  // number of steps that were read
	Curves []Curve `json:"curves"` // metrics of the gate first, in the order of its clauses, and then by name
	// Note says in words what the curves leave out, and why.
	Note string `json:"note,omitempty"`
}

// Curve is the values of one metric over the steps of a run.
type Curve struct {
	Name string `json:"name"`
	Gate bool   `json:"gate,omitempty"` // whether the recipe's gate names the metric
	// Points are steps with their values. A value is null if the trainer reported no number.
	Points [][2]*float64 `json:"points"`
}

// RunWhole is the body of GET /api/v1/runs/{run}.
type RunWhole struct {
	RunShown
	Plan   *tidemill.Plan    `json:"plan"`   // plan of the run; null before it has begun
	Events []json.RawMessage `json:"events"` // causes of the run, oldest first, as far as they are kept
	Stages *FreshStages      `json:"stages"` // stages from the newest cause to the first score, so far; null if they could not be read
}

// RunsAsked is the body of POST /api/v1/runs, which starts runs.
type RunsAsked struct {
	Recipe   string   `json:"recipe"`
	Keys     []string `json:"keys,omitempty"`
	All      bool     `json:"all,omitempty"`   // whether to start a run for every key of the recipe
	Where    string   `json:"where,omitempty"` // CESQL over subject (the key) and recipe; needs All
	Rate     float64  `json:"rate,omitempty"`  // runs per second, which sets when each is due; 0 for all at once
	Priority int      `json:"priority,omitempty"`
	// Event is the cause that the runs see, in the CloudEvents JSON format. If empty, the request
	// itself is the cause.
	Event  json.RawMessage `json:"event,omitempty"`
	After  string          `json:"after,omitempty"` // Next of the previous answer, for the keys after it
	DryRun bool            `json:"dryRun,omitempty"`
}

// HeaderIdempotencyKey identifies a request that starts or retries runs. A repeated request with
// the same key requests the same runs, not more.
const HeaderIdempotencyKey = "Idempotency-Key"

// RunsSelected is the body of POST /api/v1/runs/cancel and …/retry: either ids of runs, or a
// selection by the other fields.
type RunsSelected struct {
	Runs   []string            `json:"runs,omitempty"`
	Recipe string              `json:"recipe,omitempty"`
	Key    string              `json:"key,omitempty"`
	States []tidemill.RunState `json:"states,omitempty"`
	Since  *time.Time          `json:"since,omitempty"`
	Where  string              `json:"where,omitempty"`  // CESQL over subject, recipe, run, state, reason
	All    bool                `json:"all,omitempty"`    // whether to select every run in a possible state, instead of the other fields
	Reason string              `json:"reason,omitempty"` // reason of a cancel
	Rate   float64             `json:"rate,omitempty"`   // rate of a retry, as in RunsAsked
	After  string              `json:"after,omitempty"`  // Next of the previous answer
	First  int                 `json:"first,omitempty"`  // number of runs in previous requests, for a retry with a rate
	DryRun bool                `json:"dryRun,omitempty"`
}

// RunsDone is the body of the answers: one entry per run.
type RunsDone struct {
	Runs []RunDone `json:"runs"`
	Next string    `json:"next,omitempty"` // After of the next request, if runs are left
}

// RunDone is the result for one run.
type RunDone struct {
	Run     string `json:"run"` // id of the run; empty if none was requested
	Recipe  string `json:"recipe"`
	Key     string `json:"key"`
	Done    string `json:"done"`              // result: requested, merged, cancelled, cancelling, would …, or the reason of a refusal
	Refused bool   `json:"refused,omitempty"` // true if the request changed nothing, or a dry run would change nothing
}

// Recipes is the body of GET /api/v1/recipes.
type Recipes struct {
	Recipes []Recipe `json:"recipes"`
}

// Recipe is one recipe of the config and its state.
type Recipe struct {
	Name        string     `json:"name"`
	Team        string     `json:"team,omitempty"`
	Pool        string     `json:"pool"`
	Makes       string     `json:"makes"` // output in words
	Keys        int        `json:"keys"`
	Waiting     int        `json:"waiting"`
	Running     int        `json:"running"`
	PausedBy    string     `json:"pausedBy,omitempty"`
	PausedSince *time.Time `json:"pausedSince,omitempty"`

	When    []RecipeWhen  `json:"when,omitempty"`    // events that request a run
	Streams []string      `json:"streams,omitempty"` // streams of these events
	Inputs  []RecipeInput `json:"inputs,omitempty"`  // datasets that a run reads
	Model   string        `json:"model,omitempty"`   // template of the model that it makes
	Dataset string        `json:"dataset,omitempty"` // template of the dataset that it makes
}

// RecipeWhen is a filter of a recipe over events. If Schedule is set, only the ticks of that schedule match.
type RecipeWhen struct {
	When
	Schedule string `json:"schedule,omitempty"`
}

// RecipeInput is a dataset that the runs of a recipe read.
type RecipeInput struct {
	Name    string `json:"name"`
	Dataset string `json:"dataset"` // template of the dataset's name, such as bots/{key}
	Branch  string `json:"branch"`
}

// Pools is the body of GET /api/v1/pools.
type Pools struct {
	Pools []Pool `json:"pools"`
}

// Pool is one pool of the config and its state.
type Pool struct {
	Name        string     `json:"name"`
	Slots       int        `json:"slots"` // number of slots; 0 for no limit
	Running     int        `json:"running"`
	Waiting     int        `json:"waiting"` // number of due runs
	GPUs        int        `json:"gpus"`    // GPUs of the machine; -1 if not known
	Lingering   int        `json:"lingering,omitempty"`
	IdleSeconds float64    `json:"idleGpuSeconds,omitempty"` // GPU seconds spent in pods that linger
	PausedBy    string     `json:"pausedBy,omitempty"`
	PausedSince *time.Time `json:"pausedSince,omitempty"`
}

// Rested is the answer to a pause or a resume of a recipe or pool.
type Rested struct {
	Name     string    `json:"name"`
	Changed  bool      `json:"changed"`        // false if the state was the same before, so that nothing was written
	Done     string    `json:"done,omitempty"` // change of a rollout in words
	Position *Position `json:"position,omitempty"`
}

// HeaderAttempt is a header of the answer to GET /api/v1/runs/{run}/log: the number of the attempt
// with which the log begins. After a break, a client repeats the request with that attempt, and
// with the number of received bytes as skip.
const HeaderAttempt = "Tidemill-Attempt"
