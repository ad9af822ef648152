package tidemill

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Fact is an event of the stream of facts, as far as the folds read it.
type Fact struct {
	Partition int32
	Offset    int64
	ID        string
	Type      string
	Recipe    string
	Model     string // of facts of models
	Key       string // its subject
	Run       string
	By        string    // authid
	At        time.Time // its time
	Data      []byte    // JSON
}

// Making is what a recipe makes for one key: at most one live run, at most one
// waiting, and the ids of the newest that have ended. It is the fold of their
// facts, a pure function of their order on the log: same facts, same making,
// whatever the batching. It ignores what it does not know.
type Making struct {
	Recipe  string   `json:"recipe"`
	Key     string   `json:"key"`
	Next    int64    `json:"next"` // behind the last fact folded in
	Live    *Run     `json:"live,omitempty"`
	Waiting *Run     `json:"waiting,omitempty"`
	Ended   []string `json:"ended,omitempty"` // newest last
	Seen    []Seen   `json:"seen,omitempty"`  // newest last
	Gone    bool     `json:"gone,omitempty"`  // its key has gone, and nothing has been asked for since
}

// Verdict is what became of a fact.
type Verdict struct {
	Result    VerdictResult
	Reason    string   // why it was refused
	Ended     *Run     // the run that it ended, whole
	Forgotten []string // ids of runs that the making no longer names
}

// VerdictResult says whether a fact changed anything.
type VerdictResult string

// The results.
const (
	Accepted VerdictResult = "accepted"
	Absorbed VerdictResult = "absorbed" // by the waiting run
	Known    VerdictResult = "known"    // it was folded in before
	Refused  VerdictResult = "refused"
)

const (
	// KeptRuns is how many ended runs a making names. Older ones are on the log
	// and in the store alone.
	KeptRuns = 10

	maxAsked = 10_000 // facts that a waiting run remembers having been asked by
	maxLost  = 10     // attempts of a run; more are no accident
)

// Apply folds a fact in. The facts of a making must come in their order.
func (m *Making) Apply(f Fact) Verdict {
	if f.Offset < m.Next {
		return Verdict{Result: Known}
	}
	m.Recipe, m.Key, m.Next = f.Recipe, f.Key, f.Offset+1
	f.By = strings.ToValidUTF8(f.By, "\uFFFD") // what is not text would not be the same once it is written down
	switch f.Type {
	case TypeRunRequested:
		return decoded(f, m.request)
	case TypeRunStarted:
		return decoded(f, m.start)
	case TypeRunSeen:
		return decoded(f, m.sight)
	case TypeRunFinished:
		return decoded(f, func(f Fact, d finishedFact) Verdict { return m.finish(f, d.RunFinished) })
	case TypeRunCancelled:
		return decoded(f, m.cancel)
	case TypeRunCommitted:
		return decoded(f, m.commit)
	case TypeRunForgotten:
		return decoded(f, m.forgetKey)
	}
	return refuse("the type is not one that runs have")
}

func decoded[D any](f Fact, fold func(Fact, D) Verdict) Verdict {
	var d D
	if len(f.Data) > 0 { // a cancellation need not say why
		if err := unmarshal(f.Data, &d); err != nil {
			return refuse("the data cannot be read: " + err.Error())
		}
	}
	return fold(f, d)
}

// unread is what the fold has no use for, and does not spend its time on.
type unread struct{}

func (*unread) UnmarshalJSON([]byte) error { return nil }

// finishedFact is RunFinished but for what only those read who judge.
type finishedFact struct {
	RunFinished
	Candidate unread `json:"candidate"`
}

func refuse(reason string) Verdict { return Verdict{Result: Refused, Reason: reason} }

// DueRun is the run whose next attempt may start, and when; nil if there is
// none, or another is under way.
func (m *Making) DueRun() (*Run, time.Time) {
	switch {
	case m.Live != nil && m.Live.State == RunResting:
		return m.Live, m.Live.Due
	case m.Live == nil && m.Waiting != nil:
		return m.Waiting, m.Waiting.Due
	}
	return nil, time.Time{}
}

// Find is the run of an id while it is live or waits.
func (m *Making) Find(id string) *Run {
	for _, r := range []*Run{m.Live, m.Waiting} {
		if r != nil && r.ID == id {
			return r
		}
	}
	return nil
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

func (m *Making) request(f Fact, d RunRequested) Verdict {
	if f.Run == "" || d.Cause == (Cause{}) {
		return refuse("it names no run or no cause")
	}
	if !utf8.ValidString(f.Run) || !utf8.ValidString(f.Recipe) || !utf8.ValidString(f.Key) {
		return refuse("its run, recipe or key is no text in UTF-8")
	}
	if m.RunOf(d.Cause) != "" || m.Find(f.Run) != nil || slices.Contains(m.Ended, f.Run) {
		return Verdict{Result: Known}
	}
	result := Absorbed
	if m.Waiting == nil {
		result, m.Gone = Accepted, false
		m.Waiting = &Run{ID: f.Run, Recipe: f.Recipe, Key: f.Key, Partition: f.Partition, State: RunWaiting,
			First: d.Cause, Asking: f.At, Priority: d.Priority}
	}
	m.Waiting.ask(f, d)
	m.see(d.Cause, m.Waiting.ID, f.At)
	return Verdict{Result: result}
}

// ask takes one more cause in. A run that somebody wants at once is not put off
// by those who could wait, and one that is to begin is not by a cause that has a
// place of its own later.
func (r *Run) ask(f Fact, d RunRequested) {
	quiet := f.At.Add(max(d.Debounce, d.Delay))
	latest := f.At.Add(max(d.Debounce, d.MaxWait, d.Delay))
	if r.Causes == 0 || latest.Before(r.Latest) {
		r.Latest = latest
	}
	if later := d.Delay > d.Debounce && r.Due.Before(quiet); r.Causes == 0 || !later {
		r.Quiet, r.Due = quiet, quiet
	}
	if r.Latest.Before(r.Due) {
		r.Due = r.Latest
	}
	r.Causes++
	r.Asked = append(r.Asked, f.Offset)
	if len(r.Asked) > maxAsked {
		r.Asked = slices.Delete(r.Asked, 0, len(r.Asked)-maxAsked)
	}
	r.Newest, r.Config = d.Cause, d.Config
	r.Priority = max(r.Priority, d.Priority)
	if n := len(d.Events); n > 0 {
		r.Event = d.Events[n-1]
	}
	if f.By != "" {
		r.By = f.By
	}
	if d.Again != "" {
		r.Again = d.Again
	}
}

func (m *Making) start(f Fact, d RunStarted) Verdict {
	if m.Live == nil {
		return m.startFirst(f, d)
	}
	switch r := m.Live; {
	case r.ID != f.Run:
		return refuse("another run is live: " + r.ID)
	case r.State != RunResting:
		return refuse("it is " + string(r.State))
	case d.Attempt != r.NextAttempt():
		return refuse("its next attempt is " + strconv.Itoa(r.NextAttempt()))
	}
	m.Live.begin(f, d)
	return Verdict{Result: Accepted}
}

func (m *Making) startFirst(f Fact, d RunStarted) Verdict {
	switch r := m.Waiting; {
	case r == nil || r.ID != f.Run:
		return refuse("it does not wait")
	case d.Attempt != 1 || d.Plan == nil:
		return refuse("its first attempt is 1 and has a plan")
	case d.Seen != r.LastAsked():
		return refuse("a cause has come since its inputs were looked up")
	}
	plan, err := json.Marshal(d.Plan)
	if err != nil {
		return refuse("its plan cannot be written: " + err.Error())
	}
	m.Live, m.Waiting = m.Waiting, nil
	m.Live.Plan, m.Live.Pool = plan, d.Plan.Pool
	for _, in := range d.Plan.Inputs {
		if in.Commit != "" {
			m.Live.From = append(m.Live.From, in.Commit)
		}
	}
	m.Live.begin(f, d)
	return Verdict{Result: Accepted}
}

func (r *Run) begin(f Fact, d RunStarted) {
	r.State, r.Due = RunRunning, time.Time{}
	r.Attempts = append(r.Attempts, Attempt{Number: d.Attempt, Offset: f.Offset, Started: f.At, Where: d.Where})
}

func (m *Making) finish(f Fact, d RunFinished) Verdict {
	r := m.Live
	switch {
	case r == nil || r.ID != f.Run:
		return refuse("it is not live")
	case r.State != RunRunning || d.Attempt != r.Attempt().Number:
		return refuse("that attempt is not under way")
	case !d.Outcome.known():
		return refuse("it says no outcome")
	}
	r.close(f, d)
	return m.after(f, d)
}

// close notes how the attempt ended.
func (r *Run) close(f Fact, d RunFinished) {
	a := r.Attempt()
	a.Ended, a.Outcome, a.Reason, a.Pending = f.At, d.Outcome, d.Reason, ""
	a.Where = a.With(d.Where)
	if d.Outcome != OutcomeLost || r.Result == nil {
		r.Result = &d.Result
	}
}

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

// after decides what follows from an attempt's end.
func (m *Making) after(f Fact, d RunFinished) Verdict {
	r := m.Live
	var p rule
	_ = unmarshal(r.Plan, &p) // the fold has written it
	failures, lost := r.count(OutcomeFailed), r.count(OutcomeLost)
	switch {
	case r.Cancel != nil:
		return m.end(f, RunCancelled, r.Cancel.Reason)
	case d.Outcome == OutcomeCancelled:
		return m.end(f, RunCancelled, d.Reason)
	case d.Outcome == OutcomeSucceeded && p.Dataset != "":
		r.State = RunSettling
	case d.Outcome == OutcomeSucceeded:
		return m.end(f, RunSucceeded, "")
	case d.Outcome == OutcomeLeft: // as often as somebody likes to stop his laptop
		r.rest(f.At)
	case d.Outcome == OutcomeLost && lost < maxLost:
		r.rest(f.At.Add(wait(p.Backoff, lost-1)))
	case d.Outcome == OutcomeLost:
		return m.end(f, RunFailed, strconv.Itoa(lost)+" attempts were lost: "+d.Reason)
	case d.Permanent || failures >= max(p.Attempts, 1):
		return m.end(f, RunFailed, d.Reason)
	default:
		r.rest(f.At.Add(wait(p.Backoff, failures)))
	}
	return Verdict{Result: Accepted}
}

func (r *Run) count(o Outcome) (n int) {
	for i := range r.Attempts {
		if r.Attempts[i].Outcome == o {
			n++
		}
	}
	return n
}

func (r *Run) rest(until time.Time) { r.State, r.Due = RunResting, until }

// wait is how long the nth failure is waited after. The first loss is not: it
// was not the command's fault.
func wait(b Backoff, n int) time.Duration {
	if n < 1 {
		return 0
	}
	d := b.First
	for range n - 1 {
		if d *= 2; d >= b.Cap {
			break
		}
	}
	return min(d, max(b.First, b.Cap))
}

func (m *Making) cancel(f Fact, d RunCancelledData) Verdict {
	r := m.Find(f.Run)
	switch {
	case r == nil:
		return refuse("it neither waits nor is live")
	case r.Cancel != nil:
		return Verdict{Result: Known}
	case r.State == RunSettling:
		return refuse("it has succeeded, and what it made is being put on its dataset")
	}
	r.Cancel = &Cancel{At: f.At, By: f.By, Reason: d.Reason}
	if r.State == RunRunning {
		return Verdict{Result: Accepted} // its agent is told, and tells of the end
	}
	return m.endOf(r, f, RunCancelled, d.Reason)
}

func (m *Making) commit(f Fact, d RunCommitted) Verdict {
	if m.Live == nil || m.Live.ID != f.Run || m.Live.State != RunSettling {
		return refuse("it has nothing to put on a dataset")
	}
	switch {
	case d.Lost != "" && m.Live.Cancel != nil:
		return m.end(f, RunCancelled, m.Live.Cancel.Reason)
	case d.Lost != "":
		return m.end(f, RunFailed, d.Lost)
	}
	m.Live.Commit = d.Commit
	return m.end(f, RunSucceeded, "")
}

func (m *Making) end(f Fact, s RunState, reason string) Verdict { return m.endOf(m.Live, f, s, reason) }

// endOf takes a run out of the making. What it was asked with and what it was
// to do is on the log.
func (m *Making) endOf(r *Run, f Fact, s RunState, reason string) Verdict {
	r.State, r.Reason, r.End, r.Due = s, reason, f.At, time.Time{}
	r.Event, r.Plan = nil, nil
	if m.Live == r {
		m.Live = nil
	} else {
		m.Waiting = nil
	}
	v := Verdict{Result: Accepted, Ended: r}
	m.Ended = append(m.Ended, r.ID)
	switch {
	case m.Gone:
		v.Forgotten, m.Ended = m.Ended, nil
	case len(m.Ended) > KeptRuns:
		v.Forgotten = []string{m.Ended[0]}
		m.Ended = slices.Delete(m.Ended, 0, 1)
	}
	return v
}

// forgetKey ends what there is of a key that has gone. An attempt under way is
// told to end, and is forgotten then; so is what is about to be put on a dataset,
// once somebody has said that it will not be.
func (m *Making) forgetKey(f Fact, d RunForgotten) Verdict {
	switch {
	case d.Cause == (Cause{}):
		return refuse("it names no cause")
	case m.RunOf(d.Cause) == noRun:
		return Verdict{Result: Known}
	}
	m.see(d.Cause, noRun, f.At)
	v := Verdict{Result: Accepted, Forgotten: m.Ended}
	m.Ended, m.Gone = nil, true
	if m.Waiting != nil {
		v.Forgotten = append(v.Forgotten, m.Waiting.ID)
		m.Waiting = nil
	}
	switch r := m.Live; {
	case r == nil:
	case r.State == RunResting:
		v.Forgotten = append(v.Forgotten, r.ID)
		m.Live = nil
	case r.Cancel == nil:
		r.Cancel = &Cancel{At: f.At, By: f.By, Reason: d.Reason}
	}
	return v
}
