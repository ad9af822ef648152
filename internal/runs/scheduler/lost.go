package scheduler

import (
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
)

const (
	// overtime is the time between the end of an attempt's allowed time and its loss.
	overtime = 10 * time.Minute
	// telling is how long an agent may need to report the end while the gateway is away. With it,
	// an attempt that sends beats has as much time as agent.Longest returns.
	telling = time.Hour
)

// suspicion has the reasons to declare an attempt lost. Without a reason, both are empty.
type suspicion struct {
	gone  string // reason if its launcher no longer knows the attempt
	there string // reason even if its launcher still knows the attempt
}

func (s suspicion) any() bool { return s != suspicion{} }

// rules say when an attempt is suspected.
type rules struct {
	silence time.Duration
	alone   bool // no other process launches
}

// suspect returns the reasons to declare an attempt lost. heard is the time of its last beat.
//
// An attempt that its launcher does not know has either ended, or was never launched because its
// starter stopped between the log and the launch. Both cases look the same, because a cluster
// forgets ended attempts. In both cases the attempt is lost, and the run gets another attempt. That
// costs little: the next attempt begins without delay after a first loss, and resumes from the
// saved checkpoint. That is safe: if the lost attempt still runs, its token is void. To launch it
// again under its old name would be unsafe: it could find its predecessor's end, or run twice with
// one token.
//
// But another process may be about to launch the attempt. So the attempt is lost only after the
// time for which an agent may be silent. If no other process launches attempts, the loss is certain
// at once, so a restarted laptop continues without delay.
func (r rules) suspect(run *tidemill.Run, heard, now time.Time) (s suspicion) {
	silent := now.Sub(heard)
	switch {
	case silent > r.silence:
		s.gone = fmt.Sprintf("no beat from its agent for %s", silent.Round(time.Second))
	case r.alone:
		s.gone = "the process that ran it is gone"
	}
	p := termsOf(run)
	late := now.Sub(beganAt(run.Attempt())) - p.Deadline - p.Grace
	switch {
	case run.Cancel != nil && run.Attempt().Pending != "": // no agent in a pod could end the attempt
		s.there = "it was cancelled before it ran"
	case run.Cancel != nil && now.Sub(run.Cancel.At) > p.Grace+2*r.silence: // the agent has one silence to get the cancellation and one silence to report
		s.there = fmt.Sprintf("it did not end within %s of being cancelled", now.Sub(run.Cancel.At).Round(time.Second))
	case p.Deadline > 0 && late > p.more(silent > r.silence) && run.Attempt().Pending == "":
		s.there = fmt.Sprintf("it did not end within %s of its deadline", (late + p.Grace).Round(time.Second))
	}
	return s
}

// beganAt returns when an attempt's deadline began to run. The time in which its pod waited for a
// node does not count.
func beganAt(a *tidemill.Attempt) time.Time {
	if a.Began.After(a.Started) {
		return a.Began
	}
	return a.Started
}

// terms are the durations in a plan.
type terms struct {
	Deadline time.Duration `json:"deadline"`
	Grace    time.Duration `json:"grace"`
}

// more returns how long an attempt may go on after its deadline and grace. By then its agent has
// ended the command, and may upload for as long as the deadline. An agent that is silent uploads
// nothing.
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
