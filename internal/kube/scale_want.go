package kube

import (
	"time"

	"tidemill.dev/config"
)

// Lag is how a scorer stands.
type Lag struct {
	Behind     int64     // events that its group has yet to pass
	Newest     time.Time // when its stream was last seen to grow
	Partitions int       // of its stream; 0 is not known
	// Held says that events are parked until their models come. By itself that
	// needs no scorer: a model that never comes would keep one for ever. But
	// whenever Models is another number than before, one of them may have come.
	Held   bool
	Models int64 // changes whenever some model's champion does
}

const (
	// calm is how long fewer replicas must be enough before one is taken away.
	calm = 30 * time.Second
	// calmest is as long as that is put off for one that comes to be missed.
	calmest = 10 * time.Minute
)

// tide is what is remembered of a scorer between two looks. It follows from what
// was seen and from nothing that was done here: whoever else scales is seen too.
type tide struct {
	have   int       // replicas, at the last look
	busy   time.Time // there was something to do
	low    time.Time // since then fewer would be enough; zero if they would not
	fell   time.Time // one was taken away
	calm   time.Duration
	models int64
	known  bool // this is not the first look
}

// want is how many replicas a scorer should have, and what to remember. Up it goes
// at once and as far as the lag asks, for whoever waits for a score waits now. Down
// it goes by one, and only when fewer have been enough for a while: that there is
// no lag may be what the many are good for. If one that was taken away is missed,
// the next is taken more slowly, so that it does not come and go for ever. When
// nothing has come for long enough, all go that may.
func want(t tide, l Lag, have int, r config.Replicas, now time.Time) (int, tide) {
	t = t.look(l, have, now)
	n := asked(l, r)
	woken := l.Held && (!t.known || l.Models != t.models)
	t.models, t.known = l.Models, true
	if n > 0 || woken {
		t.busy = now
	}
	switch {
	case woken && have == 0:
		n = max(n, 1)
	case have == 0, now.Sub(t.busy) >= r.Idle:
	default:
		n = max(n, 1)
	}
	n = max(n, r.Min)
	if n >= have || n == r.Min && now.Sub(t.busy) >= r.Idle {
		t.low = time.Time{}
		return n, t
	}
	if t.low.IsZero() {
		t.low = now
	}
	if now.Sub(t.low) < t.calm {
		return have, t
	}
	t.low = time.Time{}
	return have - 1, t
}

// look takes in what has changed since the last look.
func (t tide) look(l Lag, have int, now time.Time) tide {
	if !t.known {
		t.have, t.calm, t.busy = have, calm, now
	}
	if l.Newest.After(t.busy) {
		t.busy = l.Newest
	}
	switch {
	case have < t.have:
		t.fell, t.low = now, time.Time{}
	case have > t.have && !t.fell.IsZero() && now.Sub(t.fell) < 2*t.calm: // it is missed
		t.calm = min(2*t.calm, calmest)
	case have > t.have:
		t.calm = calm
	}
	t.have = have
	return t
}

// asked is how many replicas the lag is worth.
func asked(l Lag, r config.Replicas) int {
	if l.Behind <= 0 {
		return 0
	}
	each := max(r.Lag, 1)
	n := int(min((l.Behind+each-1)/each, 1<<20))
	if l.Partitions > 0 {
		n = min(n, l.Partitions)
	}
	return min(n, max(r.Max, 1))
}
