package scheduler

import (
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
)

const (
	// overtime is how long an attempt may go on beyond the time that it has before it
	// is given up although it is there.
	overtime = 10 * time.Minute
	// telling is how long an agent may need to tell of the end, while the gateway is
	// away. With it, what is heard of has as long as agent.Longest says.
	telling = time.Hour
)

// suspicion is what speaks against an attempt. Both are empty where it is not
// doubted.
type suspicion struct {
	gone  string // why it is lost if its launcher has it no more
	there string // why it is lost even if its launcher has it
}

func (s suspicion) any() bool { return s != suspicion{} }

// rules say when an attempt is doubted.
type rules struct {
	silence time.Duration
	alone   bool // nobody else launches
}

// suspect says what speaks against an attempt that was heard of last at a time.
//
// Of an attempt that its launcher has not, there are two stories: it was launched
// and has gone, or whoever began it was stopped between the log and the launch.
// Nobody can tell them apart, for a cluster forgets what has ended. Both have one
// end: the attempt is lost, and the run gets another. That costs little, for the
// first loss is not waited after and what the lost one has saved is gone on from;
// and it is safe, for if it should be at work after all its token counts no more.
// To launch it again under its old name would be neither: it could find its
// predecessor's end, or run twice with one token.
//
// But whoever began it may be about to launch it, in another process. So it is
// given as long as an agent may be silent. Where nobody else launches there is no
// such doubt, and a restarted laptop goes on at once.
func (r rules) suspect(run *tidemill.Run, heard, now time.Time) (s suspicion) {
	silent := now.Sub(heard)
	switch {
	case silent > r.silence:
		s.gone = fmt.Sprintf("nobody heard of it for %s", silent.Round(time.Second))
	case r.alone:
		s.gone = "what ran it is no more"
	}
	p := termsOf(run)
	late := now.Sub(beganAt(run.Attempt())) - p.Deadline - p.Grace
	switch {
	case run.Cancel != nil && run.Attempt().Pending != "": // there is no agent that could hear of it
		s.there = "it was cancelled before its container ran"
	case run.Cancel != nil && now.Sub(run.Cancel.At) > p.Grace+2*r.silence: // one to hear of it, one to tell
		s.there = fmt.Sprintf("it did not end within %s of being cancelled", now.Sub(run.Cancel.At).Round(time.Second))
	case p.Deadline > 0 && late > p.more(silent > r.silence) && run.Attempt().Pending == "":
		s.there = fmt.Sprintf("it did not end within %s of its deadline", (late + p.Grace).Round(time.Second))
	}
	return s
}

// beganAt is when an attempt's own time began: what waited for a node had none.
func beganAt(a *tidemill.Attempt) time.Time {
	if a.Began.After(a.Started) {
		return a.Began
	}
	return a.Started
}

// terms are what a plan says of time.
type terms struct {
	Deadline time.Duration `json:"deadline"`
	Grace    time.Duration `json:"grace"`
}

// more is how long an attempt may go on behind its deadline and its grace. Its agent
// ends the command there, and brings away what that has made for as long again. One
// that is not heard of brings nothing away.
func (t terms) more(silent bool) time.Duration {
	if silent {
		return overtime
	}
	return t.Deadline + telling + overtime
}

func termsOf(run *tidemill.Run) (t terms) {
	_ = json.Unmarshal(run.Plan, &t) // the fold has written it
	return t
}
