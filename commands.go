package tidemill

import "time"

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
	Replay    string `json:"replay"`              // id of the command that asked for the replay
	Delivered int64  `json:"delivered"`           // number of events
	Failed    int64  `json:"failed"`              // number of events that became dead letters
	Forgotten int64  `json:"forgotten,omitempty"` // number of events that were not delivered because their keys are forgotten
	// Left is the number of offsets that were not read, because the trigger was removed
	// from the config or a stream was created again.
	Left  int64  `json:"left,omitempty"`
	Error string `json:"error,omitempty"` // why the replay ended early
}

// AllRecipes is the subject of a freeze that concerns every recipe.
const AllRecipes = "*"

// KeyForgetting is the data of tidemill.key.forgetting: a key is to be forgotten, with
// everything that belongs to it.
type KeyForgetting struct {
	Reason string `json:"reason,omitempty"`
}

// KeyForgotten is the data of tidemill.key.forgotten, the receipt. It lists the things
// that were removed, and the places that still have data of the key, with their ends.
type KeyForgotten struct {
	Key        string        `json:"key"`
	Forgetting string        `json:"forgetting"` // id of the fact that asked for it
	Asked      time.Time     `json:"asked"`
	By         string        `json:"by,omitempty"`
	Reason     string        `json:"reason,omitempty"`
	Runs       []GoneRuns    `json:"runs"`
	Models     []GoneModel   `json:"models"`
	Datasets   []GoneDataset `json:"datasets"`
	Letters    int           `json:"letters"` // number of dead letters that were dropped
	Remains    []Remains     `json:"remains"`
}

// GoneRuns are the runs of one recipe that ended with the key.
type GoneRuns struct {
	Recipe string   `json:"recipe"`
	Runs   []string `json:"runs"` // ids of runs; their logs and checkpoints were removed
	At     Mark     `json:"at"`   // place of the fact that ended them; runs from before it do not count any more
}

// GoneModel is a model that was retired.
type GoneModel struct {
	Model    string `json:"model"`
	Versions int    `json:"versions"`
}

// GoneDataset is a dataset that was removed.
type GoneDataset struct {
	Dataset  string `json:"dataset"`
	Branches int    `json:"branches"`
	Commits  int    `json:"commits"`
}

// Remains is a place that still has data of a key.
type Remains struct {
	Place string `json:"place"` // name of the place, such as "stream events"
	What  string `json:"what"`
	// Until is the latest time of its removal; nil if that is not known, or it stays.
	Until *time.Time `json:"until,omitempty"`
	Ends  string     `json:"ends"` // cause of its removal, in words
}

// KeyPassedData is the data of tidemill.key.passed. The subject is the key; its events
// before these offsets are not delivered any more.
type KeyPassedData struct {
	Ends map[string][]int64 `json:"ends"` // offsets by stream, one for each partition
	// Topics has the id of each stream's topic, because a stream that is created again counts its offsets
	// again. Earlier versions have written none.
	Topics map[string]string `json:"topics,omitempty"`
}

// OwnerOf returns the key that a run or a model of a recipe belongs to; empty if it belongs to no
// key. A recipe without keys uses its name as the key of its runs, because each run needs one. That
// name is no right: a caller with a limit of keys may not see such a run, whatever its keys are.
func OwnerOf(recipe, key string) string {
	if key == recipe {
		return ""
	}
	return key
}

// Outlives reports whether an event is delivered also after its key has ended, because
// the event is about the end.
func Outlives(typ string) bool {
	return typ == TypeBotDeleted || typ == TypeKeyForgetting || typ == TypeKeyForgotten
}
