package score

// Scored is the data of tidemill.scored.
type Scored struct {
	Label  string             `json:"label,omitempty"`
	Score  float64            `json:"score,omitempty"`  // of the label
	Scores map[string]float64 `json:"scores,omitempty"` // by label, or by number
	Values []float64          `json:"values,omitempty"` // of a model that is no classifier
}

// Result is an event's.
type Result struct {
	Model   string `json:"model"`
	Version int    `json:"version"`
	Scored
}
