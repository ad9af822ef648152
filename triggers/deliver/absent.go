package deliver

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrNotYet is what a resolver's error wraps where a subscriber is not there yet
// and may come: a service that gets ready, or that nobody has made so far. Its
// trigger rests as if it were paused until the resolver finds it. That is no
// attempt, so however long it takes, none of its events becomes a dead letter for
// it before it would be one in a pause.
var ErrNotYet = errors.New("not there yet")

// expectEvery is how often the resolver is asked about who is not there. It
// answers from memory.
const expectEvery = 200 * time.Millisecond

// absent are the triggers whose subscriber is not there yet, and why.
type absent struct {
	mu    sync.Mutex
	why   map[string]error
	heard chan struct{} // poked when one is added
}

func newAbsent() absent { return absent{why: map[string]error{}, heard: make(chan struct{}, 1)} }

func (a *absent) has(trigger string) bool { return a.of(trigger) != nil }

// of is why a trigger waits; nil if it does not.
func (a *absent) of(trigger string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why[trigger]
}

// set notes what a resolver said, and tells whether the trigger waits now and did
// not before, or the other way round.
func (a *absent) set(trigger string, why error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, before := a.why[trigger]
	if why == nil {
		delete(a.why, trigger)
	} else {
		a.why[trigger] = why
	}
	return before != (why != nil)
}

func (a *absent) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]string, 0, len(a.why))
	for name := range a.why {
		all = append(all, name)
	}
	return all
}

// missed has a trigger rest whose subscriber is not there yet.
func (d *Dispatcher) missed(trigger string, why error) {
	if d.absent.set(trigger, why) {
		d.o.Logger.Warn("a trigger waits for its subscriber", "trigger", trigger, "reason", why)
		poke(d.absent.heard)
	}
}

// expect looks for who was not there until the context ends. Triggers that no
// attempt has found to be waiting are not looked after: their next attempt tells.
func (d *Dispatcher) expect(ctx context.Context) {
	t := time.NewTimer(expectEvery)
	defer t.Stop()
	for {
		t.Reset(expectEvery)
		select {
		case <-d.absent.heard:
			d.rest()
		case <-t.C:
			if d.findAgain(ctx) {
				d.rest()
			}
		case <-ctx.Done():
			return
		}
		if len(d.absent.names()) > 0 {
			continue
		}
		select {
		case <-d.absent.heard:
			d.rest()
		case <-ctx.Done():
			return
		}
	}
}

// findAgain tells whether one of those who were not there is, or wants nothing any
// more.
func (d *Dispatcher) findAgain(ctx context.Context) (found bool) {
	for _, name := range d.absent.names() {
		s := (*d.senders.Load())[name]
		if s == nil { // its trigger is gone from the config
			found = d.absent.set(name, nil) || found
			continue
		}
		_, err := s.to.Load().subscriber.where(ctx)
		if errors.Is(err, ErrNotYet) {
			d.absent.set(name, err) // what it waits for may have become another
			continue
		}
		d.o.Logger.Info("a trigger's subscriber is there", "trigger", name)
		found = d.absent.set(name, nil) || found
	}
	return found
}

// rest has what is known of absent subscribers hold everywhere.
func (d *Dispatcher) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applyRanges()
	for _, l := range d.lanes {
		l.apply(d.terms(l.stream.Name), d.keeps(l))
	}
}
