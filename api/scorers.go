package api

import (
	"time"
)

// Scorers are the body of GET /api/v1/scorers.
type Scorers struct {
	Scorers   []Scorer `json:"scorers"`
	Processes *int     `json:"processes"` // that score now; null where that is not known
}

// Scorer is one scorer of the config, and how it stands.
type Scorer struct {
	Name      string            `json:"name"`
	From      string            `json:"from"`
	To        string            `json:"to"`
	Types     []string          `json:"types"` // none is every type that is not Tidemill's own
	Key       string            `json:"key"`
	Model     string            `json:"model"`
	Map       map[string]string `json:"map"`
	NoModel   string            `json:"noModel"` // dead-letter, drop, pass or model
	Instead   string            `json:"instead,omitempty"`
	Delivery  string            `json:"delivery"` // exactly-once or at-least-once
	Engine    string            `json:"engine"`
	Processes *int              `json:"processes"` // that have it now; null where that is not known
	Lag       *int64            `json:"lag"`       // events that are not scored yet; null where that is not known
	Numbers   *ScorerNumbers    `json:"numbers"`   // null where they are not known
	LastError string            `json:"lastError,omitempty"`
	// LastErrorAt is when that was.
	LastErrorAt *time.Time `json:"lastErrorAt,omitempty"`
}

// ScorerNumbers are what all processes together have counted since they were
// started, and how it goes now. Of the processes' latencies the longest count.
type ScorerNumbers struct {
	Events       uint64  `json:"events"` // read
	Scored       uint64  `json:"scored"`
	Passed       uint64  `json:"passed"` // of no model, or not asked for
	Dropped      uint64  `json:"dropped"`
	DeadLettered uint64  `json:"deadLettered"`
	Skipped      uint64  `json:"skipped"` // after a takeover: scored already
	Held         int64   `json:"held"`    // set aside until their models are loaded
	Aborted      uint64  `json:"aborted"` // transactions
	Rate         float64 `json:"rate"`    // events a second, lately
	P50Seconds   float64 `json:"p50Seconds"`
	P99Seconds   float64 `json:"p99Seconds"`
	Models       int     `json:"models"` // in use
	HitRate      float64 `json:"hitRate"`
}

// ScorerShown is the body of GET /api/v1/scorers/{scorer}.
type ScorerShown struct {
	Scorer
	Versions []ScorerVersion `json:"versions"` // in use, of the models that were swapped lately
	Swaps    []ScorerSwap    `json:"swaps"`    // the newest first
	Running  []ScorerProcess `json:"running"`
}

// ScorerVersion is the version of a model that scores.
type ScorerVersion struct {
	Model   string    `json:"model"`
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
}

// ScorerSwap is the first event of a partition that a version has scored.
type ScorerSwap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"` // 0 where that is not known
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// ScorerProcess is one process that has a scorer. Its memory is that of all
// scorers that it has.
type ScorerProcess struct {
	ID      string        `json:"id"`
	Host    string        `json:"host"`
	Began   time.Time     `json:"began"`
	Lag     int64         `json:"lag"` // of the partitions that it has
	Numbers ScorerNumbers `json:"numbers"`
	Loaded  int           `json:"loaded"` // models
	Bytes   int64         `json:"bytes"`
	Budget  int64         `json:"budget"`
	Evicted uint64        `json:"evicted"`
}

// ScoreDone is what the champion answers. Nothing has been published.
type ScoreDone struct {
	Scorer  string             `json:"scorer"`
	Model   string             `json:"model"`
	Version int                `json:"version"`
	Label   string             `json:"label,omitempty"`
	Score   float64            `json:"score,omitempty"`  // of the label
	Scores  map[string]float64 `json:"scores,omitempty"` // by label, or by number
	Values  []float64          `json:"values,omitempty"` // of a model that is no classifier
}

// RescoreAsk is the body of POST /api/v1/scorers/{scorer}/rescore. Resume goes on
// with one that was begun, and stands alone.
type RescoreAsk struct {
	From     string `json:"from,omitempty"`     // beginning, an offset, -1h, a time
	To       string `json:"to,omitempty"`       // the same; end
	Version  string `json:"version,omitempty"`  // champion, previous or a number
	ToStream string `json:"toStream,omitempty"` // that the answers go to
	Resume   string `json:"resume,omitempty"`   // the id of one
}

// Rescored is how far one is. The counts are of this answer alone.
type Rescored struct {
	ID       string            `json:"id"`
	Records  int64             `json:"records"` // in all
	Left     int64             `json:"left"`    // of them; ask again with resume until there are none
	Scored   int64             `json:"scored"`
	Passed   int64             `json:"passed"`   // not events that the scorer scores
	Skipped  int64             `json:"skipped"`  // scored before it was cut off
	Unscored int64             `json:"unscored"` // that no model could answer
	Reasons  map[string]string `json:"reasons"`  // why some of them were not, by position
}
