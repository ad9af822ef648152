// Package letters makes dead letters into objects that one can work with: what
// a letter and its receipt say, the fold of both, and selections of letters.
package letters

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Letter is the data of tidemill.event.dead-lettered. What a broker's consumer
// could not read as an event has no trigger and no attempts; nor has what a scorer
// could not score.
type Letter struct {
	broker.DeadLetter

	Trigger         string    `json:"trigger,omitempty"`
	Scorer          string    `json:"scorer,omitempty"`
	OriginalID      string    `json:"originalId,omitempty"`
	OriginalSource  string    `json:"originalSource,omitempty"`
	OriginalType    string    `json:"originalType,omitempty"`
	OriginalSubject string    `json:"originalSubject,omitempty"`
	Tried           int       `json:"tried,omitempty"`    // attempts in all; the list may leave out those in the middle
	Attempts        []Attempt `json:"attempts,omitempty"` // oldest first
	Replay          string    `json:"replay,omitempty"`   // the act that asked for this delivery; empty the first time
}

// Attempt is one try to deliver the event.
type Attempt struct {
	At     time.Time     // when it began
	Took   time.Duration // until the verdict
	Status int           // of HTTP; 0 where no answer came
	Error  string        // why the event was not delivered
	Answer string        // the first KiB of the answer's body, as text
}

// attemptJSON is an attempt as it is written: people read letters, and a
// duration in nanoseconds is no sight for them.
type attemptJSON struct {
	At     time.Time `json:"at"`
	Took   string    `json:"took"`
	Status int       `json:"status,omitempty"`
	Error  string    `json:"error,omitempty"`
	Answer string    `json:"answer,omitempty"`
}

// MarshalJSON writes how long it took as text such as 1.2s.
func (a Attempt) MarshalJSON() ([]byte, error) {
	return json.Marshal(attemptJSON{a.At.UTC(), a.Took.Round(time.Microsecond).String(), a.Status, a.Error, a.Answer})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Attempt) UnmarshalJSON(b []byte) error {
	var j attemptJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	took, err := time.ParseDuration(j.Took)
	if err != nil {
		return fmt.Errorf("took: %w", err)
	}
	*a = Attempt{j.At, took, j.Status, j.Error, j.Answer}
	return nil
}

// Read is what an event says that is a dead letter.
func Read(v *broker.View) (*Letter, error) {
	if v.Type != tidemill.TypeEventDeadLettered {
		return nil, fmt.Errorf("event %s is of type %s and no dead letter", v.ID, v.Type)
	}
	var l Letter
	if err := json.Unmarshal(v.Data, &l); err != nil {
		return nil, fmt.Errorf("read dead letter %s: %w", v.ID, err)
	}
	return &l, nil
}

// ErrNoRecord: the letter does not hold the event it tells of, because that was
// too large. It may still lie in its stream, where the letter says.
var ErrNoRecord = errors.New("the dead letter does not hold the event")

// Original is the event as it was, its key and foreign headers too. It points
// into the letter.
func (l *Letter) Original() (broker.View, error) {
	if l.Record == nil {
		return broker.View{}, ErrNoRecord
	}
	return l.Record.View()
}

// Place is where the event lay.
func (l *Letter) Place() broker.Position {
	return broker.Position{Stream: l.Stream, Partition: l.Partition, Offset: l.Offset}
}

// OfLetter tells whether an event is a letter that tells of a letter: of one that
// some trigger's subscriber was to be told of. No trigger gets these.
func OfLetter(v *broker.View) bool {
	if v.Type != tidemill.TypeEventDeadLettered {
		return false
	}
	var l struct {
		OriginalType string `json:"originalType"`
	}
	return json.Unmarshal(v.Data, &l) == nil && l.OriginalType == tidemill.TypeEventDeadLettered
}
