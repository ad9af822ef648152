package chaos

import "tidemill.dev"

// story is the sink's record and the content of the streams after a round of triggers.
type story struct {
	in       []record  // published events, ordered by offset in each partition
	attempts []attempt // attempts in the sink's order
	replies  []reply   // replies on the stream out, ordered by offset in each partition
	letters  []deadLetter
}

// attempt is one request in the sink's record. Began and ended are numbers in the sink's own order
// of events, so that clocks of two processes need not be compared. Ended is 0 if there was no
// answer.
type attempt struct {
	rule, id     string
	began, ended int
	status       int
	late         bool // the sink slept, and the dispatcher may not have waited
}

func (a attempt) fine() bool { return a.ended > 0 && a.status/100 == 2 }

// reply is an event that a dispatcher has published for the sink.
type reply struct {
	partition         int32
	offset            int64
	id, trigger       string
	causeID, causeSrc string
	to                string // id of the event that the sink answers
	key, data         string
}

// deadLetter is the dead letter of an event.
type deadLetter struct{ id, rule, of, reason string }

// replyID returns the id that the reply to an event must have, in every delivery of the event.
func replyID(rule, id string) string {
	return tidemill.Cause{Source: sourceHere, ID: id}.Derive("reply", rule, "0")
}
