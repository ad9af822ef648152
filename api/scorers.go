package api

import (
	"encoding/json"
	"time"

	"tidemill.dev"
)

// Scorers is the body of GET /api/v1/scorers.
type Scorers struct {
	Scorers   []Scorer `json:"scorers"`
	Processes *int     `json:"processes"` // number of processes that score; null if the number is unknown
}

// Scorer is one scorer of the config and its state.
type Scorer struct {
	Name  string            `json:"name"`
	From  string            `json:"from"`
	To    string            `json:"to"`
	Types []string          `json:"types"` // types of events; if empty, every type except Tidemill's
	Key   string            `json:"key"`
	Model string            `json:"model"`
	Map   map[string]string `json:"map"`
	// Defaults has the values of inputs whose value may be missing or null.
	Defaults  map[string]json.RawMessage `json:"defaults,omitempty"`
	NoModel   string                     `json:"noModel"` // action without a model: dead-letter, drop, pass or model
	Instead   string                     `json:"instead,omitempty"`
	Delivery  string                     `json:"delivery"` // delivery: exactly-once or at-least-once
	Engine    string                     `json:"engine"`
	Labels    *ScorerLabels              `json:"labels,omitempty"` // nil if no truth about the answers arrives
	Processes *int                       `json:"processes"`        // number of processes with this scorer; null if the number is unknown
	Lag       *int64                     `json:"lag"`              // number of events that are not scored yet; null if the number is unknown
	Numbers   *ScorerNumbers             `json:"numbers"`          // counts; null if the counts are unknown
	LastError string                     `json:"lastError,omitempty"`
	// LastErrorAt is the time of LastError.
	LastErrorAt *time.Time `json:"lastErrorAt,omitempty"`
}

// ScorerNumbers has the counts of all processes since their start, and their present rates. The
// latencies are the highest of all processes.
type ScorerNumbers struct {
	Events       uint64  `json:"events"` // events read
	Scored       uint64  `json:"scored"`
	Passed       uint64  `json:"passed"` // events without a model, or of other types
	Dropped      uint64  `json:"dropped"`
	DeadLettered uint64  `json:"deadLettered"`
	Skipped      uint64  `json:"skipped"` // events that were scored before a takeover
	Held         int64   `json:"held"`    // events that wait for their models
	Aborted      uint64  `json:"aborted"` // aborted transactions
	Rate         float64 `json:"rate"`    // recent events per second
	P50Seconds   float64 `json:"p50Seconds"`
	P99Seconds   float64 `json:"p99Seconds"`
	Models       int     `json:"models"` // models in use
	HitRate      float64 `json:"hitRate"`
}

// ScorerShown is the body of GET /api/v1/scorers/{scorer}.
type ScorerShown struct {
	Scorer
	Versions []ScorerVersion `json:"versions"` // versions in use, of recently swapped models
	Swaps    []ScorerSwap    `json:"swaps"`    // swaps, newest first
	Running  []ScorerProcess `json:"running"`
}

// ScorerVersion is a version of a model that scores.
type ScorerVersion struct {
	Model   string    `json:"model"`
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
}

// ScorerSwap is the first event that a version has scored in a partition.
type ScorerSwap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"` // version before the swap; 0 if not known
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// ScorerProcess is one process of a scorer. Its memory includes all scorers of the process.
type ScorerProcess struct {
	ID      string        `json:"id"`
	Host    string        `json:"host"`
	Began   time.Time     `json:"began"`
	Lag     int64         `json:"lag"` // lag of its partitions
	Numbers ScorerNumbers `json:"numbers"`
	Loaded  int           `json:"loaded"` // loaded models
	Bytes   int64         `json:"bytes"`
	Budget  int64         `json:"budget"`
	Evicted uint64        `json:"evicted"`
}

// ScoreDone is the champion's answer to one event. Nothing has been published.
type ScoreDone struct {
	Scorer  string             `json:"scorer"`
	Model   string             `json:"model"`
	Version int                `json:"version"`
	Label   string             `json:"label,omitempty"`
	Score   float64            `json:"score,omitempty"`  // score of the label
	Scores  map[string]float64 `json:"scores,omitempty"` // scores by label, or by number
	Values  []float64          `json:"values,omitempty"` // outputs of a model that does not classify
}

// RescoreAsk is the body of POST /api/v1/scorers/{scorer}/rescore. Resume continues a rescoring,
// without the other fields.
type RescoreAsk struct {
	From     string `json:"from,omitempty"`     // start: beginning, an offset, a time, or -1h
	To       string `json:"to,omitempty"`       // end: start's forms, or end
	Version  string `json:"version,omitempty"`  // version: champion, previous or a number
	ToStream string `json:"toStream,omitempty"` // stream of the answers
	Resume   string `json:"resume,omitempty"`   // id of a rescoring
}

// ID returns the id of the rescoring that this request for a new one begins, if it has an Idempotency-Key. A client knows
// the id so even if it gets no answer.
func (a *RescoreAsk) ID(scorer, key string) string {
	return tidemill.ID("rescore asked for", scorer, a.From, a.To, a.Version, a.ToStream, key)[:12]
}

// Rescored is the progress of a rescoring. The counts are those of this request only.
type Rescored struct {
	ID       string            `json:"id"`
	Records  int64             `json:"records"` // number of records in the range
	Left     int64             `json:"left"`    // records left; the caller repeats the request with Resume until Left is 0
	Scored   int64             `json:"scored"`
	Passed   int64             `json:"passed"`            // events that the scorer does not score
	Skipped  int64             `json:"skipped"`           // events that were scored before an interruption
	Unscored int64             `json:"unscored"`          // events that no model could score
	Deleted  int64             `json:"deleted,omitempty"` // records that retention deleted before they were read
	Reasons  map[string]string `json:"reasons"`           // reasons for some of the events without a score, by position
	// Since is the time of the first event that is there, in the answer to a new request that asks for earlier ones. Retention may
	// have deleted such events. It is the latest time of all partitions; nil if none is deleted.
	Since *time.Time `json:"since,omitempty"`
}

// ScorerLabels says where the truth about a scorer's answers arrives, and how a label finds its answer.
type ScorerLabels struct {
	From        string   `json:"from"`
	Types       []string `json:"types"`            // types of events; if empty, every type except Tidemill's
	ID          string   `json:"id,omitempty"`     // place of the answered event's id in a label
	Source      string   `json:"source,omitempty"` // place of its source in a label
	Place       string   `json:"place,omitempty"`  // place, in a label, of the answer's id
	Field       string   `json:"field,omitempty"`  // place of a value in the answered event
	LabelField  string   `json:"labelField,omitempty"`
	Truth       string   `json:"truth"`
	WaitSeconds float64  `json:"waitSeconds"`
	Missing     string   `json:"missing,omitempty"` // truth of an answer without a label after that time
	Group       string   `json:"group,omitempty"`
}

// LabelAsk is the body of POST /api/v1/scorers/{scorer}/labels.
type LabelAsk struct {
	Event  string `json:"event"`            // place of the answered event, such as messages/3/17, or its id
	Source string `json:"source,omitempty"` // source of the event, with its id
	Truth  string `json:"truth"`            // label that is true
	Reason string `json:"reason,omitempty"`
}

// LabelDone is the label, as it was published.
type LabelDone struct {
	Scorer string   `json:"scorer"`
	Truth  string   `json:"truth"`
	ID     string   `json:"id"`            // id of the label's event
	At     Position `json:"at"`            // its position
	Key    string   `json:"key,omitempty"` // key of the answered event, if the request gave its place
	// Until is the time until which the label waits for the answer, if there is none yet.
	Until time.Time `json:"until"`
}
