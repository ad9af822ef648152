package tidemill

import (
	"time"
)

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
