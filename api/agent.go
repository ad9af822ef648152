package api

import (
	"encoding/json"

	"tidemill.dev"
)

// What an agent and the gateway say to each other, under
// /agent/v1/attempts/{attempt}, where {attempt} is an AttemptName. Every request
// bears the attempt's token, and no other. Once the attempt is no longer the one
// under way every answer is a Problem of type Superseded.

// What is taken of an attempt at most.
const (
	MaxLogChunk = 1 << 20   // bytes of a chunk of its log
	MaxSteps    = 50        // lines of progress in a request, and behind a pause
	StepsASec   = 10        // lines of progress in the long run; more are a Problem of type TooManyRequests
	MaxStep     = 16 << 10  // bytes of such a line
	MaxFinish   = 32 << 20  // bytes of a Finish or a CheckpointTaken: some 150,000 files
	MaxResult   = 256 << 10 // bytes of a Finish's JSON without its files: it becomes a fact
)

// Order is the body of the answer to GET …/{attempt}: what to do.
type Order struct {
	Run     string        `json:"run"`
	Recipe  string        `json:"recipe"`
	Key     string        `json:"key"`
	Attempt int           `json:"attempt"`
	Plan    tidemill.Plan `json:"plan"`
	// Causes is how many events asked for the run, and Event the newest of them:
	// who has been asked by one alone need not get …/events.
	Causes      int             `json:"causes"`
	Event       json.RawMessage `json:"event,omitempty"`
	Checkpoint  *TreeRef        `json:"checkpoint"` // to go on from; null for none
	Champion    *TreeRef        `json:"champion"`   // of the model that the run makes; null for none
	BeatSeconds float64         `json:"beatSeconds"`
}

// TreeRef names a tree of files.
type TreeRef struct {
	Tree  string `json:"tree"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// File is a file of a tree. GET …/{attempt}/files?tree=T answers with one a
// line, in the order of their paths.
type File struct {
	Path       string `json:"path"`   // with slashes
	Digest     string `json:"digest"` // SHA-256 of all of it, hex
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
	Parts      []Part `json:"parts,omitempty"` // of a file larger than PartSize; else the digest is the object's
}

// Part is a stretch of a large file: an object of its own.
type Part struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// PartSize is how long the parts of a large file are, but for the last.
const PartSize = 64 << 20

// Beat is the body of the answer to POST …/{attempt}/beat. Who is not alone at an
// attempt says in the query which part it is, worker or server, its index among
// those, and whether it is ready and its command is over.
type Beat struct {
	Cancel string `json:"cancel,omitempty"` // why the command is to be ended; empty if it is not
	All    bool   `json:"all,omitempty"`    // all that work on the attempt are ready, or were: they begin
	End    bool   `json:"end,omitempty"`    // the first worker's command has ended, and so shall the others'
	Alone  bool   `json:"alone,omitempty"`  // the others' commands have ended
}

// Idling is the body of POST …/{attempt}/next, of an attempt that has ended and
// whose pod would do another.
type Idling struct {
	Pod     string  `json:"pod"`
	Seconds float64 `json:"seconds"` // that it waits for one
}

// Given is the body of its answer, if there is one.
type Given struct {
	Attempt string `json:"attempt"` // its name
	Token   string `json:"token"`
}

// CheckpointTaken is the body of POST …/{attempt}/checkpoint; its answer is a
// TreeRef. Objects have been put before.
type CheckpointTaken struct {
	Files []File `json:"files"`
}

// Finish is the body of POST …/{attempt}/finish: the last word of an attempt.
// Objects have been put before. Said twice it is said once.
type Finish struct {
	Outcome   tidemill.Outcome `json:"outcome"`
	Reason    string           `json:"reason,omitempty"`
	Permanent bool             `json:"permanent,omitempty"`
	Where     tidemill.Where   `json:"where"`
	Result    tidemill.Result  `json:"result"`
	Files     []File           `json:"files"` // what it made
	// Inside says that the agent is in the container of the image: whose digest
	// that is, only a controller can tell.
	Inside bool `json:"inside,omitempty"`
}

// Finished is the body of its answer.
type Finished struct {
	State tidemill.RunState `json:"state"` // of the run
}

// Missing is the body of POST …/objects/missing: which of these are not there?
// The answer is one too.
type Missing struct {
	Objects []Part `json:"objects"`
	// Puts are where each of an answer's objects may be put directly, by digest;
	// one that is not named is put through the gateway.
	Puts map[string]string `json:"puts,omitempty"`
}

// ObjectsType is the media type of POST …/objects: objects one behind the
// other, each of them a head and its bytes.
const ObjectsType = "application/vnd.tidemill.objects"

// ObjectHead is how long the head of an object is: its digest, 32 bytes, and
// its size, 8 bytes big-endian.
const ObjectHead = 32 + 8
