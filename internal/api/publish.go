package api

// Answers are the body of a 202 to a batch.
type Answers struct {
	Events []Answer `json:"events"`
}

// Answer is what became of one event of a batch.
type Answer struct {
	ID       string    `json:"id,omitempty"` // as far as it could be read
	Status   int       `json:"status"`       // what a POST of this event alone would have answered
	Position *Position `json:"position,omitempty"`
	Repeated bool      `json:"repeated,omitempty"` // it was here before; nothing was stored
	Problem  *Problem  `json:"problem,omitempty"`
}

// Position is where an event lies.
type Position struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // -1 if the log no longer says
}

// Headers of a 202 to a single event.
const (
	HeaderPosition = "Tidemill-Position" // stream/partition/offset
	HeaderRepeated = "Tidemill-Repeated" // true: it was here before; nothing was stored
)
