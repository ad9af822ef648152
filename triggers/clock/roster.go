package clock

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// askWithin bounds how long the keys of a schedule may take; hundreds of
	// thousands come within some seconds.
	askWithin = time.Minute
	// What fails is asked again after askAgain, doubled each time up to
	// mostAskAgain, so that a tick is not too late for want of a try.
	askAgain     = time.Second
	mostAskAgain = 16 * time.Second
)

// roster gets the keys of schedules whose keys others know. They are asked for
// beside the loop: who does not answer delays his schedule alone.
type roster struct {
	k      *Keeper
	asking sync.WaitGroup

	mu       sync.Mutex
	answered chan struct{} // poked when there is one
	rolls    map[string]*roll
	tries    map[string]*try
}

// try is an asking that has had no answer yet.
type try struct {
	open     bool
	failures int
	again    time.Time
}

func newRoster(k *Keeper) *roster {
	return &roster{k: k, answered: make(chan struct{}, 1), rolls: map[string]*roll{}, tries: map[string]*try{}}
}

// known are the rolls that there are now.
func (r *roster) known() map[string]*roll {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.rolls)
}

// see asks for what a plan needs, forgets what it does not, and tells when
// something is to be asked for again.
func (r *roster) see(ctx context.Context, p *plan, table *timetable, now time.Time) (again time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range p.idle {
		r.forget(name)
	}
	for _, name := range p.gone {
		r.forget(name)
	}
	for _, name := range p.asks {
		t := r.tries[name]
		if t == nil {
			t = &try{}
			r.tries[name] = t
		}
		switch {
		case t.open:
		case now.Before(t.again):
			if again.IsZero() || t.again.Before(again) {
				again = t.again
			}
		default:
			t.open = true
			spread := table.spread(name)
			r.asking.Go(func() { r.ask(ctx, name, spread, now) })
		}
	}
	return again
}

func (r *roster) forget(name string) {
	delete(r.rolls, name)
	if t := r.tries[name]; t != nil && !t.open {
		delete(r.tries, name)
		r.k.delayed(name, nil)
	}
}

func (r *roster) ask(ctx context.Context, name string, spread time.Duration, asOf time.Time) {
	got, err := r.k.ask(ctx, name, spread, asOf)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	t := r.tries[name]
	if err == nil {
		r.rolls[name] = got
		delete(r.tries, name)
	} else {
		t.open = false
		t.again = r.k.now().Add(min(askAgain<<min(t.failures, 10), mostAskAgain))
		t.failures++
	}
	r.mu.Unlock()
	r.k.delayed(name, err)
	select {
	case r.answered <- struct{}{}:
	default:
	}
}
