package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// desk holds the commands so far and the dead letters. Each is read when the first caller
// needs it, and followed from then on.
type desk struct {
	acts lazy[*commands.Follower]
	book lazy[*deadletters.Book]
}

func (g *Gateway) openDesk() {
	d := &g.desk
	d.acts.open = func(ctx context.Context) (*commands.Follower, error) {
		return commands.Follow(ctx, g.opt.Broker, g.log)
	}
	d.acts.close = func(ctx context.Context, f *commands.Follower) error { return f.Close(ctx) }
	d.book.open = func(ctx context.Context) (*deadletters.Book, error) {
		return deadletters.Open(ctx, g.opt.Broker, g.log)
	}
	d.book.close = func(ctx context.Context, b *deadletters.Book) error { return b.Close(ctx) }
}

// names returns the install's names. A config that applies always has a valid name.
func (g *Gateway) names() tidemill.Names {
	n, _ := g.opt.Config().Names()
	return n
}

func (d *desk) close(ctx context.Context) error {
	return errors.Join(d.acts.end(ctx), d.book.end(ctx))
}

// book returns the open dead letters. Reading them may take longer than the first caller can
// wait; the reading then continues without that caller.
func (g *Gateway) book(ctx context.Context) (*deadletters.Book, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	b, err := g.desk.book.get(ctx)
	if err != nil {
		return nil, g.followProblem(ctx, err, "the dead letters")
	}
	return b, nil
}

// asked returns the commands so far.
func (g *Gateway) asked(ctx context.Context) (*commands.Follower, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	f, err := g.desk.acts.get(ctx)
	if err != nil {
		return nil, g.followProblem(ctx, err, "the commands")
	}
	return f, nil
}

func (g *Gateway) followProblem(ctx context.Context, err error, what string) *api.Problem {
	if ctx.Err() != nil {
		return unavailable(what + ": they are still being read, or Kafka is away; ask again a little later")
	}
	g.log.Warn("gateway: reading a stream failed", "what", what, "reason", err)
	return unavailable(what + " cannot be read now; ask again a little later")
}

// author writes commands in the caller's name.
func (g *Gateway) author(r *request) commands.Author {
	return commands.Author{Names: g.names(), By: r.name(), Now: time.Now()}
}

// publishAct publishes a command and returns its position.
func (g *Gateway) publishAct(r *request, v *broker.View) (broker.Position, *api.Problem) {
	span := g.startSpan(r)
	defer span.End()
	telemetry.Remember(r.trace, v)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	began := time.Now()
	at, err := commands.Publish(ctx, g.opt.Producer, v)
	if err != nil {
		return at, g.commandProblem(v, err, time.Since(began))
	}
	g.log.Info("gateway: command", "type", v.Type, "event", v.ID, "key", v.Subject, "by", r.name())
	return at, nil
}

// commandProblem is the problem of a command or a receipt that Kafka did not take.
func (g *Gateway) commandProblem(v *broker.View, err error, after time.Duration) *api.Problem {
	switch {
	case errors.Is(err, broker.ErrInDoubt):
		return inDoubt(v.ID, after)
	case errors.Is(err, broker.ErrTooLarge):
		return tooLarge(err.Error())
	}
	g.log.Warn("gateway: writing a command failed", "type", v.Type, "event", v.ID, "reason", err)
	return unavailable("Kafka does not take the command now; ask again a little later: a command that is on the log already is not written twice")
}

// maxCommandBody is the largest body of a command, in bytes.
const maxCommandBody = 2 << 20

// readCommand reads a JSON body strictly: with an unknown field ignored, the command would do
// something that the caller did not mean.
func (g *Gateway) readCommand(r *request, to any) *api.Problem {
	body, p := g.body(r, min(maxCommandBody, g.opt.Limits.structured()), func() *api.Problem {
		return tooLarge(fmt.Sprintf("the body may have %d bytes: ask in parts", min(maxCommandBody, g.opt.Limits.structured())))
	})
	if p != nil {
		return p
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return invalidRequest("the body is not as it must be here: " + clip(strings.TrimPrefix(err.Error(), "json: ")) + "; see /api/v1/openapi.json")
	}
	if d.More() {
		return invalidRequest("the body has more text after the JSON; send one object")
	}
	return nil
}

// badRate bounds a rate as the config does, because a command that goes on for years cannot
// be taken back.
func badRate(rate float64) *api.Problem {
	const least, most = 1.0 / 3600, 100_000
	if rate == 0 || rate >= least && rate <= most {
		return nil
	}
	return badParameter("rate", fmt.Sprintf("%v is no rate; give a number a second, from one an hour (%.6f) to %d, or leave it out", rate, least, most))
}

func positionOf(p broker.Position) api.Position {
	return api.Position{Stream: p.Stream, Partition: p.Partition, Offset: p.Offset}
}

// lazy opens a value when it is first needed. Most gateways never need the dead letters, and
// do not have to hold them.
type lazy[T any] struct {
	open  func(context.Context) (T, error)
	close func(context.Context, T) error

	mu      sync.Mutex
	closed  bool
	stop    context.CancelFunc
	opening *opening[T]
}

// opening is one attempt to open the value. Its fields are set before done is closed.
type opening[T any] struct {
	done chan struct{}
	it   T
	err  error
}

// get waits for the value as long as the context allows. All callers share the opening, so it
// continues when one of them leaves. After an error, the next caller tries again.
func (l *lazy[T]) get(ctx context.Context) (it T, err error) {
	o, err := l.begun()
	if err != nil {
		return it, err
	}
	select {
	case <-o.done:
		return o.it, o.err
	case <-ctx.Done():
		return it, context.Cause(ctx)
	}
}

func (l *lazy[T]) begun() (*opening[T], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosing
	}
	if l.opening != nil && !l.opening.failed() {
		return l.opening, nil
	}
	o := &opening[T]{done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	l.opening, l.stop = o, stop
	go func() {
		defer close(o.done)
		o.it, o.err = l.open(ctx)
	}()
	return o, nil
}

func (o *opening[T]) failed() bool {
	select {
	case <-o.done:
		return o.err != nil
	default:
		return false
	}
}

// end stops the opening and closes the value.
func (l *lazy[T]) end(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	o, stop := l.opening, l.stop
	l.mu.Unlock()
	if o == nil {
		return nil
	}
	stop()
	<-o.done
	if o.err != nil {
		return nil // the callers got the error
	}
	return l.close(ctx, o.it)
}
