// Package load is the load generator of the gateway's measurement. It posts events over keep-alive
// connections, checks every answer and measures its time. The generator and the server share a
// machine, so an expensive generator would hide the server's cost. For example, net/http's client
// costs as much as net/http's server. Therefore requests are built beforehand and answers are
// parsed by hand.
package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Task is the work of a generator, passed as JSON in its arguments.
type Task struct {
	Addr        string // host:port of the server
	Path        string // path of the requests
	Connections int
	Batch       int     // number of events in a structured request; 0 is one event in binary mode
	Rate        float64 // requests per second; 0 for no limit
	Warm        time.Duration
	Last        time.Duration // duration of the measurement after the warm-up
	Run         string        // prefix of every event's id, unique among runs

	Bodies      string // file with a list of bodies as JSON; they are posted in turn in the place of events
	ContentType string // content type of Bodies
	Head        string // further header lines for Bodies, each with its line end
	GRPC        bool   // Bodies are messages of gRPC, and Path is their method
}

// Result counts the answers with 202, or with 200 to Bodies. Any other answer is an error.
type Result struct {
	Requests int // number of measured requests
	Events   int // number of events in the measured requests
	Answered int // number of all events, including the warm-up's
	Wall     time.Duration
	CPU      time.Duration // CPU time of the generator

	// Times until the answer.
	P50, P99, Max time.Duration
	// Late is the 99th percentile of the delay with which the machine resumed an idle connection.
	// This delay is not part of the times above.
	Late time.Duration
}

// Parse reads a task from a generator's only argument.
func Parse(arg string) (Task, error) {
	var t Task
	if err := json.Unmarshal([]byte(arg), &t); err != nil {
		return t, fmt.Errorf("read the load %q: %w", arg, err)
	}
	return t, nil
}

// status returns the status of a good answer.
func (t Task) status() int {
	if t.Bodies != "" {
		return http.StatusOK
	}
	return http.StatusAccepted
}

// events returns the number of events in a request.
func (t Task) events() int { return max(1, t.Batch) }

// Write writes the result for the parent.
func (r Result) Write(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
