package api

import (
	"time"

	"tidemill.dev"
)

// TrialList is the body of GET /api/v1/trials: the trials that are running.
type TrialList struct {
	Trials []Trial `json:"trials"` // sorted by model; at most 1000
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
