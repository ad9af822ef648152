package chaos

import "tidemill.dev"

// story is what the sink and the streams tell of a round's triggers.
type story struct {
	in       []record  // what was published, each partition in order of offset
	attempts []attempt // as the sink saw them, in its order
	replies  []reply   // on the stream out, each partition in order of offset
	letters  []letter
}

// attempt is one request as the sink saw it. Began and ended are places in the
// sink's own order of all that happened to it: two processes' clocks need not
// be compared. Ended is 0 where nothing was answered.
type attempt struct {
	rule, id     string
	began, ended int
	status       int
	late         bool // the sink slept, and who asked may not have waited
}

func (a attempt) fine() bool { return a.ended > 0 && a.status/100 == 2 }

// reply is an event that a dispatcher has published for the sink.
type reply struct {
	partition         int32
	offset            int64
	id, trigger       string
	causeID, causeSrc string
	to                string // what the sink says that it answers
	key, data         string
}

// letter is an event that a dispatcher has given up.
type letter struct{ id, rule, of, reason string }

// replyID is what the reply to an event must be called, whoever delivers it
// and however often.
func replyID(rule, id string) string {
	return tidemill.Cause{Source: sourceHere, ID: id}.Derive("reply", rule, "0")
}
