package tidemill

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// RunState is how far a run has come.
type RunState string

// The states. A run waits once, then is live through all of its attempts, then
// has ended for ever.
const (
	RunWaiting  RunState = "waiting"  // has not begun, and absorbs further causes
	RunRunning  RunState = "running"  // an attempt is under way
	RunResting  RunState = "resting"  // the next attempt waits for its time
	RunSettling RunState = "settling" // what it made is being put on its dataset

	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// Ended reports whether nothing will change any more.
func (s RunState) Ended() bool { return s == RunSucceeded || s == RunFailed || s == RunCancelled }

// Outcome is how an attempt has ended.
type Outcome string

// The outcomes.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"    // the command failed, or broke the contract
	OutcomeCancelled Outcome = "cancelled" // somebody asked for that
	OutcomeLost      Outcome = "lost"      // nobody heard of it any more, through no fault of the command
	OutcomeLeft      Outcome = "left"      // its machine was stopped in order, and it saved what it had
)

func (o Outcome) Known() bool {
	return o == OutcomeSucceeded || o == OutcomeFailed || o == OutcomeCancelled || o == OutcomeLost || o == OutcomeLeft
}

// Run is one making of a recipe for one key.
type Run struct {
	ID     string   `json:"id"`
	Recipe string   `json:"recipe"`
	Key    string   `json:"key"`
	State  RunState `json:"state"`

	Causes    int             `json:"causes"`          // how many events asked for it
	Asked     []int64         `json:"asked"`           // offsets of the facts that asked, the newest maxAsked of them
	First     Cause           `json:"first"`           // the cause that it is named after
	Newest    Cause           `json:"newest"`          // the cause that came last
	Event     json.RawMessage `json:"event,omitempty"` // the newest cause, as structured JSON; empty once the run has ended
	By        string          `json:"by,omitempty"`    // who asked, if a person did
	Again     string          `json:"again,omitempty"` // the run that this one was asked for as a retry of
	Priority  int             `json:"priority,omitempty"`
	Asking    time.Time       `json:"asking"`    // when it was asked for first
	Quiet     time.Time       `json:"quiet"`     // the newest cause's debounce ends
	Latest    time.Time       `json:"latest"`    // it may not be put off beyond
	Due       time.Time       `json:"due"`       // not before; of the next attempt
	Config    string          `json:"config"`    // hash of the one that was in force
	Partition int32           `json:"partition"` // of the facts

	Plan     json.RawMessage `json:"plan,omitempty"` // a Plan, from the start until the end
	From     []string        `json:"from,omitempty"` // commits that it learns from
	Pool     string          `json:"pool,omitempty"` // once it has begun
	Attempts []Attempt       `json:"attempts,omitempty"`
	Cancel   *Cancel         `json:"cancel,omitempty"` // somebody has asked for it
	End      time.Time       `json:"end,omitzero"`
	Reason   string          `json:"reason,omitempty"` // why it ended as it did, in words; empty for a success
	Result   *Result         `json:"result,omitempty"` // of the newest attempt that told of one
	Commit   string          `json:"commit,omitempty"` // what it made, on its dataset
}

// Attempt is one try of a run.
type Attempt struct {
	Number  int       `json:"number"` // from 1
	Offset  int64     `json:"offset"` // of the fact that began it: the fence
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Outcome Outcome   `json:"outcome,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Pending string    `json:"pending,omitempty"` // why its container does not run yet, in words
	Began   time.Time `json:"began,omitzero"`    // when it was seen to wait for nothing any more, if it had to wait
	Where
}

// Where is what an attempt runs on.
type Where struct {
	Node        string `json:"node,omitempty"`
	Card        string `json:"card,omitempty"`        // the GPU's product
	Driver      string `json:"driver,omitempty"`      // its version
	GPUs        []int  `json:"gpus,omitempty"`        // their indexes, on a laptop
	Image       string `json:"image,omitempty"`       // its digest, or that of the folder
	ResumedFrom string `json:"resumedFrom,omitempty"` // tree of the checkpoint
}

// Cancel is who asked that a run ends, and why.
type Cancel struct {
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Result is what an attempt tells at its end.
type Result struct {
	Exit       int                `json:"exit"`             // of the command; -1 if a signal ended it, or it never began
	Signal     string             `json:"signal,omitempty"` // such as SIGKILL
	PeakMemory int64              `json:"peakMemory,omitempty"`
	GPUSeconds float64            `json:"gpuSeconds,omitempty"`
	Stages     []Stage            `json:"stages,omitempty"`
	Artifact   string             `json:"artifact,omitempty"` // tree of what it made
	Bytes      int64              `json:"bytes,omitempty"`
	Files      int                `json:"files,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"` // of metrics.json, its numbers by path
	LastLines  string             `json:"lastLines,omitempty"`
	LogBytes   int64              `json:"logBytes,omitempty"`
	Cut        bool               `json:"cut,omitempty"` // the log had more than was kept
}

// Stage is how long a part of an attempt took.
type Stage struct {
	Name    string  `json:"name"` // fetch, run, upload
	Seconds float64 `json:"seconds"`
}

// Plan is what a run does. It is settled when the run begins and kept through
// all of its attempts.
type Plan struct {
	Team     string            `json:"team,omitempty"`
	Image    string            `json:"image,omitempty"` // either an image
	Dir      string            `json:"dir,omitempty"`   // or a folder, absolute
	Command  []string          `json:"command"`
	Env      map[string]string `json:"env,omitempty"`
	Secrets  map[string]string `json:"secrets,omitempty"` // variable → name/key
	CPU      float64           `json:"cpu,omitempty"`
	Memory   int64             `json:"memory,omitempty"`
	GPUs     int               `json:"gpus,omitempty"`
	Pool     string            `json:"pool"`
	Priority int               `json:"priority,omitempty"`

	Deadline time.Duration `json:"deadline"` // of one attempt
	Grace    time.Duration `json:"grace"`    // between SIGTERM and SIGKILL
	Attempts int           `json:"attempts"`
	Backoff  Backoff       `json:"backoff"`

	Inputs    []Input   `json:"inputs,omitempty"`
	Model     string    `json:"model,omitempty"`    // what it makes: a model
	Judge     *Judge    `json:"judge,omitempty"`    // which is judged so
	Champion  *Champion `json:"champion,omitempty"` // beside this one, if there was one when the run began
	Dataset   string    `json:"dataset,omitempty"`  // or a commit on a dataset's
	Branch    string    `json:"branch,omitempty"`   // branch
	MaxOutput int64     `json:"maxOutput"`
	MaxLog    int64     `json:"maxLog"`

	Workers int      `json:"workers,omitempty"` // that work on one attempt together; 0 is one
	Servers *Servers `json:"servers,omitempty"` // of parameters; nil is none
	Inside  Inside   `json:"inside,omitzero"`
}

// Servers are the parameter servers beside the workers of an attempt. They have
// no GPUs, and end with it.
type Servers struct {
	Count   int      `json:"count"`
	Command []string `json:"command,omitempty"` // that of the run if empty
	CPU     float64  `json:"cpu,omitempty"`
	Memory  int64    `json:"memory,omitempty"`
}

// Inside is what a cluster has to know of the container of a run.
type Inside struct {
	User        *int64   `json:"user,omitempty"`        // whom it runs as; nil is nobody in particular, 0 is root
	PullSecrets []string `json:"pullSecrets,omitempty"` // Secrets with which its image is pulled
	Shm         int64    `json:"shm,omitempty"`         // bytes of /dev/shm; 0 is what the runtime gives
	Volumes     []Volume `json:"volumes,omitempty"`
}

// Volume is mounted into the container of a run: one of claim, secret and config.
type Volume struct {
	Claim    string `json:"claim,omitempty"` // a PersistentVolumeClaim
	Secret   string `json:"secret,omitempty"`
	Config   string `json:"config,omitempty"` // a ConfigMap
	At       string `json:"at"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Input is what a run learns from.
type Input struct {
	Name    string `json:"name"`
	Dataset string `json:"dataset,omitempty"`
	Branch  string `json:"branch,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Tree    string `json:"tree,omitempty"`
	Files   int    `json:"files,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	URI     string `json:"uri,omitempty"` // instead of a dataset

	// Allow is what the URI must begin with, and whatever its server sends us on
	// to: whoever publishes the event does not choose what is reached from here.
	Allow []string `json:"allow,omitempty"`
}

// Backoff is how long a failed attempt is waited after: it doubles from First
// to Cap.
type Backoff struct {
	First time.Duration `json:"first"`
	Cap   time.Duration `json:"cap"`
}

// RunRequested is the data of tidemill.run.requested.
type RunRequested struct {
	Cause    Cause             `json:"cause"`
	Events   []json.RawMessage `json:"events"` // what asked, as structured JSON, oldest first
	Debounce time.Duration     `json:"debounce,omitempty"`
	MaxWait  time.Duration     `json:"maxWait,omitempty"`
	Delay    time.Duration     `json:"delay,omitempty"` // not before so long after the fact's time, whatever the debounce
	Priority int               `json:"priority,omitempty"`
	Again    string            `json:"again,omitempty"`
	Config   string            `json:"config"`
}

// RunStarted is the data of tidemill.run.started.
type RunStarted struct {
	Attempt int `json:"attempt"`
	// Seen is the offset of the newest fact that asked, when the inputs were
	// looked up. A cause that has come since would not be in them, so the fold
	// then refuses the start.
	Seen int64 `json:"seen"`
	Plan *Plan `json:"plan,omitempty"` // of the first attempt
	Where
}

// RunFinished is the data of tidemill.run.finished.
type RunFinished struct {
	Attempt   int        `json:"attempt"`
	Outcome   Outcome    `json:"outcome"`
	Reason    string     `json:"reason,omitempty"`
	Permanent bool       `json:"permanent,omitempty"` // another attempt would fail too
	Candidate *Candidate `json:"candidate,omitempty"` // of a success that makes a model
	Where
	Result
}

// RunSeen is the data of tidemill.run.seen: what a controller has seen of an attempt
// in the cluster, and its agent cannot tell.
type RunSeen struct {
	Attempt int    `json:"attempt"`
	Pending string `json:"pending,omitempty"` // why its container does not run yet; empty if it does
	Where
}

// RunCancelledData is the data of tidemill.run.cancelled.
type RunCancelledData struct {
	Reason string `json:"reason,omitempty"`
}

// RunForgotten is the data of tidemill.run.forgotten: the key has gone.
type RunForgotten struct {
	Cause  Cause  `json:"cause"` // why: said twice it is one, or the second would end what has begun anew
	Reason string `json:"reason,omitempty"`
}

// RunCommitted is the data of tidemill.run.committed.
type RunCommitted struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`
	Commit  string `json:"commit"`
	Lost    string `json:"lost,omitempty"` // why there is no commit, and never will be: what was made is gone
}

// RunID is the id of the run that a cause asks for first.
func RunID(recipe, key string, c Cause) string { return ID("run", recipe, key, c.Source, c.ID) }

// RunKey is the record key of all facts of a recipe and key.
func RunKey(recipe, key string) string { return recipe + "/" + key }

// AttemptName names an attempt, and what runs it.
func AttemptName(run string, number int) string { return run + "-" + strconv.Itoa(number) }

// CutAttemptName takes such a name apart.
func CutAttemptName(name string) (run string, number int, ok bool) {
	run, text, found := strings.Cut(name, "-")
	number, err := strconv.Atoi(text)
	return run, number, found && run != "" && err == nil && number > 0 && strconv.Itoa(number) == text
}

// Attempt is the one under way; nil between two.
func (r *Run) Attempt() *Attempt {
	if r.State != RunRunning || len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// NextAttempt is the number that the run's next attempt will have.
func (r *Run) NextAttempt() int { return len(r.Attempts) + 1 }

// LastAsked is the offset of the newest fact that asked for it.
func (r *Run) LastAsked() int64 { return r.Asked[len(r.Asked)-1] }

// With adds what is known only later.
func (w Where) With(end Where) Where {
	w.Node, w.Card, w.Driver = either(end.Node, w.Node), either(end.Card, w.Card), either(end.Driver, w.Driver)
	w.Image, w.ResumedFrom = either(end.Image, w.Image), either(end.ResumedFrom, w.ResumedFrom)
	if len(end.GPUs) > 0 {
		w.GPUs = end.GPUs
	}
	return w
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Sighted is the attempt after something was seen of it, and whether that is news.
// What has ended waits for nothing any more.
func (a Attempt) Sighted(d RunSeen) (after Attempt, news bool) {
	after = a
	if a.Ended.IsZero() {
		after.Pending = d.Pending
	}
	after.Where = a.With(d.Where)
	return after, !reflect.DeepEqual(a, after)
}
