package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// window bounds the bytes of events that Kafka has yet to acknowledge, so that
// the producer's buffer, which all streams share, is never full: a stream whose
// partitions have no leader would take all of it, and nothing could be published
// anywhere.
//
// A stream may hold as much as is free. One stalled stream so comes to hold a
// half, two a third each, and however many stall there is room for the next. A
// partition, in turn, may hold as much as its stream may still take: one without
// a leader leaves room for those that have one.
type window struct {
	mu      sync.Mutex
	free    int64
	waiting int // turns of all tracks
	lanes   []*lane
}

// lane is one stream's part of the window.
type lane struct {
	held   int64
	tracks []*track // that of partition n is n+1; the first is for whatever has no key
}

// track is one partition's part of a lane.
type track struct {
	lane  *lane
	held  int64
	turns []turn // of those who wait, in order
}

type turn struct {
	n     int64
	ready chan struct{}
}

// open adds a stream's lane. It stays, as streams are few and come back.
func (w *window) open() *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &lane{}
	w.lanes = append(w.lanes, l)
	return l
}

// track finds a partition's part of a lane, made on first use.
func (l *lane) track(partition int32) *track {
	for int(partition)+1 >= len(l.tracks) {
		l.tracks = append(l.tracks, &track{lane: l})
	}
	return l.tracks[partition+1]
}

// take waits for n bytes, as long as the context allows, behind whoever waits
// for the same partition already; -1 is that of whatever has no key.
func (w *window) take(ctx context.Context, l *lane, partition int32, n int64) (*track, error) {
	w.mu.Lock()
	k := l.track(partition)
	if len(k.turns) == 0 && w.admits(k) {
		w.grant(k, n)
		w.mu.Unlock()
		return k, nil
	}
	t := turn{n, make(chan struct{})}
	k.turns = append(k.turns, t)
	w.waiting++
	w.mu.Unlock()
	select {
	case <-t.ready:
		return k, nil
	case <-ctx.Done():
	}
	if !w.forget(k, t) {
		w.give(k, n) // it became ready in the same moment
	}
	return nil, context.Cause(ctx)
}

// admits tells whether a partition may take more.
func (w *window) admits(k *track) bool { return k.held+k.lane.held < w.free }

func (w *window) grant(k *track, n int64) {
	k.held += n
	k.lane.held += n
	w.free -= n
}

// give returns what was taken. Whatever is free may let a turn of any track in.
func (w *window) give(k *track, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grant(k, -n)
	if w.waiting == 0 {
		return
	}
	for _, l := range w.lanes {
		for _, k := range l.tracks {
			w.admit(k)
		}
	}
}

// admit lets in who waits for a partition, as many as it may take.
func (w *window) admit(k *track) {
	for len(k.turns) > 0 && w.admits(k) {
		w.grant(k, k.turns[0].n)
		close(k.turns[0].ready)
		k.turns = slices.Delete(k.turns, 0, 1)
		w.waiting--
	}
}

// bytes is how much is taken now.
func (w *window) bytes() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := int64(0)
	for _, l := range w.lanes {
		held += l.held
	}
	return float64(held)
}

// forget takes a turn back, unless it has come.
func (w *window) forget(k *track, t turn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(k.turns, func(o turn) bool { return o.ready == t.ready })
	if i < 0 {
		return false
	}
	k.turns = slices.Delete(k.turns, i, i+1)
	w.waiting--
	return true
}

// errNoRoom is the cause of a context of patience that has ended.
var errNoRoom = errors.New("no room among the events that Kafka has yet to acknowledge")

// patience hands out contexts that end after a while. One serves all requests
// of a tenth of that while: hardly any ever waits for it, and a context of its
// own would cost each of them more than all else about the wait.
type patience struct {
	while time.Duration

	mu    sync.Mutex
	now   context.Context
	until time.Time // it is handed out
}

// context ends after the while, or up to a tenth of it earlier.
func (p *patience) context() context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.After(p.until) {
		ctx, end := context.WithTimeoutCause(context.Background(), p.while, errNoRoom)
		context.AfterFunc(ctx, end) // not before: whoever waits, waits for all of it
		p.now, p.until = ctx, now.Add(p.while/10)
	}
	return p.now
}
