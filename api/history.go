package api

import "time"

// History is the answer of GET /api/v1/history: the numbers of one scorer, stream, pool or trigger in the last two
// hours. A series has a point for each step, the oldest first. A point is null if it is not known.
type History struct {
	Of     string                `json:"of"`
	Every  int                   `json:"every"` // seconds between two points
	Until  time.Time             `json:"until"` // time of the last point
	Series map[string][]*float64 `json:"series"`
	Events []HistorySwap         `json:"events"` // swaps of a scorer, the oldest first
}

// HistorySwap is the time at which a version began to score.
type HistorySwap struct {
	At      time.Time `json:"at"`
	Model   string    `json:"model"`
	Before  int       `json:"before"` // version before the swap; 0 if not known
	Version int       `json:"version"`
}
