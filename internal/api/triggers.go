package api

import "time"

// Triggers are the body of GET /api/v1/triggers.
type Triggers struct {
	Triggers    []Trigger `json:"triggers"`
	Dispatchers *int      `json:"dispatchers"` // that deliver now; null where that is not known
}

// Trigger is one trigger of the config, and how it stands.
type Trigger struct {
	Name        string          `json:"name"`
	When        []When          `json:"when"`
	To          Target          `json:"to"`
	Streams     []string        `json:"streams"` // where its events live
	Delivery    Delivery        `json:"delivery"`
	State       TriggerState    `json:"state"`
	PausedBy    string          `json:"pausedBy,omitempty"`
	PausedSince *time.Time      `json:"pausedSince,omitempty"`
	Numbers     *TriggerNumbers `json:"numbers"`         // null where they are not known
	DeadLetters *int            `json:"deadLetters"`     // that are open; null where that is not known yet
	Waits       string          `json:"waits,omitempty"` // why its events wait for its subscriber to be there
	LastError   string          `json:"lastError,omitempty"`
	LastErrorAt *time.Time      `json:"lastErrorAt,omitempty"`
	Replays     []TriggerReplay `json:"replays"` // of past ranges, that have not ended
}

// TriggerState is whether a trigger delivers.
type TriggerState string

// The states.
const (
	TriggerActive   TriggerState = "active"
	TriggerPaused   TriggerState = "paused"
	TriggerStarting TriggerState = "starting" // not all dispatchers have it yet
)

// When is a filter over events; one of several has to match.
type When struct {
	Stream string   `json:"stream,omitempty"`
	Types  []string `json:"types"` // none is every type of the stream
	Where  string   `json:"where,omitempty"`
}

// Target is who gets a trigger's events: one of the three.
type Target struct {
	URL      string `json:"url,omitempty"` // without what may hold a secret
	Service  string `json:"service,omitempty"`
	Function string `json:"function,omitempty"`
}

// Delivery is how hard an event's delivery is tried, and how fast.
type Delivery struct {
	Attempts       int     `json:"attempts"`
	Backoff        string  `json:"backoff"` // constant, linear or exponential
	TimeoutSeconds float64 `json:"timeoutSeconds"`
	Order          string  `json:"order"` // key or none
	Concurrency    int     `json:"concurrency"`
	Rate           float64 `json:"rate"`    // attempts a second; 0 is no bound
	Replies        string  `json:"replies"` // accept or ignore
}

// TriggerNumbers are what all dispatchers together have counted since they were
// started, and what they hold now.
type TriggerNumbers struct {
	Delivered    uint64     `json:"delivered"`
	Failed       uint64     `json:"failed"` // attempts
	DeadLettered uint64     `json:"deadLettered"`
	Replies      uint64     `json:"replies"`
	InFlight     int64      `json:"inFlight"`
	Parked       int64      `json:"parked"`
	OldestParked *time.Time `json:"oldestParked"` // null if nothing is
}

// TriggerReplay is a replay of a past range that has not ended.
type TriggerReplay struct {
	ID    string    `json:"id"`
	By    string    `json:"by,omitempty"`
	At    time.Time `json:"at"`
	From  string    `json:"from"` // as it was asked for
	To    string    `json:"to"`
	Rate  float64   `json:"rate"`
	Range []Stretch `json:"range"`
}

// Stretch is a piece of a stream's partition.
type Stretch struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"` // is no part of it
}

// TriggerDone is the body of the answer to a pause or a resume.
type TriggerDone struct {
	Changed  bool      `json:"changed"` // false: it was so before, and nothing was written
	Position *Position `json:"position,omitempty"`
	Trigger  Trigger   `json:"trigger"`
}

// ReplayAsk is the body of POST /api/v1/triggers/{trigger}/replay.
type ReplayAsk struct {
	From   string  `json:"from"`           // beginning, an offset, a time, or one ago such as -1h
	To     string  `json:"to,omitempty"`   // the same, or end, which it is if left out
	Rate   float64 `json:"rate,omitempty"` // events a second, in all; 0 is the trigger's own
	DryRun bool    `json:"dryRun,omitempty"`
}

// ReplayDone is what became of a ReplayAsk.
type ReplayDone struct {
	ID       string    `json:"id,omitempty"` // of the act
	Position *Position `json:"position,omitempty"`
	Range    []Stretch `json:"range"`
	Records  int64     `json:"records"` // in the range, whether they match or not
	DryRun   bool      `json:"dryRun"`
	Preview  *Preview  `json:"preview,omitempty"` // of a dry run
}

// Preview is what a replay would deliver, as far as there was time to look.
type Preview struct {
	Matched  int64    `json:"matched"` // events that match
	Read     int64    `json:"read"`    // events
	Complete bool     `json:"complete"`
	First    []Tailed `json:"first"` // of those that match
}
