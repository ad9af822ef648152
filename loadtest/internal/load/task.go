// Package load is the load generator of the door's measurement: it posts events
// over keep-alive connections, looks at every answer and measures how long it
// took. Requests are built beforehand and answers are read by hand, because on
// a machine that both share, what the generator costs hides what the server
// does: net/http's client alone costs as much as its server.
package load

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Task is what a generator does. It travels as JSON in its arguments.
type Task struct {
	Addr        string // of the server, host:port
	Path        string // that is posted to
	Connections int
	Batch       int     // events in a request, structured; 0 is one in binary mode
	Rate        float64 // requests a second; 0 is as many as are answered
	Warm        time.Duration
	Last        time.Duration // how long it measures after the warm-up
	Run         string        // begins the id of every event: no other run may have the same
}

// Result is what was answered with 202. Whatever else is answered is an error.
type Result struct {
	Requests int // measured
	Events   int // in those
	Answered int // events in all, the warm-up's among them
	Wall     time.Duration
	CPU      time.Duration // of the generator

	// How long answers took.
	P50, P99, Max time.Duration
	// Late is how much later than it wanted an idle connection was woken, in 99
	// of 100 cases. That is the machine's doing and is not part of the times above.
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

// events of one request.
func (t Task) events() int { return max(1, t.Batch) }

// Write tells the result to the parent.
func (r Result) Write(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
