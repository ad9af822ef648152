package tidemill

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strconv"
	"time"
)

// TrialTerms say how a candidate that has passed its gate is tried on the stream of a scorer, by the config
// that applied when its run began.
type TrialTerms struct {
	Scorer  string        `json:"scorer,omitempty"` // scorer; empty means the only scorer that serves the model
	Last    time.Duration `json:"last"`             // how much of the stream before the trial's beginning the candidate answers too
	Until   time.Duration `json:"until"`            // time after which the trial is given up
	Pass    []string      `json:"pass"`             // clauses in CEL that must all hold for a promotion
	Refuse  []string      `json:"refuse,omitempty"`
	AtLeast int           `json:"atLeast"` // number of events before a verdict: labelled events, or answered ones if no clause needs labels
	Alpha   float64       `json:"alpha"`   // greatest share of wrong promotions among all promotions by trials of the recipe
}

// TrialOutcome says how a trial has ended.
type TrialOutcome string

// The outcomes.
const (
	TrialPassed  TrialOutcome = "passed"
	TrialRefused TrialOutcome = "refused"
	TrialGivenUp TrialOutcome = "given up" // no verdict in time
)

// TrialVerdict is the end of a trial with its evidence. Apart from P99, the evidence is a function of the
// records in Read and of the candidate's files, so that it can be computed again.
type TrialVerdict struct {
	Scorer   string       `json:"scorer"`
	Recipe   string       `json:"recipe"`
	Champion int          `json:"champion"` // version whose answers were compared
	Began    time.Time    `json:"began"`
	Ended    time.Time    `json:"ended"`
	Outcome  TrialOutcome `json:"outcome"`
	Terms    TrialTerms   `json:"terms"`
	Read     []TrialRange `json:"read"`              // records with the evidence, sorted by stream and partition
	Sampled  int          `json:"sampled,omitempty"` // one of so many events counts, because there were too many; 0 means that all count
	TrialCounts
	Lead   Estimate    `json:"lead"` // accuracy of the candidate minus the champion's, with bounds that are valid at every look
	P99    float64     `json:"p99"`  // milliseconds for one answer; measured, so it differs when it is computed again
	Budget TrialBudget `json:"budget"`
	Digest string      `json:"digest"`          // SHA-256 over all pairs of answers with their truth
	Steps  []TrialStep `json:"steps,omitempty"` // counts over the labelled events, at most TrialSteps
}

// TrialSteps is the greatest number of steps of a trial.
const TrialSteps = 20

// TrialStep has the counts of a trial after some of its labelled events. A drawing of the lead needs only some of them.
type TrialStep struct {
	Labelled int   `json:"labelled"` // number of labelled events up to here
	Won      int64 `json:"won"`      // votes where only the candidate is right
	Lost     int64 `json:"lost"`     // votes where only the champion is right
	Tied     int64 `json:"tied"`     // votes where both are right or both are wrong
}

// TrialCounts counts the events of a trial.
type TrialCounts struct {
	Answered int `json:"answered"` // events that the champion has answered and the candidate has read
	Agreed   int `json:"agreed"`   // events to which both gave the same label
	Labelled int `json:"labelled"` // events whose truth is known
	Wins     int `json:"wins"`     // labelled events on which only the candidate is right
	Losses   int `json:"losses"`   // labelled events on which only the champion is right
	Votes    int `json:"votes"`    // labelled events that count as evidence: one of each group
	Errors   int `json:"errors"`   // events that the candidate could not answer; they count as wrong
}

// TrialRange is a part of a partition: the offsets from From up to but excluding To.
type TrialRange struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
}

// TrialBudget says how sure the lower bound of the lead is, given the other trials of the recipe. A fleet with
// many candidates would otherwise promote many bad ones by chance.
type TrialBudget struct {
	Trials   int     `json:"trials"`   // trials of the recipe that are running, or have ended within the last 30 days
	Promoted int     `json:"promoted"` // trials among them that have passed, with those of this moment
	Level    float64 `json:"level"`    // probability with which the lower bound may be wrong: Alpha × Promoted / Trials
}

// Canary says how a version that has passed its gate answers a share of the events beside the champion, before it may
// become the champion.
type Canary struct {
	Share float64       `json:"share"`        // share of the events that it answers, above 0 and below 1
	By    string        `json:"by,omitempty"` // place in the event whose value decides, such as data.user; empty for the event's source and id
	Hold  time.Duration `json:"hold"`         // least time until it is promoted
	Least int           `json:"least"`        // least number of its outcomes until it is promoted
	Until time.Duration `json:"until"`        // time after which it is refused if there are fewer outcomes
	Worse float64       `json:"worse"`        // margin of accuracy by which it may be worse
}

// CanaryTakes reports whether a canary answers an event, given the value that decides. Values of one model and version
// stay on their side.
func CanaryTakes(model string, version int, value []string, share float64) bool {
	sum := sha256.Sum256(appendParts(appendParts(make([]byte, 0, 256), "canary", VersionName(model, version)), value...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < share
}

// RolloutData is the data of all types tidemill.rollout.*. Each type uses some of the fields.
type RolloutData struct {
	Rollout string             `json:"rollout,omitempty"` // name, such as intent/3
	Number  int                `json:"number,omitempty"`  // number among the rollouts of its recipe, from 1, for .begun
	Way     *Way               `json:"way,omitempty"`     // new way, for .begun; way that all keys have now, for .ended without a rollout
	From    float64            `json:"from,omitempty"`    // share of the keys before .advanced
	Share   float64            `json:"share,omitempty"`   // share of the keys that take part, after .begun and .advanced
	Result  RolloutResult      `json:"result,omitempty"`  // for .ended
	Reason  string             `json:"reason,omitempty"`  // for .stopped: the clause that is true; for commands, and .ended after an abort: the reason of the person
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
