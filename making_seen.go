package tidemill

import (
	"reflect"
	"strconv"
)

// sight takes in what a controller has seen of the newest attempt of the live run.
// Controllers look at the same pods, and none of them before it writes at what the
// others have just written; so what is known already changes nothing, and what
// comes late is taken for as long as it can only be of that attempt.
func (m *Making) sight(f Fact, d RunSeen) Verdict {
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
