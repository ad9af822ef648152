// Package commands reads and writes the stream commands: what people have asked for,
// such as pauses and replays.
package commands

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// Follower has the present state of all commands. Every process that obeys commands has a follower.
type Follower struct {
	b      *broker.Broker
	reader *follow.Follower
	fold   State // used by the reading goroutine only
	now    atomic.Pointer[State]

	mu      sync.Mutex
	changed chan struct{}
}

// Follow reads the commands and returns once it has reached their present end. The
// caller closes the follower.
func Follow(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	f := &Follower{b: b, changed: make(chan struct{})}
	f.now.Store(&State{})
	r, err := follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamCommands, Logger: logger, Take: f.take})
	if err != nil {
		return nil, err
	}
	f.reader = r
	return f, nil
}

// Now returns the present state, which never changes.
func (f *Follower) Now() *State { return f.now.Load() }

// Changed returns a channel that is closed when Now returns a newer state than at the
// call of Changed: call it before Now.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Close stops following and waits until it has ended.
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

// read copies the parts of an event that the fold needs.
func read(e *broker.Incoming) Command {
	v := e.Clone()
	by, _ := v.Attribute(tidemill.AttrAuthID)
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		at = e.Time
	}
	return Command{Offset: e.Offset, ID: v.ID, Type: v.Type, Subject: v.Subject, By: by, At: at.UTC(), Data: v.Data}
}

// Letters returns the dead letters that a command asks to replay. It reads them from
// the command itself.
func (f *Follower) Letters(ctx context.Context, of LetterReplay) ([]tidemill.LetterRef, error) {
	var all []tidemill.LetterRef
	failed := fmt.Errorf("read command %s: offset %d of stream %s no longer has it", of.ID, of.Offset, tidemill.StreamCommands)
	_, err := f.b.Read(ctx, broker.Position{Stream: tidemill.StreamCommands, Offset: of.Offset}, 1, func(e *broker.Incoming) bool {
		if e.Offset == of.Offset && e.Err == nil {
			all, failed = readLetters(&e.View)
		}
		return false
	})
	if err != nil {
		return nil, fmt.Errorf("read command %s: %w", of.ID, err)
	}
	return all, failed
}
