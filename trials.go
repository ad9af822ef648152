package tidemill

import "time"

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
