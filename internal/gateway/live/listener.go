package live

import (
	"context"
	"time"
)

// Listener gets the changes of some topics. It has one entry a topic, however many changes its reader misses.
type Listener struct {
	hub     *Hub
	topics  []string
	wake    chan struct{}       // has an element if there may be something pending
	known   Known               // versions that the reader was given
	pending map[string]struct{} // topics that may have changed since
}

// Pace says how often a listener gets an update.
type Pace struct {
	Every time.Duration // least time between two updates; changes in between become one
	Alive time.Duration // longest time without an update; then an empty one is sent
	First time.Duration // time that the first update waits for topics without a version
}

// Run calls send for each update until the context ends or send fails. An update without topics is a sign of life.
// After the call, the listener counts its topics as known.
func (l *Listener) Run(ctx context.Context, p Pace, send func(changed, known Known) error) error {
	if err := l.awaitVersions(ctx, p.First); err != nil {
		return err
	}
	for last := (time.Time{}); ; {
		changed := l.take()
		if len(changed) > 0 || time.Since(last) >= p.Alive {
			if err := send(changed, l.known); err != nil {
				return err
			}
			last = time.Now()
		}
		if err := l.rest(ctx, p.Every, p.Alive-time.Since(last)); err != nil {
			return err
		}
	}
}

// rest waits for a change, or for the time most. It waits for the time least in any case.
func (l *Listener) rest(ctx context.Context, least, most time.Duration) error {
	sleep := time.NewTimer(least)
	defer sleep.Stop()
	select {
	case <-sleep.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sleep.Reset(most - least)
	select {
	case <-l.wake:
	case <-sleep.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// awaitVersions waits until all topics have a version, or until the time is over.
func (l *Listener) awaitVersions(ctx context.Context, within time.Duration) error {
	late := time.NewTimer(within)
	defer late.Stop()
	for !l.complete() {
		select {
		case <-l.wake:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (l *Listener) complete() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, name := range l.topics {
		if l.hub.topics[name].version == "" {
			return false
		}
	}
	return true
}

// take returns the topics that have another version than the known one.
func (l *Listener) take() Known {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	changed := Known{}
	for name := range l.pending {
		if v := l.hub.topics[name].version; v != "" && v != l.known[name] {
			changed[name], l.known[name] = v, v
		}
	}
	clear(l.pending)
	return changed
}

func (l *Listener) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close ends listening.
func (l *Listener) Close() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, name := range l.topics {
		t := l.hub.topics[name]
		if delete(t.listeners, l); len(t.listeners) == 0 && !t.kept {
			delete(l.hub.topics, name)
		}
	}
}
