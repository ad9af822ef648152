package tidemill

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strconv"
)

// RolloutData is the data of all types tidemill.rollout.*. Each type uses some of the fields.
type RolloutData struct {
	Rollout string             `json:"rollout,omitempty"` // name, such as intent/3
	Number  int                `json:"number,omitempty"`  // number among the rollouts of its recipe, from 1, for .begun
	Way     *Way               `json:"way,omitempty"`     // new way, for .begun; way that all keys have now, for .ended without a rollout
	From    float64            `json:"from,omitempty"`    // share of the keys before .advanced
	Share   float64            `json:"share,omitempty"`   // share of the keys that take part, after .begun and .advanced
	Result  RolloutResult      `json:"result,omitempty"`  // for .ended
	Reason  string             `json:"reason,omitempty"`  // for .stopped: the clause that is true; for commands: the reason of the person
	Figures map[string]float64 `json:"figures,omitempty"` // evidence at the time of the decision, such as fleet.worse
	Back    int                `json:"back,omitempty"`    // number of keys that were rolled back, for .ended
}

// RolloutResult says how a rollout has ended.
type RolloutResult string

// The results.
const (
	RolloutDone    RolloutResult = "done"    // all keys have the new way
	RolloutAborted RolloutResult = "aborted" // its keys were rolled back
	RolloutAdopted RolloutResult = "adopted" // the recipe had no rollout before, so its way is that of all keys
	RolloutRemoved RolloutResult = "removed" // the recipe has no rollout any more
)

// Way is the part of a recipe that a rollout brings to the keys step by step: what runs, and on which inputs.
type Way struct {
	Hash string          `json:"hash"`
	Made json.RawMessage `json:"made"` // a config.Way
	// MAC proves that a controller of the install has written the way, because other clients may write to
	// Kafka, and the way has a command.
	MAC string `json:"mac,omitempty"`
}

// RolloutName returns the name of a rollout.
func RolloutName(recipe string, number int) string { return recipe + "/" + strconv.Itoa(number) }

// TakesPart reports whether a key is in the cohort of a recipe's rollouts. The place of a key never changes, so
// the cohort only grows with the share.
func TakesPart(recipe, key string, share float64) bool {
	sum := sha256.Sum256(appendParts(make([]byte, 0, 256), "cohort", recipe, key))
	place := float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
	return place < share
}
