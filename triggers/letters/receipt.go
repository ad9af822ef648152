package letters

import (
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Action is what was done about a dead letter.
type Action string

// Outcome is how that ended.
type Outcome string

// What is done about letters, and how it ends. A replay that fails again
// resolves the letter all the same: a new one stands in its place.
const (
	Replayed Action = "replayed"
	Dropped  Action = "dropped"

	Delivered    Outcome = "delivered"
	FailedAgain  Outcome = "failed again"
	DroppedByAct Outcome = "dropped"
)

// Receipt is the data of tidemill.event.resolved: no letter leaves the list
// without one, and the first counts.
type Receipt struct {
	Letter    string  `json:"letter"`    // its id
	Partition int32   `json:"partition"` // where it lies
	Offset    int64   `json:"offset"`
	Action    Action  `json:"action"`
	Outcome   Outcome `json:"outcome"`
	Reason    string  `json:"reason,omitempty"`
	By        string  `json:"by,omitempty"`        // who asked for it
	Act       string  `json:"act,omitempty"`       // the act that asked for a replay
	NewLetter string  `json:"newLetter,omitempty"` // of a replay that failed again
}

// Resolved is the receipt for a letter. It belongs on the letter's own
// partition, so that a reader of one partition sees them in order. Its id
// follows from the letter and the act, so writing it again is writing the same.
func Resolved(names tidemill.Names, letter *broker.View, r Receipt, now time.Time) (broker.View, error) {
	r.Letter = letter.ID
	data, err := json.Marshal(r)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the receipt of dead letter %s: %w", letter.ID, err)
	}
	v := broker.View{
		ID:              tidemill.ID("receipt", letter.ID, string(r.Action), r.Act),
		Source:          names.Source(writerOf(r.Action)),
		Type:            tidemill.TypeEventResolved,
		Subject:         letter.Subject,
		Time:            now.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		DataSchema:      tidemill.Schema(tidemill.TypeEventResolved),
		Key:             letter.Key,
		Extensions:      causal(letter),
		Data:            data,
	}
	if trigger, ok := letter.Attribute(tidemill.AttrTrigger); ok && trigger != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrTrigger, Value: trigger})
	}
	if r.By != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrAuthID, Value: r.By})
	}
	return v, nil
}

// writerOf is the component that resolves letters so: a replay ends where it is
// delivered, a drop where it is asked for.
func writerOf(a Action) string {
	if a == Replayed {
		return "dispatcher"
	}
	return "gateway"
}

// ReadReceipt is what an event says that is a receipt.
func ReadReceipt(v *broker.View) (*Receipt, error) {
	if v.Type != tidemill.TypeEventResolved {
		return nil, fmt.Errorf("event %s is of type %s and no receipt", v.ID, v.Type)
	}
	var r Receipt
	if err := json.Unmarshal(v.Data, &r); err != nil {
		return nil, fmt.Errorf("read receipt %s: %w", v.ID, err)
	}
	return &r, nil
}
