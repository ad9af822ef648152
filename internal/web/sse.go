package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

const (
	tailBytes   = 8 << 20   // that a tail holds, about
	tailPortion = 256 << 10 // of text is sent before more is made
)

// tail sends a stream's events as they arrive, as server-sent events.
func (g *Gateway) tail(w http.ResponseWriter, r *request) *api.Problem {
	q, p := readTailQuery(r, time.Now())
	if p != nil {
		return p
	}
	if p := g.tails.enter(r.name()); p != nil {
		return p
	}
	reason := tailFailed
	defer func() { g.tails.leave(r.name(), reason) }()
	ctx, release := g.untilEnding(r.Context())
	defer release()
	reader, err := g.openTail(ctx, r.value, q)
	if err != nil {
		return g.cannotTail(ctx, r.value, err)
	}
	f := &follower{reader: reader, where: q.where, limit: q.limit, alive: g.opt.Limits.Keepalive, viewer: g.viewer(r), events: g.tails.events,
		text: newEventText(r.value), out: newPatientWriter(w, g.opt.Limits.Write)}
	last := f.out.endWith(ctx)
	defer func() {
		_ = reader.Close(context.WithoutCancel(ctx)) // it has no group, so nothing can fail
		last()
	}()
	beginEvents(w)
	reason = g.whyEnded(ctx, r, f.run(ctx))
	return nil
}

// untilEnding is a context that ends with the request or when the gateway
// closes, which waits for whoever is under way.
func (g *Gateway) untilEnding(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-g.ending:
			cancel(errClosing)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

var errClosing = errors.New("the gateway closes")

func (g *Gateway) openTail(ctx context.Context, stream string, q tailQuery) (*tail.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	return tail.Open(ctx, g.opt.Broker, tail.Options{Stream: stream, Start: q.start, Resume: q.resume, ToEnd: q.toEnd, MaxBytes: tailBytes})
}

// cannotTail is the problem of a stream that cannot be read.
func (g *Gateway) cannotTail(ctx context.Context, stream string, err error) *api.Problem {
	if errors.Is(err, broker.ErrNoStream) {
		infos, _ := g.survey.now(ctx) // without it the answer says less
		return noSuchStream(stream, namesOf(infos))
	}
	if ctx.Err() == nil {
		g.log.Warn("a stream cannot be read", "stream", stream, "reason", err)
	}
	return unavailable("the stream cannot be read now; come back a little later")
}

// beginEvents sends the head of the answer. What it undoes are the limits of an
// answer that is whole: reading on is how net/http notices that the caller has
// gone, and its time would be up while the tail goes on.
func beginEvents(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a connection that knows none has none
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events to itself until it has some
	w.WriteHeader(http.StatusOK)
}

// whyEnded judges what ended a tail, and logs what the operator should know.
func (g *Gateway) whyEnded(ctx context.Context, r *request, err error) string {
	switch {
	case err == nil:
		return tailEnded
	case errors.Is(context.Cause(ctx), errClosing):
		return tailClosing
	case errors.Is(err, errRefused):
		g.log.Info("a tail is ended, for its reader may read no more", "stream", r.value, "reason", err)
		return tailRefused
	case errors.Is(err, errSlow):
		g.log.Info("a reader was too slow and is cut off", "stream", r.value)
		return tailSlow
	case ctx.Err() != nil || errors.Is(err, errUnsent):
		return tailGone
	}
	g.log.Warn("a tail ended", "stream", r.value, "reason", err)
	return tailFailed
}
