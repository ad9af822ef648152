package api

// RescoreAsk is the body of POST /api/v1/scorers/{scorer}/rescore. Resume goes on
// with one that was begun, and stands alone.
type RescoreAsk struct {
	From     string `json:"from,omitempty"`     // beginning, an offset, -1h, a time
	To       string `json:"to,omitempty"`       // the same; end
	Version  string `json:"version,omitempty"`  // champion, previous or a number
	ToStream string `json:"toStream,omitempty"` // that the answers go to
	Resume   string `json:"resume,omitempty"`   // the id of one
}

// Rescored is how far one is. The counts are of this answer alone.
type Rescored struct {
	ID       string            `json:"id"`
	Records  int64             `json:"records"` // in all
	Left     int64             `json:"left"`    // of them; ask again with resume until there are none
	Scored   int64             `json:"scored"`
	Passed   int64             `json:"passed"`   // not events that the scorer scores
	Skipped  int64             `json:"skipped"`  // scored before it was cut off
	Unscored int64             `json:"unscored"` // that no model could answer
	Reasons  map[string]string `json:"reasons"`  // why some of them were not, by position
}
