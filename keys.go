package tidemill

import (
	"time"
)

// KeyForgetting is the data of tidemill.key.forgetting: a key shall be forgotten
// with all that belongs to it.
type KeyForgetting struct {
	Reason string `json:"reason,omitempty"`
}

// KeyForgotten is the data of tidemill.key.forgotten, the receipt: what was taken
// away, and where something of the key can still be found until when.
type KeyForgotten struct {
	Key        string        `json:"key"`
	Forgetting string        `json:"forgetting"` // id of the fact that asked
	Asked      time.Time     `json:"asked"`
	By         string        `json:"by,omitempty"`
	Reason     string        `json:"reason,omitempty"`
	Runs       []GoneRuns    `json:"runs"`
	Models     []GoneModel   `json:"models"`
	Datasets   []GoneDataset `json:"datasets"`
	Letters    int           `json:"letters"` // dead ones that were dropped
	Remains    []Remains     `json:"remains"`
}

// GoneRuns are those of one recipe that ended with the key.
type GoneRuns struct {
	Recipe string   `json:"recipe"`
	Runs   []string `json:"runs"` // whose logs and checkpoints were removed
	At     Mark     `json:"at"`   // the fact that ended them: none that began before it counts any more
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

// Remains is a place where something of a key is still held.
type Remains struct {
	Place string `json:"place"` // such as stream events
	What  string `json:"what"`
	// Until is when it is gone at the latest; nil where that is not known, or
	// never comes.
	Until *time.Time `json:"until,omitempty"`
	Ends  string     `json:"ends"` // by what it goes, in words
}

// KeyPassedData is the data of tidemill.key.passed: events of the key, its
// subject, that lie before these places are not delivered any more.
type KeyPassedData struct {
	Ends map[string][]int64 `json:"ends"` // of each stream's partitions
}

// Outlives reports whether an event is delivered also after its key has ended, because
// the event is about the end.
func Outlives(typ string) bool {
	return typ == TypeBotDeleted || typ == TypeKeyForgetting || typ == TypeKeyForgotten
}
