package fold

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tidemill.dev"
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
	Recipe  string        `json:"recipe"`
	Key     string        `json:"key"`
	Next    int64         `json:"next"` // behind the last fact folded in
	Live    *tidemill.Run `json:"live,omitempty"`
	Waiting *tidemill.Run `json:"waiting,omitempty"`
	Ended   []string      `json:"ended,omitempty"` // newest last
	Seen    []Seen        `json:"seen,omitempty"`  // newest last
	Gone    bool          `json:"gone,omitempty"`  // its key has gone, and nothing has been asked for since
}

// Verdict is what became of a fact.
type Verdict struct {
	Result    VerdictResult
	Reason    string        // why it was refused
	Ended     *tidemill.Run // the run that it ended, whole
	Forgotten []string      // ids of runs that the making no longer names
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
	case tidemill.TypeRunRequested:
		return decoded(f, m.request)
	case tidemill.TypeRunStarted:
		return decoded(f, m.start)
	case tidemill.TypeRunSeen:
		return decoded(f, m.sight)
	case tidemill.TypeRunFinished:
		return decoded(f, func(f Fact, d finishedFact) Verdict { return m.finish(f, d.RunFinished) })
	case tidemill.TypeRunCancelled:
		return decoded(f, m.cancel)
	case tidemill.TypeRunCommitted:
		return decoded(f, m.commit)
	case tidemill.TypeRunForgotten:
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
	tidemill.RunFinished
	Candidate unread `json:"candidate"`
}

func refuse(reason string) Verdict { return Verdict{Result: Refused, Reason: reason} }

// DueRun is the run whose next attempt may start, and when; nil if there is
// none, or another is under way.
func (m *Making) DueRun() (*tidemill.Run, time.Time) {
	switch {
	case m.Live != nil && m.Live.State == tidemill.RunResting:
		return m.Live, m.Live.Due
	case m.Live == nil && m.Waiting != nil:
		return m.Waiting, m.Waiting.Due
	}
	return nil, time.Time{}
}

// Find is the run of an id while it is live or waits.
func (m *Making) Find(id string) *tidemill.Run {
	for _, r := range []*tidemill.Run{m.Live, m.Waiting} {
		if r != nil && r.ID == id {
			return r
		}
	}
	return nil
}

func (m *Making) request(f Fact, d tidemill.RunRequested) Verdict {
	if f.Run == "" || d.Cause == (tidemill.Cause{}) {
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
		m.Waiting = &tidemill.Run{ID: f.Run, Recipe: f.Recipe, Key: f.Key, Partition: f.Partition, State: tidemill.RunWaiting,
			First: d.Cause, Asking: f.At, Priority: d.Priority}
	}
	ask(m.Waiting, f, d)
	m.see(d.Cause, m.Waiting.ID, f.At)
	return Verdict{Result: result}
}

// ask takes one more cause in. A run that somebody wants at once is not put off
// by those who could wait, and one that is to begin is not by a cause that has a
// place of its own later.
func ask(r *tidemill.Run, f Fact, d tidemill.RunRequested) {
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

func (m *Making) start(f Fact, d tidemill.RunStarted) Verdict {
	if m.Live == nil {
		return m.startFirst(f, d)
	}
	switch r := m.Live; {
	case r.ID != f.Run:
		return refuse("another run is live: " + r.ID)
	case r.State != tidemill.RunResting:
		return refuse("it is " + string(r.State))
	case d.Attempt != r.NextAttempt():
		return refuse("its next attempt is " + strconv.Itoa(r.NextAttempt()))
	}
	begin(m.Live, f, d)
	return Verdict{Result: Accepted}
}

func (m *Making) startFirst(f Fact, d tidemill.RunStarted) Verdict {
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
	begin(m.Live, f, d)
	return Verdict{Result: Accepted}
}

func begin(r *tidemill.Run, f Fact, d tidemill.RunStarted) {
	r.State, r.Due = tidemill.RunRunning, time.Time{}
	r.Attempts = append(r.Attempts, tidemill.Attempt{Number: d.Attempt, Offset: f.Offset, Started: f.At, Where: d.Where})
}

func (m *Making) finish(f Fact, d tidemill.RunFinished) Verdict {
	r := m.Live
	switch {
	case r == nil || r.ID != f.Run:
		return refuse("it is not live")
	case r.State != tidemill.RunRunning || d.Attempt != r.Attempt().Number:
		return refuse("that attempt is not under way")
	case !d.Outcome.Known():
		return refuse("it says no outcome")
	}
	close(r, f, d)
	return m.after(f, d)
}

// close notes how the attempt ended.
func close(r *tidemill.Run, f Fact, d tidemill.RunFinished) {
	a := r.Attempt()
	a.Ended, a.Outcome, a.Reason, a.Pending = f.At, d.Outcome, d.Reason, ""
	a.Where = a.With(d.Where)
	if d.Outcome != tidemill.OutcomeLost || r.Result == nil {
		r.Result = &d.Result
	}
}

// after decides what follows from an attempt's end.
func (m *Making) after(f Fact, d tidemill.RunFinished) Verdict {
	r := m.Live
	var p rule
	_ = unmarshal(r.Plan, &p) // the fold has written it
	failures, lost := count(r, tidemill.OutcomeFailed), count(r, tidemill.OutcomeLost)
	switch {
	case r.Cancel != nil:
		return m.end(f, tidemill.RunCancelled, r.Cancel.Reason)
	case d.Outcome == tidemill.OutcomeCancelled:
		return m.end(f, tidemill.RunCancelled, d.Reason)
	case d.Outcome == tidemill.OutcomeSucceeded && p.Dataset != "":
		r.State = tidemill.RunSettling
	case d.Outcome == tidemill.OutcomeSucceeded:
		return m.end(f, tidemill.RunSucceeded, "")
	case d.Outcome == tidemill.OutcomeLeft: // as often as somebody likes to stop his laptop
		rest(r, f.At)
	case d.Outcome == tidemill.OutcomeLost && lost < maxLost:
		rest(r, f.At.Add(wait(p.Backoff, lost-1)))
	case d.Outcome == tidemill.OutcomeLost:
		return m.end(f, tidemill.RunFailed, strconv.Itoa(lost)+" attempts were lost: "+d.Reason)
	case d.Permanent || failures >= max(p.Attempts, 1):
		return m.end(f, tidemill.RunFailed, d.Reason)
	default:
		rest(r, f.At.Add(wait(p.Backoff, failures)))
	}
	return Verdict{Result: Accepted}
}

func count(r *tidemill.Run, o tidemill.Outcome) (n int) {
	for i := range r.Attempts {
		if r.Attempts[i].Outcome == o {
			n++
		}
	}
	return n
}

func rest(r *tidemill.Run, until time.Time) { r.State, r.Due = tidemill.RunResting, until }

// wait is how long the nth failure is waited after. The first loss is not: it
// was not the command's fault.
func wait(b tidemill.Backoff, n int) time.Duration {
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

func (m *Making) cancel(f Fact, d tidemill.RunCancelledData) Verdict {
	r := m.Find(f.Run)
	switch {
	case r == nil:
		return refuse("it neither waits nor is live")
	case r.Cancel != nil:
		return Verdict{Result: Known}
	case r.State == tidemill.RunSettling:
		return refuse("it has succeeded, and what it made is being put on its dataset")
	}
	r.Cancel = &tidemill.Cancel{At: f.At, By: f.By, Reason: d.Reason}
	if r.State == tidemill.RunRunning {
		return Verdict{Result: Accepted} // its agent is told, and tells of the end
	}
	return m.endOf(r, f, tidemill.RunCancelled, d.Reason)
}

func (m *Making) commit(f Fact, d tidemill.RunCommitted) Verdict {
	if m.Live == nil || m.Live.ID != f.Run || m.Live.State != tidemill.RunSettling {
		return refuse("it has nothing to put on a dataset")
	}
	switch {
	case d.Lost != "" && m.Live.Cancel != nil:
		return m.end(f, tidemill.RunCancelled, m.Live.Cancel.Reason)
	case d.Lost != "":
		return m.end(f, tidemill.RunFailed, d.Lost)
	}
	m.Live.Commit = d.Commit
	return m.end(f, tidemill.RunSucceeded, "")
}

func (m *Making) end(f Fact, s tidemill.RunState, reason string) Verdict {
	return m.endOf(m.Live, f, s, reason)
}

// endOf takes a run out of the making. What it was asked with and what it was
// to do is on the log.
func (m *Making) endOf(r *tidemill.Run, f Fact, s tidemill.RunState, reason string) Verdict {
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
func (m *Making) forgetKey(f Fact, d tidemill.RunForgotten) Verdict {
	switch {
	case d.Cause == (tidemill.Cause{}):
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
	case r.State == tidemill.RunResting:
		v.Forgotten = append(v.Forgotten, r.ID)
		m.Live = nil
	case r.Cancel == nil:
		r.Cancel = &tidemill.Cancel{At: f.At, By: f.By, Reason: d.Reason}
	}
	return v
}

// sight adds what a controller has seen of the newest attempt of the live run. Several
// controllers look at the same pods and do not read each other's facts first, so a fact
// without news changes nothing. A late fact counts as long as that attempt is the newest.
func (m *Making) sight(f Fact, d tidemill.RunSeen) Verdict {
	r := m.Live
	switch {
	case r == nil || r.ID != f.Run:
		return refuse("it is not live")
	case d.Attempt != len(r.Attempts):
		return refuse("its newest attempt is " + strconv.Itoa(len(r.Attempts)))
	}
	a := &r.Attempts[len(r.Attempts)-1]
	after, news := a.Sighted(d)
	if !news {
		return Verdict{Result: Known}
	}
	if a.Pending != "" && after.Pending == "" {
		after.Began = f.At
	}
	*a = after
	return Verdict{Result: Accepted}
}
