package deliver

import (
	"slices"
	"strings"
	"time"
)

// Standing is how one trigger stands at this dispatcher. Counts begin when the
// dispatcher was opened.
type Standing struct {
	Name         string
	Delivered    uint64
	Failed       uint64 // attempts
	DeadLettered uint64
	Replies      uint64
	InFlight     int64
	Parked       int64
	OldestParked time.Time
	Starting     bool   // it has not begun on all partitions that are ours
	Waits        string // why its events wait for its subscriber to be there; empty if they do not
	LastError    string
	LastErrorAt  time.Time
}

// Standing is how all triggers stand, by name.
func (d *Dispatcher) Standing() []Standing {
	late := map[string]bool{}
	for _, stream := range d.starting() {
		late[stream] = true
	}
	parked := map[string]waitingItems{}
	starting := map[string]bool{}
	d.mu.Lock()
	for stream, p := range d.plans {
		for _, name := range p.triggers {
			starting[name] = starting[name] || late[stream]
		}
	}
	for _, l := range d.lanes {
		l.count(parked)
	}
	d.mu.Unlock()
	var all []Standing
	for name, s := range *d.senders.Load() {
		one := s.standing()
		one.Starting = starting[name]
		if why := d.absent.of(name); why != nil {
			one.Waits = why.Error()
		}
		if w := parked[name]; w.n > 0 {
			one.Parked, one.OldestParked = w.n, w.oldest.time().UTC()
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Standing) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (s *sender) standing() Standing {
	one := Standing{Name: s.name, Delivered: s.deliveredN.Load(), Failed: s.failedN.Load() + s.refusedN.Load(), DeadLettered: s.lettersN.Load(),
		Replies: s.repliesN.Load(), InFlight: s.inFlight.Load()}
	one.LastError, one.LastErrorAt = s.lastError()
	return one
}

// waitingItems are what is parked for a trigger.
type waitingItems struct {
	n      int64
	oldest moment
}

func (l *lane) count(parked map[string]waitingItems) {
	for _, s := range l.all() {
		s.mu.Lock()
		for name, one := range s.p.lines {
			if one.parked == 0 {
				continue
			}
			w := parked[name]
			if w.n == 0 {
				w.oldest = never
			}
			parked[name] = waitingItems{w.n + int64(one.parked), min(w.oldest, one.oldest())}
		}
		s.mu.Unlock()
	}
}
