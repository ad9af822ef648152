package clock

import (
	"maps"
	"time"
)

// Status is how a keeper is.
type Status struct {
	Active bool
	// Err is why it could not be active the last time it tried. Standing by while
	// another keeper is active is no error.
	Err error
	// Delayed are the schedules whose ticks wait because their keys are not known,
	// and why.
	Delayed map[string]error
}

type role bool

const (
	standby role = false
	active  role = true
)

// Status is how the keeper is now.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Delayed = maps.Clone(s.Delayed)
	return s
}

func (k *Keeper) become(r role, err error) {
	k.mu.Lock()
	was := k.status
	k.status = Status{Active: bool(r), Err: err}
	k.mu.Unlock()
	if k.metrics.active.Set(0); r == active {
		k.metrics.active.Set(1)
	}
	if r == active && !was.Active {
		k.log.Info("the clock runs here", "schedules", len(k.timetable().entries))
	}
}

// delayed notes that the keys of a schedule are not known, or with nil that they
// are.
func (k *Keeper) delayed(schedule string, err error) {
	k.mu.Lock()
	_, was := k.status.Delayed[schedule]
	switch {
	case err == nil:
		delete(k.status.Delayed, schedule)
	case k.status.Delayed == nil:
		k.status.Delayed = map[string]error{schedule: err}
	default:
		k.status.Delayed[schedule] = err
	}
	k.mu.Unlock()
	switch {
	case err != nil && !was:
		k.log.Warn("a schedule waits for its keys, which are asked for again", "schedule", schedule, "reason", err)
	case err == nil && was:
		k.log.Info("a schedule has its keys again", "schedule", schedule)
	}
}

// report counts what a plan did and tells what people should know of it.
func (k *Keeper) report(p plan, now time.Time) {
	for i := range p.ticks {
		t := &p.ticks[i]
		k.metrics.ticks.WithLabelValues(t.Schedule).Inc()
		k.metrics.late.Observe(max(0, now.Sub(t.due)).Seconds())
	}
	for _, n := range p.notes {
		switch n.what {
		case skipped:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Info("ticks were missed and are skipped", "schedule", n.schedule, "events", n.ticks)
		case leftOut:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Warn("more ticks were missed than are made up for; the oldest are left out", "schedule", n.schedule, "events", n.ticks)
		case forgot:
			k.log.Warn("the marks of the schedule have expired, so only the newest tick that it may have missed is made up for", "schedule", n.schedule, "events", n.ticks)
		}
	}
}
