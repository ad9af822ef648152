package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/telemetry"
	"tidemill.dev/triggers/letters"
)

// desk is what people work at: what they have asked for, and the dead letters.
// Both are read when somebody asks for the first time, and followed from then on.
type desk struct {
	acts lazy[*acts.Follower]
	book lazy[*letters.Book]
}

func (g *Gateway) openDesk() {
	d := &g.desk
	d.acts.open = func(ctx context.Context) (*acts.Follower, error) { return acts.Follow(ctx, g.opt.Broker, g.log) }
	d.acts.close = func(ctx context.Context, f *acts.Follower) error { return f.Close(ctx) }
	d.book.open = func(ctx context.Context) (*letters.Book, error) { return letters.Open(ctx, g.opt.Broker, g.log) }
	d.book.close = func(ctx context.Context, b *letters.Book) error { return b.Close(ctx) }
}

// names are the install's. A config that applies has a name that is one.
func (g *Gateway) names() tidemill.Names {
	n, _ := g.opt.Config().Names()
	return n
}

func (d *desk) close(ctx context.Context) error {
	return errors.Join(d.acts.end(ctx), d.book.end(ctx))
}

// book is the open dead letters. The first who asks may find that reading them
// takes longer than he can wait; it goes on without him.
func (g *Gateway) book(ctx context.Context) (*letters.Book, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	b, err := g.desk.book.get(ctx)
	if err != nil {
		return nil, g.unfollowed(ctx, err, "the dead letters")
	}
	return b, nil
}

// asked is what people have asked for.
func (g *Gateway) asked(ctx context.Context) (*acts.Follower, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	f, err := g.desk.acts.get(ctx)
	if err != nil {
		return nil, g.unfollowed(ctx, err, "what has been asked for")
	}
	return f, nil
}

func (g *Gateway) unfollowed(ctx context.Context, err error, what string) *api.Problem {
	if ctx.Err() != nil {
		return unavailable(what + ": they are still being read, or Kafka is away; ask again a little later")
	}
	g.log.Warn("what is kept on streams cannot be read", "what", what, "reason", err)
	return unavailable(what + " cannot be read now; ask again a little later")
}

// author writes acts in the caller's name.
func (g *Gateway) author(r *request) acts.Author {
	return acts.Author{Names: g.names(), By: r.name(), Now: time.Now()}
}

// publishAct writes an act and returns where it lies.
func (g *Gateway) publishAct(r *request, v *broker.View) (broker.Position, *api.Problem) {
	span := g.startSpan(r)
	defer span.End()
	telemetry.Remember(r.trace, v)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	began := time.Now()
	at, err := acts.Publish(ctx, g.opt.Producer, v)
	if err != nil {
		return at, g.unwritten(v, err, time.Since(began))
	}
	g.log.Info("somebody has asked for something", "type", v.Type, "event", v.ID, "key", v.Subject, "by", r.name())
	return at, nil
}

// unwritten is the problem of an act or a receipt that Kafka did not take.
func (g *Gateway) unwritten(v *broker.View, err error, after time.Duration) *api.Problem {
	switch {
	case errors.Is(err, broker.ErrInDoubt):
		return inDoubt(v.ID, after)
	case errors.Is(err, broker.ErrTooLarge):
		return tooLarge(err.Error())
	}
	g.log.Warn("what was asked for cannot be written", "type", v.Type, "event", v.ID, "reason", err)
	return unavailable("Kafka does not take what you ask for; ask again a little later: what was written already is not written twice")
}

// mostAsked is how long the body of a request may be that asks for something.
const mostAsked = 2 << 20

// readAsk reads a body of JSON strictly: a slip that is passed over would do
// something else than was meant.
func (g *Gateway) readAsk(r *request, to any) *api.Problem {
	body, p := g.body(r, min(mostAsked, g.opt.Limits.structured()), func() *api.Problem {
		return tooLarge(fmt.Sprintf("what is asked for may have %d bytes: ask for it in parts", min(mostAsked, g.opt.Limits.structured())))
	})
	if p != nil {
		return p
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return invalidRequest("the body is not what is asked for here: " + clip(strings.TrimPrefix(err.Error(), "json: ")) + "; /api/v1/openapi.json says what is")
	}
	if d.More() {
		return invalidRequest("the body has something behind the JSON; send one object")
	}
	return nil
}

// badRate bounds a rate as the config does: what goes on for years cannot be
// taken back.
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
