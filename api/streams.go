package api

import (
	"encoding/json"
	"time"
)

// Streams is the body of GET /api/v1/streams.
type Streams struct {
	Streams []Stream `json:"streams"`
}

// Stream is one stream and its state.
type Stream struct {
	Name             string      `json:"name"`
	Partitions       []Partition `json:"partitions"`
	Records          int64       `json:"records"`             // number of events
	Estimated        bool        `json:"estimated,omitempty"` // whether records is an estimate
	Bytes            *int64      `json:"bytes"`               // size in bytes; null if Kafka does not report it
	Rate             float64     `json:"rate"`                // events per second over the last minute
	RetentionSeconds *int64      `json:"retentionSeconds"`    // retention; null for no limit
	Groups           []Group     `json:"groups"`
}

// Partition is one partition of a stream.
type Partition struct {
	Partition int   `json:"partition"`
	Start     int64 `json:"start"`
	End       int64 `json:"end"`
}

// Group is the lag of one of our consumer groups on a stream.
type Group struct {
	Group     string `json:"group"`
	Lag       int64  `json:"lag"` // number of events that the group has not processed
	Lost      int64  `json:"lost"`
	Estimated bool   `json:"estimated,omitempty"` // whether Lag is an estimate
}

// Tailed is the data of one server-sent event of GET /api/v1/streams/{stream}/events: an event with
// its position, or an unreadable record with the reason.
type Tailed struct {
	Partition int32           `json:"partition"`
	Offset    int64           `json:"offset"`
	Received  time.Time       `json:"received"`        // time at which the record was stored
	Event     json.RawMessage `json:"event,omitempty"` // event in the CloudEvents JSON format
	Error     string          `json:"error,omitempty"` // reason why the record is not an event
	Key       []byte          `json:"key,omitempty"`   // key of an unreadable record
	Data      []byte          `json:"data,omitempty"`
}

// Answers is the body of a 202 to a batch.
type Answers struct {
	Events []Answer `json:"events"`
}

// Answer is the result for one event of a batch.
type Answer struct {
	ID       string    `json:"id,omitempty"` // id of the event, if it could be read
	Status   int       `json:"status"`       // status that a POST of this event alone would have
	Position *Position `json:"position,omitempty"`
	Repeated bool      `json:"repeated,omitempty"` // true if the event was on the stream before, so that nothing was stored
	Problem  *Problem  `json:"problem,omitempty"`
}

// Position is the place of an event on a stream.
type Position struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // offset; -1 if no longer known
}

// Headers of a 202 to a single event.
const (
	HeaderPosition = "Tidemill-Position" // stream/partition/offset
	HeaderRepeated = "Tidemill-Repeated" // true if the event was on the stream before, so that nothing was stored
)
