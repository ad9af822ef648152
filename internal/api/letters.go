package api

import (
	"encoding/json"
	"time"
)

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
	Matched   int            `json:"matched"`   // letters that are meant
	Letters   []string       `json:"letters"`   // the ids of those that are replayed now, or dropped
	Replaying int            `json:"replaying"` // that are being replayed already, and are left alone
	Refused   []RefusedGroup `json:"refused"`   // those with which it cannot be done
	Left      int            `json:"left"`      // that were too many for one request: ask again
	Acts      []LetterAct    `json:"acts"`      // what has been written for a replay
	DryRun    bool           `json:"dryRun"`
}

// RefusedGroup are letters with which something cannot be done, for one reason.
type RefusedGroup struct {
	Reason  string   `json:"reason"` // and what can be done instead
	Count   int      `json:"count"`
	Letters []string `json:"letters"` // the ids of some of them
}

// LetterAct is an act that asks to replay letters of one trigger.
type LetterAct struct {
	ID       string   `json:"id"`
	Position Position `json:"position"`
	Trigger  string   `json:"trigger"`
	Letters  int      `json:"letters"`
}
