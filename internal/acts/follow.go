// Package acts holds what people have asked for, as the stream of acts tells
// it, and writes what they ask.
package acts

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/follow"
)

// Follower knows what has been asked for. Every process that acts on it has
// one of its own.
type Follower struct {
	b      *broker.Broker
	reader *follow.Follower
	fold   tidemill.Acts // the reading goroutine's
	now    atomic.Pointer[tidemill.Acts]

	mu      sync.Mutex
	changed chan struct{}
}

// Follow reads the acts and returns once it has come to where they end now.
// Close the follower.
func Follow(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	f := &Follower{b: b, changed: make(chan struct{})}
	f.now.Store(&tidemill.Acts{})
	r, err := follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamActs, Logger: logger, Take: f.take})
	if err != nil {
		return nil, err
	}
	f.reader = r
	return f, nil
}

// Now is what has been asked for up to now. It never changes.
func (f *Follower) Now() *tidemill.Acts { return f.now.Load() }

// Changed is closed when Now returns something newer than it did when Changed
// was called: call it before Now.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Close stops following and waits until it has.
func (f *Follower) Close(ctx context.Context) error { return f.reader.Close(ctx) }

func (f *Follower) take(d *broker.Delivery) {
	for i := range d.Events {
		if e := &d.Events[i]; e.Err == nil {
			f.fold.Apply(read(e))
		}
	}
	f.now.Store(f.fold.Clone())
	f.mu.Lock()
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
}

// read takes what the fold needs out of an event, into memory of its own.
func read(e *broker.Incoming) tidemill.Act {
	v := e.Clone()
	by, _ := v.Attribute(tidemill.AttrAuthID)
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		at = e.Time
	}
	return tidemill.Act{Offset: e.Offset, ID: v.ID, Type: v.Type, Subject: v.Subject, By: by, At: at.UTC(), Data: v.Data}
}

// Letters are those that an act asks to replay, read from the act itself.
func (f *Follower) Letters(ctx context.Context, of tidemill.LetterReplay) ([]tidemill.LetterRef, error) {
	var all []tidemill.LetterRef
	failed := fmt.Errorf("read act %s: offset %d of stream %s holds it no more", of.ID, of.Offset, tidemill.StreamActs)
	_, err := f.b.Read(ctx, broker.Position{Stream: tidemill.StreamActs, Offset: of.Offset}, 1, func(e *broker.Incoming) bool {
		if e.Offset == of.Offset && e.Err == nil {
			all, failed = readLetters(&e.View)
		}
		return false
	})
	if err != nil {
		return nil, fmt.Errorf("read act %s: %w", of.ID, err)
	}
	return all, failed
}
