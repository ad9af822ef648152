package web

import (
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/cehttp"
	"tidemill.dev/internal/telemetry"
)

// publish takes events, each to the stream that claims its type.
func (g *Gateway) publish(w http.ResponseWriter, r *request) *api.Problem {
	return g.post(w, r, g.plan(), nil)
}

// publishTo takes events to the stream that the path names.
func (g *Gateway) publishTo(w http.ResponseWriter, r *request) *api.Problem {
	p := g.plan()
	to := p.streams[r.value]
	switch {
	case to != nil:
		return g.post(w, r, p, to)
	case ownStream(r.value):
		return reservedStream(r.value)
	}
	return unknownStream(r.value, p.names)
}

// post reads what was sent, in its mode. to is nil where an event's type
// decides.
func (g *Gateway) post(w http.ResponseWriter, r *request, p *plan, to *target) *api.Problem {
	defer g.startSpan(r).End()
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return unreadable(err)
	}
	if mode == cehttp.Batch {
		return g.postBatch(w, r, p, to)
	}
	limit, read := g.opt.Limits.Event, cehttp.ReadBinary
	if mode == cehttp.Structured {
		limit, read = g.opt.Limits.structured(), cehttp.ReadStructured
	}
	body, problem := g.body(r, limit, g.eventTooLarge)
	if problem != nil {
		return problem
	}
	i := r.post.add(g)
	i.judge(r, p, to, read(r.Header, body, i.view))
	return g.postOne(w, r, i)
}

// startSpan begins the door's span, or none while traces are off. r.trace then
// is what events without a trace of their own go on with.
func (g *Gateway) startSpan(r *request) (span trace.Span) {
	r.trace = r.Context()
	if r.Header[headerTraceParent] != nil {
		r.trace = telemetry.ContextOfRequest(r.trace, r.Header)
	}
	r.trace, span = g.tracer.Start(r.trace, "publish", g.ofServer)
	return span
}

const headerTraceParent = "Traceparent" // as net/http writes it

// postOne stores a single event and answers.
func (g *Gateway) postOne(w http.ResponseWriter, r *request, i *item) *api.Problem {
	g.store(r)
	problem, repeated := i.outcome()
	if problem != nil {
		return problem
	}
	if h := w.Header(); repeated {
		h.Set(api.HeaderRepeated, "true")
	} else {
		h[api.HeaderPosition] = i.position()
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// position is the header's value.
func (i *item) position() []string {
	b := append(i.text[:0], i.receipt.Stream...)
	b = strconv.AppendInt(append(b, '/'), int64(i.receipt.Partition), 10)
	b = strconv.AppendInt(append(b, '/'), i.receipt.Offset, 10)
	i.text, i.header[0] = b, string(b)
	return i.header[:]
}

// judge decides whether an event may be stored, and where: i.to or i.problem.
// err is what its reader said.
func (i *item) judge(r *request, p *plan, to *target, err error) {
	i.to = to
	i.problem = i.fault(r, p, err)
	if i.problem != nil {
		i.g.refused(i.to)
	}
}

func (i *item) fault(r *request, p *plan, err error) *api.Problem {
	v := i.view
	if err != nil {
		return unreadable(err)
	}
	if err := tidemill.Reserved(v.Type, v.Source); err != nil {
		return reservedEvent(v, err)
	}
	if i.to == nil {
		i.to = p.home(v.Type)
	}
	if sizeOf(v) > int64(i.g.opt.Limits.Event) {
		return i.g.eventTooLarge()
	}
	if p := signed(v, r.caller.Name()); p != nil {
		return p
	}
	if err := r.caller.MayPublish(v); err != nil {
		return forbiddenEvent(err)
	}
	telemetry.Remember(r.trace, v)
	i.size = sizeOf(v) // with what was added
	return nil
}
