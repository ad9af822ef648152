package api

import (
	"encoding/json"
	"time"
)

// Triggers is the body of GET /api/v1/triggers.
type Triggers struct {
	Triggers    []Trigger `json:"triggers"`
	Dispatchers *int      `json:"dispatchers"` // number of dispatchers that deliver; null if the number is unknown
}

// Trigger is one trigger of the config and its state.
type Trigger struct {
	Name        string          `json:"name"`
	When        []When          `json:"when"`
	To          Target          `json:"to"`
	Streams     []string        `json:"streams"` // streams of its events
	Delivery    Delivery        `json:"delivery"`
	State       TriggerState    `json:"state"`
	PausedBy    string          `json:"pausedBy,omitempty"`
	PausedSince *time.Time      `json:"pausedSince,omitempty"`
	Numbers     *TriggerNumbers `json:"numbers"`         // counts; null if the counts are unknown
	DeadLetters *int            `json:"deadLetters"`     // number of open dead letters; null if not known yet
	Waits       string          `json:"waits,omitempty"` // reason why the trigger's events wait for its subscriber
	LastError   string          `json:"lastError,omitempty"`
	LastErrorAt *time.Time      `json:"lastErrorAt,omitempty"`
	Replays     []TriggerReplay `json:"replays"` // replays of past ranges that have not ended
}

// TriggerState says whether a trigger delivers.
type TriggerState string

// The states.
const (
	TriggerActive   TriggerState = "active"
	TriggerPaused   TriggerState = "paused"
	TriggerStarting TriggerState = "starting" // some dispatchers do not deliver the trigger's events yet
)

// When is a filter over events. If a trigger has several filters, one of them must match.
type When struct {
	Stream string   `json:"stream,omitempty"`
	Types  []string `json:"types"` // types of events; if empty, every type of the stream
	Where  string   `json:"where,omitempty"`
}

// Target is the subscriber of a trigger: one of the three fields is set.
type Target struct {
	URL      string `json:"url,omitempty"` // URL without parts that may contain a secret
	Service  string `json:"service,omitempty"`
	Function string `json:"function,omitempty"`
}

// Delivery limits the retries and the rate.
type Delivery struct {
	Attempts       int     `json:"attempts"`
	Backoff        string  `json:"backoff"` // backoff: constant, linear or exponential
	TimeoutSeconds float64 `json:"timeoutSeconds"`
	Order          string  `json:"order"` // order: key or none
	Concurrency    int     `json:"concurrency"`
	Rate           float64 `json:"rate"`    // attempts per second; 0 for no limit
	Replies        string  `json:"replies"` // replies: accept or ignore

	ReplyTypes []string `json:"replyTypes,omitempty"` // types of accepted replies; none if all are accepted
	ReplyKeys  string   `json:"replyKeys,omitempty"`  // keys of accepted replies: same or any; empty if replies are ignored
}

// TriggerNumbers has the counts of all dispatchers since their start, and their present events.
type TriggerNumbers struct {
	Delivered    uint64     `json:"delivered"`
	Failed       uint64     `json:"failed"` // failed attempts
	DeadLettered uint64     `json:"deadLettered"`
	Replies      uint64     `json:"replies"`
	Ignored      uint64     `json:"ignored,omitempty"` // answers with events that were ignored by default
	InFlight     int64      `json:"inFlight"`
	Parked       int64      `json:"parked"`
	OldestParked *time.Time `json:"oldestParked"` // time of the oldest parked event; null if none is parked
}

// TriggerReplay is a replay of a past range that has not ended.
type TriggerReplay struct {
	ID    string    `json:"id"`
	By    string    `json:"by,omitempty"`
	At    time.Time `json:"at"`
	From  string    `json:"from"` // start as requested
	To    string    `json:"to"`
	Rate  float64   `json:"rate"`
	Range []Stretch `json:"range"`
}

// Stretch is a range of offsets in a partition.
type Stretch struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"` // first offset after the range
}

// TriggerDone is the body of the answer to a pause or a resume.
type TriggerDone struct {
	Changed  bool      `json:"changed"` // false if the state was the same before, so that nothing was written
	Position *Position `json:"position,omitempty"`
	Trigger  Trigger   `json:"trigger"`
}

// ReplayAsk is the body of POST /api/v1/triggers/{trigger}/replay.
type ReplayAsk struct {
	From   string  `json:"from"`           // start: beginning, an offset, a time, or a duration before now such as -1h
	To     string  `json:"to,omitempty"`   // end: start's forms, or end (the default)
	Rate   float64 `json:"rate,omitempty"` // events per second in total; 0 for the trigger's own rate
	DryRun bool    `json:"dryRun,omitempty"`
}

// ReplayDone is the answer to a ReplayAsk.
type ReplayDone struct {
	ID       string    `json:"id,omitempty"` // id of the command
	Position *Position `json:"position,omitempty"`
	Range    []Stretch `json:"range"`
	Records  int64     `json:"records"` // number of records in the range, matching or not
	DryRun   bool      `json:"dryRun"`
	Preview  *Preview  `json:"preview,omitempty"` // preview of a dry run
}

// Preview counts the events that a replay would deliver, among the events that were read in time.
type Preview struct {
	Matched  int64    `json:"matched"` // number of matching events, without those of forgotten keys
	Read     int64    `json:"read"`    // number of events read
	Complete bool     `json:"complete"`
	First    []Tailed `json:"first"` // first matching events
}

// Schedules is the body of GET /api/v1/schedules.
type Schedules struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedule is one schedule of the config and its state.
type Schedule struct {
	Name          string        `json:"name"`
	Cron          string        `json:"cron"`
	TimeZone      string        `json:"timeZone"`
	Missed        string        `json:"missed"`         // missed ticks to send: skip, last or all
	Keys          int           `json:"keys"`           // number of its keys; 0 for one tick without a key
	Each          bool          `json:"each,omitempty"` // whether the schedule ticks for each key of the recipes that name it
	SpreadSeconds float64       `json:"spreadSeconds"`
	Last          *time.Time    `json:"last"` // scheduled time of the newest tick; null if there is none or its time is unknown
	Next          *time.Time    `json:"next"` // scheduled time of the next tick; null while the schedule is paused
	State         ScheduleState `json:"state"`
	PausedBy      string        `json:"pausedBy,omitempty"`
	PausedSince   *time.Time    `json:"pausedSince,omitempty"`
}

// ScheduleState says whether a schedule ticks.
type ScheduleState string

// The states.
const (
	ScheduleActive ScheduleState = "active"
	SchedulePaused ScheduleState = "paused"
)

// ScheduleDone is the body of the answer to a pause or a resume.
type ScheduleDone struct {
	Changed  bool      `json:"changed"` // false if the state was the same before, so that nothing was written
	Position *Position `json:"position,omitempty"`
	Schedule Schedule  `json:"schedule"`
}

// DeadLetters is the body of GET /api/v1/dead-letters.
type DeadLetters struct {
	DeadLetters []DeadLetter `json:"deadLetters"`      // dead letters, newest first
	Total       int          `json:"total"`            // number of selected dead letters on all pages
	Cursor      string       `json:"cursor,omitempty"` // cursor of the next page; absent on the last page
}

// DeadLetter is one dead letter: the known facts about an event that could not be delivered.
type DeadLetter struct {
	ID         string      `json:"id"`
	State      LetterState `json:"state"`
	Written    time.Time   `json:"written"`
	Position   Position    `json:"position"` // position of the dead letter
	Trigger    string      `json:"trigger,omitempty"`
	Scorer     string      `json:"scorer,omitempty"` // scorer that could not score the event
	Group      string      `json:"group,omitempty"`  // consumer group that read the event
	Reason     string      `json:"reason"`
	Type       string      `json:"type,omitempty"` // type of the event
	Key        string      `json:"key,omitempty"`
	Source     Position    `json:"source"`           // position of the event
	LastOffset int64       `json:"lastOffset"`       // last offset, if the dead letter is about several
	Tried      int         `json:"tried"`            // number of attempts
	Replay     string      `json:"replay,omitempty"` // id of the command for the letter's replay
}

// LetterState is the state of a dead letter.
type LetterState string

// The states.
const (
	LetterOpen      LetterState = "open"
	LetterReplaying LetterState = "replaying" // the letter's replay was requested and has not ended
	LetterResolved  LetterState = "resolved"
)

// WholeLetter is the body of GET /api/v1/dead-letters/{id}.
type WholeLetter struct {
	Letter   DeadLetter      `json:"letter"`
	Event    json.RawMessage `json:"event,omitempty"`  // event in the CloudEvents JSON format
	Record   *Record         `json:"record,omitempty"` // record, if the record is not an event
	Attempts []Attempt       `json:"attempts"`         // attempts, oldest first; if there are many, the first and the last
	Receipt  *Receipt        `json:"receipt,omitempty"`
}

// Record is a record of Kafka, as on the log.
type Record struct {
	Key     []byte   `json:"key"` // key; null for none
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
	Status      int       `json:"status,omitempty"` // status of HTTP; absent without an answer
	Error       string    `json:"error,omitempty"`
	Answer      string    `json:"answer,omitempty"` // first KiB of the answer's body
}

// Receipt says how a dead letter was resolved.
type Receipt struct {
	At        time.Time `json:"at"`
	Action    string    `json:"action"`  // action: replayed or dropped
	Outcome   string    `json:"outcome"` // outcome: delivered, failed again or dropped
	Reason    string    `json:"reason,omitempty"`
	By        string    `json:"by,omitempty"`
	NewLetter string    `json:"newLetter,omitempty"` // id of the new dead letter, if a replay failed again
}

// LetterAsk is the body of POST /api/v1/dead-letters/replay and …/drop.
type LetterAsk struct {
	Selection LetterSelection `json:"selection"`
	Rate      float64         `json:"rate,omitempty"`   // rate of a replay: dead letters per second and trigger; 0 for the trigger's own rate
	Reason    string          `json:"reason,omitempty"` // reason, which a drop needs
	DryRun    bool            `json:"dryRun,omitempty"` // whether only to report what would be done
}

// LetterSelection selects dead letters. An empty field excludes none. If all other fields are
// empty, All must be set.
type LetterSelection struct {
	IDs     []string `json:"ids,omitempty"`
	Trigger string   `json:"trigger,omitempty"`
	Scorer  string   `json:"scorer,omitempty"`
	Reason  string   `json:"reason,omitempty"` // text in the reason
	Type    string   `json:"type,omitempty"`
	Key     string   `json:"key,omitempty"`
	Stream  string   `json:"stream,omitempty"`
	Since   string   `json:"since,omitempty"` // time, or a duration before now such as -1h
	Until   string   `json:"until,omitempty"`
	All     bool     `json:"all,omitempty"`
}

// LetterDone is the answer to a LetterAsk.
type LetterDone struct {
	Matched   int             `json:"matched"`   // number of selected dead letters
	Letters   []string        `json:"letters"`   // ids of the dead letters that are replayed or dropped now
	Replaying int             `json:"replaying"` // number of dead letters whose replay already runs
	Refused   []RefusedGroup  `json:"refused"`   // dead letters that are refused, by reason
	Left      int             `json:"left"`      // number of dead letters that are left for another request
	Commands  []LetterCommand `json:"commands"`  // commands of a replay
	DryRun    bool            `json:"dryRun"`
}

// RefusedGroup has the dead letters that are refused for one reason.
type RefusedGroup struct {
	Reason  string   `json:"reason"` // reason and advice
	Count   int      `json:"count"`
	Letters []string `json:"letters"` // ids of some of them
}

// LetterCommand is a command to replay dead letters of one trigger.
type LetterCommand struct {
	ID       string   `json:"id"`
	Position Position `json:"position"`
	Trigger  string   `json:"trigger"`
	Letters  int      `json:"letters"`
}

// Commands is the body of GET /api/v1/commands, newest first.
type Commands struct {
	Commands []Command `json:"commands"`
	Next     string    `json:"next,omitempty"` // value of after for the next page
}

// Command is a request of a person.
type Command struct {
	ID      string    `json:"id,omitempty"` // id of the event with the command; empty for a pin of the present champion
	At      time.Time `json:"at"`
	By      string    `json:"by,omitempty"` // caller that gave it; empty if the gateway asks for no token
	Type    string    `json:"type"`         // type of the event
	Subject string    `json:"subject"`      // name of the trigger, schedule, recipe, pool or model
	Done    string    `json:"done"`         // command in words
	Reason  string    `json:"reason,omitempty"`
}
