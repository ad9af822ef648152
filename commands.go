package tidemill

import (
	"time"
)

// CommandReason is the data of commands that carry only a reason.
type CommandReason struct {
	Reason string `json:"reason,omitempty"`
}

// Replay is a request to deliver a past range of a trigger's events again.
type Replay struct {
	ID     string    `json:"-"`
	Offset int64     `json:"-"` // offset of the command
	By     string    `json:"-"`
	At     time.Time `json:"-"`

	Trigger string             `json:"trigger"`
	Streams map[string][]Range `json:"streams"`
	Rate    float64            `json:"rate,omitempty"` // events a second in all; 0 for the trigger's own rate
	From    string             `json:"from,omitempty"` // start in the words of the request
	To      string             `json:"to,omitempty"`
}

// Range is a range of one partition's offsets: From is part of it, To is not.
type Range struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

// LetterRef is the place of a dead letter and of its event. The owner of the event's
// partition finds its letters by it.
type LetterRef struct {
	Partition int32  `json:"partition"` // partition of the dead letters
	Offset    int64  `json:"offset"`
	ID        string `json:"id"`
	Stream    string `json:"stream"`
	Source    int32  `json:"sourcePartition"`
}

// LetterReplayData is the data of tidemill.event.replay-requested.
type LetterReplayData struct {
	Trigger string      `json:"trigger"`
	Letters []LetterRef `json:"letters"`
	Rate    float64     `json:"rate,omitempty"`
	First   int         `json:"first,omitempty"`
}

// ReplayedData is the data of tidemill.trigger.replayed.
type ReplayedData struct {
	Trigger   string `json:"trigger"`
	Replay    string `json:"replay"`    // id of the command that asked for the replay
	Delivered int64  `json:"delivered"` // number of events
	Failed    int64  `json:"failed"`    // number of events that became dead letters
	// Left is the number of offsets that were not read, because the trigger was removed
	// from the config.
	Left int64 `json:"left,omitempty"`
}

// AllRecipes is the subject of a freeze that concerns every recipe.
const AllRecipes = "*"
