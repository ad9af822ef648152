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
	fold   State      // used by the reading goroutine only
	ends   *forgotten // nil if the caller asks about no events of keys
	now    atomic.Pointer[State]

	mu      sync.Mutex
	changed chan struct{}
}

// Follow reads the commands and returns once it has reached their present end. The
// caller closes the follower.
func Follow(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	return newFollower(b, false).open(ctx, logger)
}

// FollowKeys is Follow for a process that also asks [Follower.Passed]. It keeps some bytes for each
// key that was ever forgotten.
func FollowKeys(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	return newFollower(b, true).open(ctx, logger)
}

func newFollower(b *broker.Broker, keys bool) *Follower {
	f := &Follower{b: b, changed: make(chan struct{})}
	if keys {
		f.ends = newForgotten(f.command)
	}
	f.now.Store(&State{})
	return f
}

func (f *Follower) open(ctx context.Context, logger *slog.Logger) (*Follower, error) {
	r, err := follow.Open(ctx, f.b, follow.Options{Stream: tidemill.StreamCommands, Logger: logger, Take: f.take})
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
		e := &d.Events[i]
		if e.Err != nil {
			continue
		}
		c := read(e)
		f.fold.Apply(c)
		if f.ends != nil {
			f.ends.add(&c)
		}
	}
	f.now.Store(f.fold.Clone())
	f.mu.Lock()
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
}

// Passed reports whether an event of a key is before the key's end, so that it is not delivered any
// more. Events about the end itself are delivered. The error is one of the log of commands.
func (f *Follower) Passed(ctx context.Context, key, typ, stream string, partition int32, offset int64) (bool, error) {
	if tidemill.Outlives(typ) {
		return false, nil
	}
	return f.ends.passed(ctx, key, stream, partition, offset)
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
	err := f.readAt(ctx, of.Offset, func(e *broker.Incoming) (err error) { all, err = readLetters(&e.View); return err })
	if err != nil {
		return nil, fmt.Errorf("read command %s: %w", of.ID, err)
	}
	return all, nil
}

// readAt calls fn with the command at an offset.
func (f *Follower) readAt(ctx context.Context, offset int64, fn func(*broker.Incoming) error) error {
	failed := fmt.Errorf("offset %d of stream %s no longer has a command", offset, tidemill.StreamCommands)
	_, err := f.b.Read(ctx, broker.Position{Stream: tidemill.StreamCommands, Offset: offset}, 1, func(e *broker.Incoming) bool {
		if e.Offset == offset && e.Err == nil {
			failed = fn(e)
		}
		return false
	})
	if err != nil {
		return err
	}
	return failed
}
