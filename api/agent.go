package api

import (
	"encoding/json"
	"time"

	"tidemill.dev"
)

// The messages between an agent and the gateway, under /agent/v1/attempts/{attempt}, where
// {attempt} is an AttemptName. Every request has the attempt's token. After another attempt of the
// run has begun, every answer is a Problem of type Superseded, apart from that to the last lines of a log.

// The limits of an attempt's messages.
const (
	MaxLogChunk = 1 << 20   // bytes in a chunk of the attempt's log
	MaxSteps    = 50        // lines of progress in a request, and after a pause
	StepsASec   = 10        // lines of progress per second on average; a faster attempt gets a Problem of type TooManyRequests
	MaxStep     = 16 << 10  // bytes in a line of progress
	MaxFinish   = 32 << 20  // bytes in a Finish or a CheckpointTaken, enough for some 150,000 files
	MaxResult   = 256 << 10 // bytes in a Finish's JSON without its files, because it becomes a fact
)

// LateLog is the time after the end of an attempt in which its agents may send the rest of their logs.
const LateLog = 10 * time.Second

// Order is the body of the answer to GET …/{attempt}: the work of the attempt.
type Order struct {
	Run     string        `json:"run"`
	Recipe  string        `json:"recipe"`
	Key     string        `json:"key"`
	Attempt int           `json:"attempt"`
	Plan    tidemill.Plan `json:"plan"`
	// Causes is the number of events that caused the run, and Event is the newest. If Causes is 1,
	// the agent need not get …/events.
	Causes      int             `json:"causes"`
	Event       json.RawMessage `json:"event,omitempty"`
	Checkpoint  *TreeRef        `json:"checkpoint"` // checkpoint to continue from; null for none
	Champion    *TreeRef        `json:"champion"`   // champion of the model that the run makes; null for none
	BeatSeconds float64         `json:"beatSeconds"`
}

// TreeRef names a tree of files.
type TreeRef struct {
	Tree  string `json:"tree"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// File is a file of a tree. GET …/{attempt}/files?tree=T answers with one File per line, sorted by
// path.
type File struct {
	Path       string `json:"path"`   // path with slashes
	Digest     string `json:"digest"` // SHA-256 of the whole file, in hex
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
	Parts      []Part `json:"parts,omitempty"` // parts of a file larger than PartSize; a smaller file is one object with its digest
}

// Part is a part of a large file. Each part is one object.
type Part struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// PartSize is the size of each part of a large file, except the last.
const PartSize = 64 << 20

// Beat is the body of the answer to POST …/{attempt}/beat. If an attempt has several workers, the
// query has the part (worker or server), its index, and whether it is ready and its command has
// ended.
type Beat struct {
	Cancel string `json:"cancel,omitempty"` // reason to end the command; empty to continue
	All    bool   `json:"all,omitempty"`    // true once all workers and servers are or were ready; the commands then begin
	End    bool   `json:"end,omitempty"`    // true once the first worker's command has ended; the others then end their commands
	Alone  bool   `json:"alone,omitempty"`  // true once the commands of all other workers and servers have ended
}

// Idling is the body of POST …/{attempt}/next, with which the pod of an ended attempt waits for
// another attempt.
type Idling struct {
	Pod     string  `json:"pod"`
	Seconds float64 `json:"seconds"` // time for which the pod waits
}

// Given is the body of the answer to an Idling, if there is another attempt.
type Given struct {
	Attempt string `json:"attempt"` // name of the attempt
	Token   string `json:"token"`
}

// CheckpointTaken is the body of POST …/{attempt}/checkpoint. The answer is a TreeRef. The objects
// must have been uploaded.
type CheckpointTaken struct {
	Files []File `json:"files"`
}

// Finish is the body of POST …/{attempt}/finish: the report of an attempt's end. The objects must
// have been uploaded. A repeated request has no further effect.
type Finish struct {
	Outcome   tidemill.Outcome `json:"outcome"`
	Reason    string           `json:"reason,omitempty"`
	Permanent bool             `json:"permanent,omitempty"`
	Where     tidemill.Where   `json:"where"`
	Result    tidemill.Result  `json:"result"`
	Files     []File           `json:"files"` // files of the output
	// Inside reports that the agent runs in the image's container. Only a controller knows the
	// image's digest.
	Inside bool `json:"inside,omitempty"`
}

// Finished is the body of the answer to a Finish.
type Finished struct {
	State tidemill.RunState `json:"state"` // state of the run
}

// Missing is the body of POST …/objects/missing, which asks which objects do not exist. The answer
// is a Missing too.
type Missing struct {
	Objects []Part `json:"objects"`
}

// ObjectsType is the media type of POST …/objects. Such a body is a sequence of objects, and each
// object has a head and bytes.
const ObjectsType = "application/vnd.tidemill.objects"

// ObjectHead is the length of an object's head: its digest in 32 bytes, and its size in 8 bytes,
// big-endian.
const ObjectHead = 32 + 8
