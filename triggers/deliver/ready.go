package deliver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev/internal/api"
)

// failed tells whether the lane reads no more, though it should.
func (l *lane) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault != nil
}

// started tells whether the lane has its partitions, and all its triggers have
// begun on them. What waits for its companion will begin where it is now.
func (l *lane) started() bool {
	stats := l.c.Stats()
	all := l.all()
	if stats.Rebalances == 0 || stats.Assigned != len(all) {
		return false
	}
	begun := true
	for _, s := range all {
		s.mu.Lock()
		begun = begun && (s.p.missing || s.p.opened && s.p.wanted == nil && s.p.begunAt != none && (s.p.writing == nil || !s.p.writing.begins))
		s.mu.Unlock()
	}
	return begun
}

// empty tells whether nothing is left to be delivered, of a lane that serves no
// trigger any more.
func (l *lane) empty() bool {
	if !l.started() {
		return false
	}
	left, acts := false, l.d.acts.Now().Next()
	for _, s := range l.all() {
		s.mu.Lock()
		left = left || s.p.busy() || s.p.heard.next < acts || len(s.p.heard.open) > 0
		for _, one := range s.p.lines {
			left = left || !one.empty()
		}
		s.mu.Unlock()
	}
	return !left
}

// starting lists streams whose triggers have not begun everywhere yet.
func (d *Dispatcher) starting() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for stream := range d.plans {
		if l := d.lanes[stream]; l == nil || !l.started() {
			all = append(all, stream)
		}
	}
	slices.Sort(all)
	return all
}

const readyEvery = 5 * time.Millisecond

// Ready waits until every trigger has begun on all partitions that this
// dispatcher has: what is published from then on reaches it.
func (d *Dispatcher) Ready(ctx context.Context) error {
	t := time.NewTicker(readyEvery)
	defer t.Stop()
	for {
		waits := d.starting()
		if len(waits) == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the triggers of %s to begin: %w", strings.Join(waits, ", "), context.Cause(ctx))
		}
	}
}

// Check is how the dispatcher is.
func (d *Dispatcher) Check() api.Check {
	c := api.Check{Name: "triggers", Status: api.OK}
	d.mu.Lock()
	for stream, err := range d.faults {
		c.Status, c.Detail = api.Failed, fmt.Sprintf("the triggers of stream %s are not served: %s", stream, err)
	}
	for stream, l := range d.lanes {
		if lone := l.bereaved(); len(lone) > 0 && c.Status == api.OK {
			c.Status, c.Detail = api.Degraded, fmt.Sprintf("%d partitions of stream %s wait, for stream %s does not have as many", len(lone), stream, l.parked())
		}
	}
	d.mu.Unlock()
	if waits := d.starting(); c.Status == api.OK && len(waits) > 0 {
		c.Status, c.Detail = api.Degraded, "triggers are still to begin on "+strings.Join(waits, ", ")
	}
	return c
}
