// Package task is the common part of the load test's clients: their task, the events that they
// write, and the meter. Both clients use this one package, so that the comparison is fair.
package task

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// The tasks of a client.
const (
	Produce = "produce"
	Consume = "consume"
	Copy    = "copy" // fetch, and produce as much as a scorer would, without scoring
)

// Task is one client's work, passed as JSON in the client's arguments.
type Task struct {
	Do      string
	Addr    string
	Topic   string
	Group   string        `json:",omitempty"`
	Out     string        `json:",omitempty"` // topic to which Copy and scorers write
	Data    int           `json:",omitempty"` // size in bytes of an output of Copy
	Linger  time.Duration `json:",omitempty"`
	Warm    int           // number of records before the meter starts: connections, pools, metadata
	Records int           // number of measured records
	Reuse   bool          `json:",omitempty"` // franz-go's client: pool the records of produce
	Profile string        `json:",omitempty"` // folder for pprof files
}

// Limits for both clients, so that neither client wins by a larger buffer or a longer wait.
const (
	Compression   = "none"
	BatchBytes    = 1_000_000
	BufferedBytes = 64 << 20
	CommitEvery   = 200 * time.Millisecond
)

// Sizes of franz-go's fetches. They are the best of the tried sizes: with our sizes, 2 MiB and 1
// MiB per partition, franz-go takes 1.5 times the CPU. Our client has fixed sizes.
const (
	FetchBytes     = 50 << 20
	PartitionBytes = 4 << 20
)

// Result is a measurement, written as JSON to the client's standard output.
type Result struct {
	Records int
	Wall    time.Duration
	CPU     time.Duration // user and system, of the whole process
	System  time.Duration // the kernel's part of CPU
	Mallocs uint64
	Bytes   uint64 // allocated bytes
	Sum     uint64 // checksum of the records, so that reading them cannot be optimised away

	// Memory of the process, if its parent asked for it.
	Heap     uint64 `json:",omitempty"` // live bytes
	Resident uint64 `json:",omitempty"` // resident bytes; 0 if the system does not report them
}

// Parse reads a task from a client's only argument.
func Parse(arg string) (Task, error) {
	var t Task
	if err := json.Unmarshal([]byte(arg), &t); err != nil {
		return t, fmt.Errorf("read the task %q: %w", arg, err)
	}
	return t, nil
}

// Write writes the result for the parent.
func (r Result) Write(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
