package tidemill

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// RunState is the state of a run.
type RunState string

// The states. A run waits once, is live during all of its attempts, and then has ended for
// ever.
const (
	RunWaiting    RunState = "waiting"    // has not begun; further causes are merged into it until it is closed
	RunRunning    RunState = "running"    // an attempt is under way
	RunRetrying   RunState = "retrying"   // its next attempt is not due yet
	RunCommitting RunState = "committing" // its output is being committed to its dataset

	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// Ended reports whether the run has ended.
func (s RunState) Ended() bool { return s == RunSucceeded || s == RunFailed || s == RunCancelled }

// Outcome is the way in which an attempt has ended.
type Outcome string

// The outcomes.
const (
	OutcomeSucceeded Outcome = "succeeded"
	OutcomeFailed    Outcome = "failed"    // the command failed, or broke the contract
	OutcomeCancelled Outcome = "cancelled" // its cancellation was requested
	OutcomeLost      Outcome = "lost"      // its agent reported nothing any more; not the command's fault
	OutcomeLeft      Outcome = "left"      // its machine was stopped in order, after it had saved a checkpoint
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

	Causes    int             `json:"causes"`          // number of events that asked for it
	Asked     []int64         `json:"asked"`           // offsets of the facts that asked for it, the newest 10,000
	First     Cause           `json:"first"`           // first cause; the run's id derives from it
	Newest    Cause           `json:"newest"`          // newest cause
	Event     json.RawMessage `json:"event,omitempty"` // newest cause, as structured JSON; empty once the run has ended
	By        string          `json:"by,omitempty"`    // person who asked for it, if one did
	Again     string          `json:"again,omitempty"` // run that this one repeats
	Priority  int             `json:"priority,omitempty"`
	Asking    time.Time       `json:"asking"`       // time of the first request
	Quiet     time.Time       `json:"quiet"`        // end of the newest cause's debounce
	Latest    time.Time       `json:"latest"`       // time up to which further causes may delay it
	Due       time.Time       `json:"due,omitzero"` // earliest start of the next attempt; zero while an attempt is under way, and after the end
	Config    string          `json:"config"`       // hash of the config that applied
	Partition int32           `json:"partition"`    // partition of its facts

	Plan     json.RawMessage `json:"plan,omitempty"`    // a Plan, from the start until the end
	PlanMAC  string          `json:"planMAC,omitempty"` // proof that the install has made the plan; empty for a plan of an earlier version
	From     []string        `json:"from,omitempty"`    // commits among its inputs
	Pool     string          `json:"pool,omitempty"`    // pool, once the run has begun
	Number   int64           `json:"number,omitempty"`  // number of the run among those of its recipe and key that have begun; 0 if it began by a fact of an earlier version
	Attempts []Attempt       `json:"attempts,omitempty"`
	Cancel   *Cancel         `json:"cancel,omitempty"` // request to cancel it; nil if there is none
	End      time.Time       `json:"end,omitzero"`
	Reason   string          `json:"reason,omitempty"` // reason of its end, in words; empty for a success
	Result   *Result         `json:"result,omitempty"` // result of the newest attempt that reported one
	Commit   string          `json:"commit,omitempty"` // commit of its output, on its dataset
}

// Attempt is one try of a run.
type Attempt struct {
	Number  int       `json:"number"` // number, from 1
	Offset  int64     `json:"offset"` // offset of the fact that started it: the fence
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Outcome Outcome   `json:"outcome,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Pending string    `json:"pending,omitempty"` // reason why its container does not run yet
	Began   time.Time `json:"began,omitzero"`    // time at which its container was seen to run, if it had to wait
	Saved   bool      `json:"saved,omitempty"`   // whether it was lost after it had stored a new checkpoint
	Where
}

// Where describes the hardware and the image of an attempt.
type Where struct {
	Node        string `json:"node,omitempty"`
	Card        string `json:"card,omitempty"`        // product name of the GPU
	Driver      string `json:"driver,omitempty"`      // version of the GPU's driver
	GPUs        []int  `json:"gpus,omitempty"`        // indexes of the GPUs, on a laptop
	Image       string `json:"image,omitempty"`       // digest of the image, or of the folder
	ResumedFrom string `json:"resumedFrom,omitempty"` // tree of the checkpoint that it began with
}

// Cancel is a request to end a run.
type Cancel struct {
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Result is an attempt's report at its end.
type Result struct {
	Exit       int                `json:"exit"`             // exit code of the command; -1 if a signal ended it, or it never began
	Signal     string             `json:"signal,omitempty"` // such as SIGKILL
	PeakMemory int64              `json:"peakMemory,omitempty"`
	GPUSeconds float64            `json:"gpuSeconds,omitempty"`
	Stages     []Stage            `json:"stages,omitempty"`
	Artifact   string             `json:"artifact,omitempty"` // tree of its output
	Bytes      int64              `json:"bytes,omitempty"`
	Files      int                `json:"files,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"` // numbers of metrics.json, by path
	LastLines  string             `json:"lastLines,omitempty"`
	LogBytes   int64              `json:"logBytes,omitempty"`
	Cut        bool               `json:"cut,omitempty"` // whether the log had more than was kept
}

// Stage is the duration of one part of an attempt.
type Stage struct {
	Name    string  `json:"name"` // fetch, run, upload
	Seconds float64 `json:"seconds"`
}

// Plan describes the work of a run. It is made when the run begins, and is the same for all
// of its attempts. Only a plan of an earlier version, which has no MAC, is made again.
type Plan struct {
	Team     string            `json:"team,omitempty"`
	Image    string            `json:"image,omitempty"` // image; empty if Dir is set
	Dir      string            `json:"dir,omitempty"`   // absolute path of a folder; empty if Image is set
	Command  []string          `json:"command"`
	Env      map[string]string `json:"env,omitempty"`
	Secrets  map[string]string `json:"secrets,omitempty"` // variable → name/key
	CPU      float64           `json:"cpu,omitempty"`
	Memory   int64             `json:"memory,omitempty"`
	GPUs     int               `json:"gpus,omitempty"`
	Pool     string            `json:"pool"`
	Priority int               `json:"priority,omitempty"`

	Deadline time.Duration `json:"deadline"` // limit for one attempt
	Grace    time.Duration `json:"grace"`    // time between SIGTERM and SIGKILL
	Attempts int           `json:"attempts"`
	Backoff  Backoff       `json:"backoff"`

	Inputs    []Input   `json:"inputs,omitempty"`
	Rollout   string    `json:"rollout,omitempty"`  // rollout whose new way the run takes; empty if it takes the way of all keys
	Model     string    `json:"model,omitempty"`    // model that it makes, if it makes one
	Judge     *Judge    `json:"judge,omitempty"`    // rules by which its version is judged
	Champion  *Champion `json:"champion,omitempty"` // champion of the model when the run began; nil if there was none
	Dataset   string    `json:"dataset,omitempty"`  // dataset that it makes a commit of, if it makes no model
	Branch    string    `json:"branch,omitempty"`   // branch of that commit
	MaxOutput int64     `json:"maxOutput"`
	MaxLog    int64     `json:"maxLog"`

	Workers int      `json:"workers,omitempty"` // number of workers of one attempt; 0 means 1
	Servers *Servers `json:"servers,omitempty"` // parameter servers; nil if there are none
	Inside  Inside   `json:"inside,omitzero"`
}

// Servers are the parameter servers of an attempt. They have no GPUs, and end with the
// attempt.
type Servers struct {
	Count   int      `json:"count"`
	Command []string `json:"command,omitempty"` // command; if empty, the command of the run
	CPU     float64  `json:"cpu,omitempty"`
	Memory  int64    `json:"memory,omitempty"`
}

// Inside has the settings of a run's container that only a cluster needs.
type Inside struct {
	User        *int64   `json:"user,omitempty"`        // user id; nil is an unprivileged user, 0 is root
	PullSecrets []string `json:"pullSecrets,omitempty"` // names of the Secrets for the pull of its image
	Shm         int64    `json:"shm,omitempty"`         // bytes of /dev/shm; 0 leaves it to the runtime
	Disk        int64    `json:"disk,omitempty"`        // bytes of the node's disk for each container; 0 is the launcher's default
	Volumes     []Volume `json:"volumes,omitempty"`
}

// Volume is mounted into the container of a run. Only one of the fields Claim, Secret and Config is
// set.
type Volume struct {
	Claim    string `json:"claim,omitempty"` // name of a PersistentVolumeClaim
	Secret   string `json:"secret,omitempty"`
	Config   string `json:"config,omitempty"` // name of a ConfigMap
	At       string `json:"at"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Input is one input of a run: a tree of a dataset, or a URI.
type Input struct {
	Name    string `json:"name"`
	Dataset string `json:"dataset,omitempty"`
	Branch  string `json:"branch,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Tree    string `json:"tree,omitempty"`
	Files   int    `json:"files,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	URI     string `json:"uri,omitempty"` // instead of a dataset

	Outcomes string  `json:"outcomes,omitempty"` // scorer, instead of a dataset: its answers with their truth
	Read     []Range `json:"read,omitempty"`     // ranges of the stream outcomes that were read
	Rows     int     `json:"rows,omitempty"`     // number of these answers

	// Allow lists prefixes. The URI must begin with one of them, and so must redirects of
	// its server: the publisher of an event must not choose which servers we call.
	Allow []string `json:"allow,omitempty"`
}

// Backoff is the wait after a failed attempt. It doubles from First to Cap.
type Backoff struct {
	First time.Duration `json:"first"`
	Cap   time.Duration `json:"cap"`
}

// RunRequested is the data of tidemill.run.requested.
type RunRequested struct {
	Cause    Cause             `json:"cause"`
	Events   []json.RawMessage `json:"events"` // causes, as structured JSON, oldest first
	Debounce time.Duration     `json:"debounce,omitempty"`
	MaxWait  time.Duration     `json:"maxWait,omitempty"`
	Delay    time.Duration     `json:"delay,omitempty"` // least time from the fact to the start, even if the debounce is shorter
	Priority int               `json:"priority,omitempty"`
	Again    string            `json:"again,omitempty"`
	Config   string            `json:"config"`
}

// RunStarted is the data of tidemill.run.started.
type RunStarted struct {
	Attempt int `json:"attempt"`
	// Causes is the number of the run's causes when the inputs were looked up. The data of a later
	// cause may not be in the inputs. If there is one, the fold closes the run to further causes, and
	// the next start succeeds.
	Causes int `json:"causes,omitempty"`
	// Seen is the offset of the newest request when the inputs were looked up. The fold reads it if
	// Causes is 0: earlier versions wrote only Seen, and read only Seen. An offset counts on one log
	// only, not on a copy of it.
	Seen int64 `json:"seen"`
	Plan *Plan `json:"plan,omitempty"` // plan of the run, with its first attempt; with a later one it replaces a plan without a MAC
	// MAC proves that a controller of the install has made the plan, for this run. The log alone does
	// not prove it, because other clients may write to Kafka.
	MAC string `json:"mac,omitempty"`
	Where
}

// RunFinished is the data of tidemill.run.finished.
type RunFinished struct {
	Attempt   int        `json:"attempt"`
	Outcome   Outcome    `json:"outcome"`
	Reason    string     `json:"reason,omitempty"`
	Permanent bool       `json:"permanent,omitempty"` // whether another attempt would fail too
	Saved     bool       `json:"saved,omitempty"`     // whether a lost attempt has stored a new checkpoint
	Candidate *Candidate `json:"candidate,omitempty"` // version that a successful attempt has made
	Where
	Result
}

// RunSeen is the data of tidemill.run.seen: a controller's observation of an attempt in the
// cluster that the attempt's agent cannot make.
type RunSeen struct {
	Attempt int    `json:"attempt"`
	Pending string `json:"pending,omitempty"` // reason why its container does not run yet; empty if it runs
	Where
}

// RunCancelledData is the data of tidemill.run.cancelled.
type RunCancelledData struct {
	Reason string `json:"reason,omitempty"`
}

// RunForgotten is the data of tidemill.run.forgotten: the key is removed.
type RunForgotten struct {
	Cause  Cause  `json:"cause"` // cause of the removal; a repeated fact with the same cause ends no later runs
	Reason string `json:"reason,omitempty"`
}

// RunCommitted is the data of tidemill.run.committed.
type RunCommitted struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`
	Commit  string `json:"commit"`
	Lost    string `json:"lost,omitempty"` // reason why there will never be a commit: the output is lost
}

// RunID returns the id of the run whose first cause is given.
func RunID(recipe, key string, c Cause) string { return ID("run", recipe, key, c.Source, c.ID) }

// RunKey returns the record key of all facts of a recipe and key.
func RunKey(recipe, key string) string { return recipe + "/" + key }

// AttemptName returns the name of an attempt, also used for its pod or process.
func AttemptName(run string, number int) string { return run + "-" + strconv.Itoa(number) }

// CutAttemptName splits the name of an attempt.
func CutAttemptName(name string) (run string, number int, ok bool) {
	run, text, found := strings.Cut(name, "-")
	number, err := strconv.Atoi(text)
	return run, number, found && run != "" && err == nil && number > 0 && strconv.Itoa(number) == text
}

// Attempt returns the attempt under way; nil if there is none.
func (r *Run) Attempt() *Attempt {
	if r.State != RunRunning || len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// NextAttempt returns the number of the run's next attempt.
func (r *Run) NextAttempt() int { return len(r.Attempts) + 1 }

// LastAsked returns the offset of the newest fact that asked for the run.
func (r *Run) LastAsked() int64 { return r.Asked[len(r.Asked)-1] }

// With returns w with the fields of end that are set.
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

// Sighted returns the attempt with a controller's observation added, and whether that
// changed it. The reason to wait is ignored if the attempt has ended.
func (a Attempt) Sighted(d RunSeen) (after Attempt, news bool) {
	after = a
	if a.Ended.IsZero() {
		after.Pending = d.Pending
	}
	after.Where = a.With(d.Where)
	return after, !reflect.DeepEqual(a, after)
}
