package deadletters

import (
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Action is the way in which a dead letter was handled.
type Action string

// Outcome is the result of the action.
type Outcome string

// The actions and their outcomes. A replay that fails again also resolves the dead
// letter, because a new one replaces it.
const (
	Replayed Action = "replayed"
	Dropped  Action = "dropped"

	Delivered    Outcome = "delivered"
	FailedAgain  Outcome = "failed again"
	DroppedByAct Outcome = "dropped"
)

// Receipt is the data of tidemill.event.resolved. A dead letter stays in the list until
// it has a receipt; the first one counts.
type Receipt struct {
	Letter    string  `json:"letter"`    // id of the dead letter
	Partition int32   `json:"partition"` // place of the dead letter
	Offset    int64   `json:"offset"`
	Action    Action  `json:"action"`
	Outcome   Outcome `json:"outcome"`
	Reason    string  `json:"reason,omitempty"`
	By        string  `json:"by,omitempty"`        // person who asked for it
	Command   string  `json:"act,omitempty"`       // command that asked for a replay
	NewLetter string  `json:"newLetter,omitempty"` // new dead letter of a replay that failed again
}

// Resolved returns the receipt of a dead letter. It is written to the dead letter's own
// partition, so that a reader of one partition sees both in order. Its id derives from
// the dead letter and the command, so a repeated one has the same id.
func Resolved(names tidemill.Names, letter *broker.View, r Receipt, now time.Time) (broker.View, error) {
	r.Letter = letter.ID
	data, err := json.Marshal(r)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the receipt of dead letter %s: %w", letter.ID, err)
	}
	v := broker.View{
		ID:              tidemill.ID("receipt", letter.ID, string(r.Action), r.Command),
		Source:          names.Source(writerOf(letter, r.Action)),
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

// writerOf returns the component that writes the receipt: the gateway for a drop, the
// scorer or else the dispatcher for a replay.
func writerOf(letter *broker.View, a Action) string {
	scorer, _ := letter.Attribute(tidemill.AttrScorer)
	switch {
	case a != Replayed:
		return "gateway"
	case scorer != "":
		return ofScorer + scorer
	}
	return "dispatcher"
}

// ReadReceipt decodes a receipt.
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
