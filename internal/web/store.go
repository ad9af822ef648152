package web

import (
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
)

// store sends a request's events that nothing speaks against, in their order,
// and waits for all of them at once.
func (g *Gateway) store(r *request) {
	g.recognise(r)
	n := 0
	for _, i := range r.post.all() {
		if i.wanted() {
			n++
		}
	}
	if n == 0 {
		return
	}
	began, limits := time.Now(), &g.opt.Limits
	r.post.expect(n, began)
	r.post.send(began.Add(limits.Ack))
	// A batch that found room only bit by bit has less time left, or nobody would
	// be there for its answer.
	r.post.wait(min(limits.Ack, time.Until(began.Add(limits.Room+limits.Ack))), g.over)
	r.waiting = time.Since(began)
	g.metrics.ack.Observe(r.waiting.Seconds())
}

// wanted tells whether the event is to be sent.
func (i *item) wanted() bool { return i.problem == nil && !i.repeated && i.first == nil }

// sizeOf is what an event takes on its way, or a little more: its data and
// attributes, and its key once again. The producer's buffer counts the same, so
// what the window admits has room there.
func sizeOf(v *broker.View) int64 {
	n := len(v.Data) + len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.DataContentType) + len(v.DataSchema) + len(v.Time)
	key := len(v.Subject)
	for i := range v.Extensions {
		x := &v.Extensions[i]
		n += len(x.Name) + len(x.Value) + extensionHead
		if x.Name == tidemill.AttrPartitionKey {
			key = len(x.Value)
		}
	}
	return int64(n + key + eventHead)
}

// A record has besides: the names of headers, and lengths.
const (
	eventHead     = 128
	extensionHead = 8
)

// signed has an event say who published it, where that is known. Nobody may
// sign for another.
func signed(v *broker.View, name string) *api.Problem {
	if name == "" {
		return nil
	}
	as, given := v.Attribute(tidemill.AttrAuthID)
	switch {
	case !given:
		if err := v.Set(tidemill.AttrAuthID, name); err != nil {
			return unreadable(err)
		}
	case as != name:
		return forgedSignature(as, name)
	}
	return nil
}
