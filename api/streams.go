package api

import (
	"encoding/json"
	"time"
)

// Streams are the body of GET /api/v1/streams.
type Streams struct {
	Streams []Stream `json:"streams"`
}

// Stream is one stream as it is now.
type Stream struct {
	Name             string      `json:"name"`
	Partitions       []Partition `json:"partitions"`
	Records          int64       `json:"records"`
	Bytes            *int64      `json:"bytes"`            // null where Kafka does not say
	Rate             float64     `json:"rate"`             // records a second over the last minute
	RetentionSeconds *int64      `json:"retentionSeconds"` // null is for ever
	Groups           []Group     `json:"groups"`
}

// Partition is one partition of a stream.
type Partition struct {
	Partition int   `json:"partition"`
	Start     int64 `json:"start"`
	End       int64 `json:"end"`
}

// Group is how far a consumer group of ours is behind on a stream.
type Group struct {
	Group string `json:"group"`
	Lag   int64  `json:"lag"`
	Lost  int64  `json:"lost"`
}

// Tailed is the data of one server-sent event of
// GET /api/v1/streams/{stream}/events: an event where it lies, or why a record
// is none.
type Tailed struct {
	Partition int32           `json:"partition"`
	Offset    int64           `json:"offset"`
	Received  time.Time       `json:"received"`        // when it reached the log
	Event     json.RawMessage `json:"event,omitempty"` // in the CloudEvents JSON format
	Error     string          `json:"error,omitempty"` // why the record is no event
	Key       []byte          `json:"key,omitempty"`   // of a record that is none
	Data      []byte          `json:"data,omitempty"`
}

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
