// Package task is what the load test's clients have in common: the work they
// are given, the events they write, and the meter that they are measured with.
// One package for both keeps the comparison fair where it is easiest to lose.
package task

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// What a client can be told to do.
const (
	Produce = "produce"
	Consume = "consume"
	Copy    = "copy" // fetch, and produce as much as a scorer would, without scoring
)

// Task is one client's work. It travels as JSON in the client's arguments.
type Task struct {
	Do      string
	Addr    string
	Topic   string
	Group   string        `json:",omitempty"`
	Out     string        `json:",omitempty"` // topic that Copy and who scores write to
	Data    int           `json:",omitempty"` // bytes of an output of Copy
	Linger  time.Duration `json:",omitempty"`
	Warm    int           // records before the meter starts: connections, pools, metadata
	Records int           // records that are measured
	Reuse   bool          `json:",omitempty"` // franz-go's client: pool the records of produce
	Profile string        `json:",omitempty"` // folder for pprof files
}

// Bounds that both clients are given, so that neither wins by a larger buffer
// or a longer wait.
const (
	Compression   = "none"
	BatchBytes    = 1_000_000
	BufferedBytes = 64 << 20
	CommitEvery   = 200 * time.Millisecond
)

// What franz-go's client fetches at a time, which is what suits it best of what
// was tried: with ours, 2 MiB and 1 MiB a partition, it takes half as much CPU
// again. Ours fixes its own.
const (
	FetchBytes     = 50 << 20
	PartitionBytes = 4 << 20
)

// Result is what the meter saw, as JSON on the client's standard output.
type Result struct {
	Records int
	Wall    time.Duration
	CPU     time.Duration // user and system, of the whole process
	System  time.Duration // the system's part of it
	Mallocs uint64
	Bytes   uint64 // allocated
	Sum     uint64 // of what was read, so that reading cannot be skipped

	// Of a process that was weighed.
	Heap     uint64 `json:",omitempty"` // live
	Resident uint64 `json:",omitempty"` // 0 where the system does not say
}

// Parse reads a task from a client's only argument.
func Parse(arg string) (Task, error) {
	var t Task
	if err := json.Unmarshal([]byte(arg), &t); err != nil {
		return t, fmt.Errorf("read the task %q: %w", arg, err)
	}
	return t, nil
}

// Write tells the result to the parent.
func (r Result) Write(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
