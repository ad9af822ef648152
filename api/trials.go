package api

import (
	"time"

	"tidemill.dev"
)

// TrialList is the body of GET /api/v1/trials: the trials that are running.
type TrialList struct {
	Trials []Trial `json:"trials"` // sorted by model; at most 1000
	Total  int     `json:"total"`  // number of trials on all pages
	Next   string  `json:"next,omitempty"`
}

// EndedTrials is the body of GET /api/v1/trials/ended: trials that have ended, the newest end first.
type EndedTrials struct {
	Trials []EndedTrial `json:"trials"`
	Next   string       `json:"next,omitempty"`
}

// EndedTrial is a trial that has ended. A model keeps its newest five.
type EndedTrial struct {
	Model   string                 `json:"model"`
	Version int                    `json:"version"`
	Recipe  string                 `json:"recipe"`
	Key     string                 `json:"key"`
	Ended   time.Time              `json:"ended"`
	Passed  bool                   `json:"passed"`
	State   tidemill.VersionState  `json:"state,omitempty"`   // state of the version now; empty if the version is dropped
	Text    string                 `json:"text,omitempty"`    // the end in words; empty if the version is dropped
	Clauses []tidemill.Clause      `json:"clauses,omitempty"` // clauses with their values at the end
	Verdict *tidemill.TrialVerdict `json:"verdict,omitempty"` // nil if a newer candidate has ended the trial, or the version is dropped
}

// Trial is a candidate that answers the stream of a scorer beside the champion.
type Trial struct {
	Model    string              `json:"model"`
	Version  int                 `json:"version"`
	Recipe   string              `json:"recipe"`
	Key      string              `json:"key"`
	Scorer   string              `json:"scorer"`
	Champion int                 `json:"champion"` // version whose answers are compared
	Began    time.Time           `json:"began"`
	Terms    tidemill.TrialTerms `json:"terms"`
	tidemill.TrialCounts
	Lead    tidemill.Estimate    `json:"lead"` // accuracy of the candidate minus the champion's
	P99     float64              `json:"p99"`  // milliseconds for one answer
	Budget  tidemill.TrialBudget `json:"budget"`
	Clauses []tidemill.Clause    `json:"clauses"`          // clauses for a promotion as they are now
	Steps   []tidemill.TrialStep `json:"steps,omitempty"`  // counts over the labelled events so far, at most [tidemill.TrialSteps]
	Text    string               `json:"text"`             // the figures in words
	Behind  int64                `json:"behind,omitempty"` // answers of the champion that the trial has not read yet
	Error   string               `json:"error,omitempty"`  // reason why the trial does not advance; empty if it does
}

// Rejudged is the body of GET /api/v1/model/rejudge: the verdict of a trial, computed again from the streams.
type Rejudged struct {
	Model    string                `json:"model"`
	Version  int                   `json:"version"`
	Recorded tidemill.TrialVerdict `json:"recorded"`
	Again    tidemill.TrialVerdict `json:"again"`
	Differs  []string              `json:"differs"` // names of the parts that differ; empty if none does
}
