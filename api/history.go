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

// FreshStages are the seconds from an event to the first score of the version that the event led to, stage by stage.
// A stage is null if it is not known.
type FreshStages struct {
	Waiting  *float64 `json:"waiting"`  // from the newest request to the start of the attempt that succeeded
	Starting *float64 `json:"starting"` // time of the attempt that is in no other stage, such as the start of its pod
	Fetching *float64 `json:"fetching"`
	Training *float64 `json:"training"` // the command
	Judging  *float64 `json:"judging"`  // from the end of the command to the promotion
	Swapping *float64 `json:"swapping"` // from the promotion to the first score
	Total    *float64 `json:"total"`
}

// Each calls fn with each stage and its name.
func (s *FreshStages) Each(fn func(stage string, seconds *float64)) {
	fn("waiting", s.Waiting)
	fn("starting", s.Starting)
	fn("fetching", s.Fetching)
	fn("training", s.Training)
	fn("judging", s.Judging)
	fn("swapping", s.Swapping)
	fn("total", s.Total)
}

// Freshness is the answer of GET /api/v1/freshness.
type Freshness struct {
	Recipes []RecipeFreshness `json:"recipes"`
}

// RecipeFreshness is the time to a fresh model of one recipe.
type RecipeFreshness struct {
	Recipe string                  `json:"recipe"`
	Models int                     `json:"models"` // number of versions, of the newest 500
	Stages map[string]*Percentiles `json:"stages"` // null if no version has the stage
}

// Percentiles are percentiles of seconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}
