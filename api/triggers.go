package api

import (
	"encoding/json"
	"time"
)

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

// Schedules are the body of GET /api/v1/schedules.
type Schedules struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedule is one schedule of the config, and how it stands.
type Schedule struct {
	Name          string        `json:"name"`
	Cron          string        `json:"cron"`
	TimeZone      string        `json:"timeZone"`
	Missed        string        `json:"missed"`         // skip, last or all
	Keys          int           `json:"keys"`           // that it ticks for; 0 is one tick without a key
	Each          bool          `json:"each,omitempty"` // it ticks for each key that the recipes know which name it
	SpreadSeconds float64       `json:"spreadSeconds"`
	Last          *time.Time    `json:"last"` // scheduled time of the newest tick; null if there was none, or while that is not known
	Next          *time.Time    `json:"next"` // scheduled time of the next; null while it is paused
	State         ScheduleState `json:"state"`
	PausedBy      string        `json:"pausedBy,omitempty"`
	PausedSince   *time.Time    `json:"pausedSince,omitempty"`
}

// ScheduleState is whether a schedule ticks.
type ScheduleState string

// The states.
const (
	ScheduleActive ScheduleState = "active"
	SchedulePaused ScheduleState = "paused"
)

// ScheduleDone is the body of the answer to a pause or a resume.
type ScheduleDone struct {
	Changed  bool      `json:"changed"` // false: it was so before, and nothing was written
	Position *Position `json:"position,omitempty"`
	Schedule Schedule  `json:"schedule"`
}

// DeadLetters are the body of GET /api/v1/dead-letters.
type DeadLetters struct {
	DeadLetters []DeadLetter `json:"deadLetters"`      // newest first
	Total       int          `json:"total"`            // that are meant, on all pages
	Cursor      string       `json:"cursor,omitempty"` // of the next page; absent on the last
}

// DeadLetter is one dead letter: what of an event is known that could not be
// delivered.
type DeadLetter struct {
	ID         string      `json:"id"`
	State      LetterState `json:"state"`
	Written    time.Time   `json:"written"`
	Position   Position    `json:"position"` // of the letter
	Trigger    string      `json:"trigger,omitempty"`
	Group      string      `json:"group,omitempty"` // who was reading
	Reason     string      `json:"reason"`
	Type       string      `json:"type,omitempty"` // of the event
	Key        string      `json:"key,omitempty"`
	Source     Position    `json:"source"`           // of the event
	LastOffset int64       `json:"lastOffset"`       // one letter may stand for several offsets
	Tried      int         `json:"tried"`            // attempts
	Replay     string      `json:"replay,omitempty"` // the act that asked for it
}

// LetterState is how far one has come with a dead letter.
type LetterState string

// The states.
const (
	LetterOpen      LetterState = "open"
	LetterReplaying LetterState = "replaying" // it is asked for, and has not ended
	LetterResolved  LetterState = "resolved"
)

// WholeLetter is the body of GET /api/v1/dead-letters/{id}.
type WholeLetter struct {
	Letter   DeadLetter      `json:"letter"`
	Event    json.RawMessage `json:"event,omitempty"`  // in the CloudEvents JSON format
	Record   *Record         `json:"record,omitempty"` // instead: one that is no event
	Attempts []Attempt       `json:"attempts"`         // oldest first; of many, the first and the last
	Receipt  *Receipt        `json:"receipt,omitempty"`
}

// Record is a record of Kafka as it lay on the log.
type Record struct {
	Key     []byte   `json:"key"` // null is none
	Value   []byte   `json:"value"`
	Headers []Header `json:"headers"`
}

// Header is a header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Attempt is one try to deliver an event.
type Attempt struct {
	At          time.Time `json:"at"`
	TookSeconds float64   `json:"tookSeconds"`
	Status      int       `json:"status,omitempty"` // of HTTP; absent where no answer came
	Error       string    `json:"error,omitempty"`
	Answer      string    `json:"answer,omitempty"` // the first KiB of its body
}

// Receipt is how a dead letter was resolved.
type Receipt struct {
	At        time.Time `json:"at"`
	Action    string    `json:"action"`  // replayed or dropped
	Outcome   string    `json:"outcome"` // delivered, failed again or dropped
	Reason    string    `json:"reason,omitempty"`
	By        string    `json:"by,omitempty"`
	NewLetter string    `json:"newLetter,omitempty"` // of a replay that failed again
}

// LetterAsk is the body of POST /api/v1/dead-letters/replay and …/drop.
type LetterAsk struct {
	Selection LetterSelection `json:"selection"`
	Rate      float64         `json:"rate,omitempty"`   // of a replay: letters of each trigger a second; 0 is the trigger's own
	Reason    string          `json:"reason,omitempty"` // of a drop, which needs one
	DryRun    bool            `json:"dryRun,omitempty"` // only say what would be done
}

// LetterSelection says which letters are meant; what is left out excludes none.
// One that says nothing must say that it means all.
type LetterSelection struct {
	IDs     []string `json:"ids,omitempty"`
	Trigger string   `json:"trigger,omitempty"`
	Reason  string   `json:"reason,omitempty"` // that the reason contains
	Type    string   `json:"type,omitempty"`
	Key     string   `json:"key,omitempty"`
	Stream  string   `json:"stream,omitempty"`
	Since   string   `json:"since,omitempty"` // a time, or one ago such as -1h
	Until   string   `json:"until,omitempty"`
	All     bool     `json:"all,omitempty"`
}

// LetterDone is what became of a LetterAsk.
type LetterDone struct {
	Matched   int             `json:"matched"`   // letters that are meant
	Letters   []string        `json:"letters"`   // the ids of those that are replayed now, or dropped
	Replaying int             `json:"replaying"` // that are being replayed already, and are left alone
	Refused   []RefusedGroup  `json:"refused"`   // those with which it cannot be done
	Left      int             `json:"left"`      // that were too many for one request: ask again
	Commands  []LetterCommand `json:"commands"`  // what has been written for a replay
	DryRun    bool            `json:"dryRun"`
}

// RefusedGroup are letters with which something cannot be done, for one reason.
type RefusedGroup struct {
	Reason  string   `json:"reason"` // and what can be done instead
	Count   int      `json:"count"`
	Letters []string `json:"letters"` // the ids of some of them
}

// LetterCommand is an act that asks to replay letters of one trigger.
type LetterCommand struct {
	ID       string   `json:"id"`
	Position Position `json:"position"`
	Trigger  string   `json:"trigger"`
	Letters  int      `json:"letters"`
}
