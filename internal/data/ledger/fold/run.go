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

// Fact has the parts of an event on the stream facts that the folds read.
type Fact struct {
	Partition int32
	Offset    int64
	ID        string
	Type      string
	Recipe    string
	Model     string // name of the model; empty for facts of runs
	Key       string // subject of the event
	Run       string
	By        string    // authid
	At        time.Time // time of the event
	Data      []byte    // JSON
}

// Making is the state of a recipe for one key: at most one live run, at most one waiting run,
// and the ids of the newest runs that have ended. It is a pure function of the order of its
// facts on the log, and does not depend on how they were batched. It ignores unknown facts
// and fields.
//
// The waiting run takes further causes until its first attempt begins. If a start comes too late for
// the newest cause, the run is closed: it is live then, and still waits for its first attempt. Later
// causes ask for the next run. So a key whose causes never pause does not wait for ever.
type Making struct {
	Recipe  string        `json:"recipe"`
	Key     string        `json:"key"`
	Next    int64         `json:"next"` // offset after the last fact that was folded in
	Live    *tidemill.Run `json:"live,omitempty"`
	Waiting *tidemill.Run `json:"waiting,omitempty"`
	Ended   []string      `json:"ended,omitempty"`   // ids of runs, the newest last
	Seen    []Seen        `json:"seen,omitempty"`    // causes by run, the newest last
	Last    *LastEnd      `json:"last,omitempty"`    // end of the newest run that has ended; nil if there is none since the key was removed last
	Gone    bool          `json:"gone,omitempty"`    // whether its key is removed and no run was requested since
	Begun   int64         `json:"begun,omitempty"`   // number of runs that have begun, from the first whose start names its causes
	Removed int64         `json:"removed,omitempty"` // value of Begun when the key was removed last
}

// LastEnd is the end of a run.
type LastEnd struct {
	State tidemill.RunState `json:"state"`
	At    int64             `json:"at"` // in Unix milliseconds
}

// Verdict is the result of folding a fact in.
type Verdict struct {
	Result    VerdictResult
	Reason    string        // reason why it was refused
	Ended     *tidemill.Run // complete run that the fact has ended
	Forgotten []string      // ids of runs that the making does not name any more
}

// VerdictResult says whether a fact changed anything.
type VerdictResult string

// The results.
const (
	Accepted VerdictResult = "accepted"
	Merged   VerdictResult = "merged" // its cause was merged into the waiting run
	Known    VerdictResult = "known"  // a repetition of an earlier fact
	Closed   VerdictResult = "closed" // a start missed a cause; the waiting run takes no further ones
	Refused  VerdictResult = "refused"
)

const (
	// KeptRuns is the number of ended runs that a making names. Older runs are only on the
	// log and in the store.
	KeptRuns = 10

	maxAsked = 10_000 // greatest number of offsets in Run.Asked
	maxLost  = 10     // number of lost attempts since a run's last checkpoint that ends the run
)

// Apply folds a fact in. The facts of a making must come in their order.
func (m *Making) Apply(f Fact) Verdict {
	if f.Offset < m.Next {
		return Verdict{Result: Known}
	}
	m.Recipe, m.Key, m.Next = f.Recipe, f.Key, f.Offset+1
	f.By = strings.ToValidUTF8(f.By, "\uFFFD") // other text changes when it is written as JSON
	switch f.Type {
	case tidemill.TypeRunRequested:
		return decoded(f, m.request)
	case tidemill.TypeRunStarted:
		return decoded(f, m.start)
	case tidemill.TypeRunSeen:
		return decoded(f, m.addSighting)
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
	if len(f.Data) > 0 { // a cancellation need not have data
		if err := unmarshal(f.Data, &d); err != nil {
			return refuse("the data cannot be read: " + err.Error())
		}
	}
	return fold(f, d)
}

// unreadField is a field that the fold does not need and does not decode, to save time.
type unreadField struct{}

func (*unreadField) UnmarshalJSON([]byte) error { return nil }

// finishedFact is RunFinished without the candidate, which only judges need.
type finishedFact struct {
	tidemill.RunFinished
	Candidate unreadField `json:"candidate"`
}

func refuse(reason string) Verdict { return Verdict{Result: Refused, Reason: reason} }

// DueRun returns the run whose next attempt may start, and the time when it may. It is nil if
// there is no such run, or if an attempt is under way.
func (m *Making) DueRun() (*tidemill.Run, time.Time) {
	switch {
	case m.Live != nil && (m.Live.State == tidemill.RunRetrying || m.Live.State == tidemill.RunWaiting):
		return m.Live, m.Live.Due
	case m.Live == nil && m.Waiting != nil:
		return m.Waiting, m.Waiting.Due
	}
	return nil, time.Time{}
}

// Find returns a run that is live or waits; nil if it is not.
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
	result := Merged
	if m.Waiting == nil {
		result, m.Gone = Accepted, false
		m.Waiting = &tidemill.Run{ID: f.Run, Recipe: f.Recipe, Key: f.Key, Partition: f.Partition, State: tidemill.RunWaiting,
			First: d.Cause, Asking: f.At, Priority: d.Priority}
	}
	mergeCause(m.Waiting, f, d)
	m.see(d.Cause, m.Waiting.ID, f.At)
	return Verdict{Result: result}
}

// mergeCause merges one more cause into a run. A request for an immediate start is not delayed by
// later requests that may wait. A cause with a longer delay than its debounce does not delay
// a run that is due before.
func mergeCause(r *tidemill.Run, f Fact, d tidemill.RunRequested) {
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
	switch r := m.Live; {
	case r == nil:
		return m.startFirst(f, d, m.Waiting)
	case r.State == tidemill.RunWaiting:
		return m.startFirst(f, d, r)
	case r.ID != f.Run:
		return refuse("another run is live: " + r.ID)
	case r.State != tidemill.RunRetrying:
		return refuse("it is " + string(r.State))
	case d.Attempt != r.NextAttempt():
		return refuse("its next attempt is " + strconv.Itoa(r.NextAttempt()))
	}
	if d.Plan != nil && d.MAC != "" { // plans of earlier facts are not replaced, and fold as ever
		if why := setPlan(m.Live, f, d); why != "" {
			return refuse(why)
		}
	}
	begin(m.Live, f, d)
	return Verdict{Result: Accepted}
}

// startFirst begins the first attempt of the run that waits, or of the closed one.
func (m *Making) startFirst(f Fact, d tidemill.RunStarted, r *tidemill.Run) Verdict {
	switch {
	case r == nil || r.ID != f.Run:
		return refuse("it does not wait")
	case d.Attempt != 1 || d.Plan == nil:
		return refuse("its first attempt is 1 and has a plan")
	case missesCause(r, d) && (d.Causes <= 0 || m.Live == r):
		return refuse("a cause has come since its inputs were looked up")
	case missesCause(r, d) && r.Due.After(f.At):
		return refuse("a cause that has come since its inputs were looked up delays it")
	case missesCause(r, d):
		m.Live, m.Waiting = r, nil
		return Verdict{Result: Closed}
	}
	if why := setPlan(r, f, d); why != "" {
		return refuse(why)
	}
	if m.Live == nil {
		m.Live, m.Waiting = r, nil
	}
	if d.Causes > 0 || m.Begun > 0 { // starts of earlier versions alone are not counted, and fold as ever
		m.Begun++
		m.Live.Number = m.Begun
	}
	begin(m.Live, f, d)
	return Verdict{Result: Accepted}
}

// setPlan gives a run the plan of a fact. It returns the reason if it cannot.
func setPlan(r *tidemill.Run, f Fact, d tidemill.RunStarted) (why string) {
	plan, err := planBytes(f, d)
	if err != nil {
		return "its plan cannot be written: " + err.Error()
	}
	r.Plan, r.PlanMAC, r.Pool = plan, d.MAC, d.Plan.Pool
	for _, in := range d.Plan.Inputs {
		if again := len(r.Attempts) > 0 && slices.Contains(r.From, in.Commit); in.Commit != "" && !again {
			r.From = append(r.From, in.Commit)
		}
	}
	return ""
}

// planBytes returns the bytes that a run keeps of its plan. With a MAC they are those of the fact,
// which the MAC covers, so they also have what a later version has added.
func planBytes(f Fact, d tidemill.RunStarted) (json.RawMessage, error) {
	if d.MAC == "" {
		return json.Marshal(d.Plan)
	}
	var raw struct {
		Plan json.RawMessage `json:"plan"`
	}
	err := json.Unmarshal(f.Data, &raw)
	return raw.Plan, err
}

// missesCause reports whether a cause has come since the inputs of a run were looked up. Its data may
// not be in the inputs.
func missesCause(r *tidemill.Run, d tidemill.RunStarted) bool {
	if d.Causes > 0 {
		return d.Causes < r.Causes
	}
	return d.Seen != r.LastAsked()
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
	closeAttempt(r, f, d)
	return m.afterAttempt(f, d)
}

// closeAttempt records how the attempt ended.
func closeAttempt(r *tidemill.Run, f Fact, d tidemill.RunFinished) {
	a := r.Attempt()
	a.Ended, a.Outcome, a.Reason, a.Pending = f.At, d.Outcome, d.Reason, ""
	a.Saved = d.Saved && d.Outcome == tidemill.OutcomeLost
	a.Where = a.With(d.Where)
	if d.Outcome != tidemill.OutcomeLost || r.Result == nil {
		r.Result = &d.Result
	}
}

// afterAttempt decides how the run continues after an attempt's end.
func (m *Making) afterAttempt(f Fact, d tidemill.RunFinished) Verdict {
	r := m.Live
	var p rule
	_ = unmarshal(r.Plan, &p) // the fold has written it
	failures, lost := count(r.Attempts, tidemill.OutcomeFailed), count(sinceSaved(r.Attempts), tidemill.OutcomeLost)
	switch {
	case r.Cancel != nil:
		return m.end(f, tidemill.RunCancelled, r.Cancel.Reason)
	case d.Outcome == tidemill.OutcomeCancelled:
		return m.end(f, tidemill.RunCancelled, d.Reason)
	case d.Outcome == tidemill.OutcomeSucceeded && p.Dataset != "":
		r.State = tidemill.RunCommitting
	case d.Outcome == tidemill.OutcomeSucceeded:
		return m.end(f, tidemill.RunSucceeded, "")
	case d.Outcome == tidemill.OutcomeLeft: // without a limit: a laptop may be stopped often
		rest(r, r.Asking)
	case d.Outcome == tidemill.OutcomeLost && lost <= 1:
		rest(r, r.Asking)
	case d.Outcome == tidemill.OutcomeLost && lost < maxLost:
		rest(r, f.At.Add(backoffWait(p.Backoff, lost-1)))
	case d.Outcome == tidemill.OutcomeLost:
		return m.end(f, tidemill.RunFailed, strconv.Itoa(lost)+" attempts were lost: "+d.Reason)
	case d.Permanent || failures >= max(p.Attempts, 1):
		return m.end(f, tidemill.RunFailed, d.Reason)
	default:
		rest(r, f.At.Add(backoffWait(p.Backoff, failures)))
	}
	return Verdict{Result: Accepted}
}

func count(all []tidemill.Attempt, o tidemill.Outcome) (n int) {
	for i := range all {
		if all[i].Outcome == o {
			n++
		}
	}
	return n
}

// sinceSaved returns the attempts after the last one that was lost with a new checkpoint. A run that gets further
// each time may lose any number of machines.
func sinceSaved(all []tidemill.Attempt) []tidemill.Attempt {
	for i := len(all); i > 0; i-- {
		if all[i-1].Saved {
			return all[i:]
		}
	}
	return all
}

// rest ends an attempt that another one follows. Runs wait in the order of their times, so a run that
// lost its attempt by no fault of its command gets the time of its request, and newer runs come later.
func rest(r *tidemill.Run, until time.Time) { r.State, r.Due = tidemill.RunRetrying, until }

// backoffWait returns the wait after the nth failure. The wait is zero for n = 0, the first loss,
// because a loss is not the command's fault.
func backoffWait(b tidemill.Backoff, n int) time.Duration {
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
	case r.State == tidemill.RunCommitting:
		return refuse("it has succeeded, and what it made is being put on its dataset")
	}
	r.Cancel = &tidemill.Cancel{At: f.At, By: f.By, Reason: d.Reason}
	if r.State == tidemill.RunRunning {
		return Verdict{Result: Accepted} // its agent learns of it, and reports the end
	}
	return m.endOf(r, f, tidemill.RunCancelled, d.Reason)
}

func (m *Making) commit(f Fact, d tidemill.RunCommitted) Verdict {
	if m.Live == nil || m.Live.ID != f.Run || m.Live.State != tidemill.RunCommitting {
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

// endOf moves a run out of the making. Its newest cause and its plan are dropped: they are
// on the log.
func (m *Making) endOf(r *tidemill.Run, f Fact, s tidemill.RunState, reason string) Verdict {
	r.State, r.Reason, r.End, r.Due = s, reason, f.At, time.Time{}
	r.Event, r.Plan, r.PlanMAC = nil, nil, ""
	if m.Live == r {
		m.Live = nil
	} else {
		m.Waiting = nil
	}
	v := Verdict{Result: Accepted, Ended: r}
	m.Ended, m.Last = append(m.Ended, r.ID), &LastEnd{s, f.At.UnixMilli()}
	switch {
	case m.Gone:
		v.Forgotten, m.Ended, m.Last = m.Ended, nil, nil
	case len(m.Ended) > KeptRuns:
		v.Forgotten = []string{m.Ended[0]}
		m.Ended = slices.Delete(m.Ended, 0, 1)
	}
	return v
}

// forgetKey ends the runs of a key that is removed. An attempt under way is cancelled, and
// its run is forgotten when the attempt has ended. A run that settles is forgotten once a
// fact says that its output is committed or lost.
func (m *Making) forgetKey(f Fact, d tidemill.RunForgotten) Verdict {
	switch {
	case d.Cause == (tidemill.Cause{}):
		return refuse("it names no cause")
	case m.RunOf(d.Cause) == noRun:
		return Verdict{Result: Known}
	}
	m.see(d.Cause, noRun, f.At)
	v := Verdict{Result: Accepted, Forgotten: m.Ended}
	m.Ended, m.Last, m.Gone, m.Removed = nil, nil, true, m.Begun
	if m.Waiting != nil {
		v.Forgotten = append(v.Forgotten, m.Waiting.ID)
		m.Waiting = nil
	}
	switch r := m.Live; {
	case r == nil:
	case r.State == tidemill.RunRetrying || r.State == tidemill.RunWaiting:
		v.Forgotten = append(v.Forgotten, r.ID)
		m.Live = nil
	case r.Cancel == nil:
		r.Cancel = &tidemill.Cancel{At: f.At, By: f.By, Reason: d.Reason}
	}
	return v
}

// addSighting adds what a controller has seen of the newest attempt of the live run. Several
// controllers look at the same pods and do not read each other's facts first, so a fact
// without news changes nothing. A late fact counts as long as that attempt is the newest.
func (m *Making) addSighting(f Fact, d tidemill.RunSeen) Verdict {
	r := m.Live
	switch {
	case r == nil || r.ID != f.Run:
		return refuse("it is not live")
	case d.Attempt != len(r.Attempts) || d.Attempt == 0:
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
