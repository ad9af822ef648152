package gateway

import (
	"context"
	"net/http"
	"runtime/debug"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// serveHTTP is the one place where requests come in and problems go out.
func (g *Gateway) serveHTTP(w http.ResponseWriter, hr *http.Request) {
	began := time.Now()
	r := g.begin(w, hr)
	same, value := g.routes.find(hr.URL.Path)
	to := of(same, hr.Method)
	measure := &g.strangers
	if to != nil {
		measure = &to.measure
	}
	defer func() {
		abort := false
		if cause := recover(); cause != nil {
			abort = g.panicked(r, measure.route, cause)
		}
		took := time.Since(began)
		measure.answered(r.answer.status, took)
		if to != nil && to.role == access.Publish {
			g.metrics.own.Observe((took - r.reading - r.waiting).Seconds())
		}
		g.end(r)
		if abort {
			panic(http.ErrAbortHandler)
		}
	}()
	if g.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	r.value = value
	if p := g.respond(&r.answer, r, same, to); p != nil {
		writeProblem(&r.answer, p)
	}
}

// respond goes from what costs nothing to what costs more: whoever may not ask
// is sent away before his body is read.
func (g *Gateway) respond(w http.ResponseWriter, r *request, same []*route, to *route) *api.Problem {
	if limit := g.opt.Limits.Headers; headerSize(r.Request) > limit {
		g.metrics.refused.headers.Inc()
		hangUp(w, r)
		return headersTooLarge(limit)
	}
	options := r.Method == http.MethodOptions && same != nil
	needed := known // whoever may ask for anything may learn what there is not
	switch {
	case to != nil:
		needed = to.role
	case options:
		needed = anyone
	}
	p := g.admit(w, r, needed)
	if p != nil || to == nil || to.method != http.MethodPost {
		hangUp(w, r)
	}
	switch {
	case p != nil:
		return p
	case to != nil:
		return to.handle(w, r)
	case same == nil:
		return notFound(r.URL.Path)
	}
	w.Header().Set("Allow", allowed(same))
	if options {
		handshake(w.Header(), r, same)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return methodNotAllowed(r.Method, r.URL.Path, allowed(same))
}

// lingerFor is how long a body may keep a connection whose request was answered
// without it.
const lingerFor = time.Second

// hangUp ends the connection of a request with a body that nobody is going to
// read. Net/http would wait for it, before it answers and for as long as a body
// may take: whoever has no token could hold connections, and the headers that
// are kept with them, by sending nothing.
func hangUp(w http.ResponseWriter, r *request) {
	if r.ContentLength == 0 || r.ProtoMajor > 1 { // HTTP/2 resets the stream
		return
	}
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingerFor)) // a connection that knows none has gone
}

// headerSize is what a request's headers take, as they were sent.
func headerSize(r *http.Request) int {
	const line = len(": \r\n")
	n := len(r.RequestURI) + len(r.Host)
	for key, values := range r.Header {
		for _, value := range values {
			n += len(key) + len(value) + line
		}
	}
	return n
}

// handshake answers a sender that asks, as CloudEvents' webhooks have it,
// whether it may send here. It may if it can say who it is when it does, so
// there is nothing to ask it for; the rate is bounded by what is under way.
func handshake(h http.Header, r *request, same []*route) {
	origin := r.Header.Get("WebHook-Request-Origin")
	if origin == "" || of(same, http.MethodPost) == nil {
		return
	}
	h.Set("WebHook-Allowed-Origin", origin)
	h.Set("WebHook-Allowed-Rate", "*")
}

// panicked turns a fault of ours into an answer, if none has begun; else the
// connection is to be cut, so that half an answer is not taken for a whole one.
func (g *Gateway) panicked(r *request, route string, cause any) (abort bool) {
	if cause != http.ErrAbortHandler {
		g.log.Error("a request's handler panicked", "route", route, "reason", cause, "stack", string(debug.Stack()))
	}
	r.post.spoil()
	if cause == http.ErrAbortHandler || r.answer.status != 0 {
		return true
	}
	r.answer.Header().Set("Connection", "close") // of what is left of the body nothing is known
	writeProblem(&r.answer, internalFault())
	return false
}

// request is one request on its way through the gateway. It is used again for
// another, so nothing may keep it beyond its handler.
type request struct {
	*http.Request
	answer answer
	caller *access.Caller // nil where the route needs no role
	value  string         // what stood in the route's braces

	attempt bearer // of the agents' door

	buffer  []byte // of the body
	charged int64  // of the gateway's room
	post    *post
	trace   context.Context // of the door's span, for events that have none
	reading time.Duration   // spent on the body
	waiting time.Duration   // spent on Kafka
}

// name is the caller's; empty where nobody was asked who he is.
func (r *request) name() string {
	if r.attempt.run != nil {
		return "attempt " + r.attempt.name // no token's name has a space
	}
	if r.caller == nil {
		return ""
	}
	return r.caller.Name()
}

// begin takes a request into use.
func (g *Gateway) begin(w http.ResponseWriter, hr *http.Request) *request {
	r := g.requests.Get().(*request)
	r.Request = hr
	r.answer = answer{ResponseWriter: w}
	return r
}

// end gives it back, unless somebody may still call it.
func (g *Gateway) end(r *request) {
	if r.charged > 0 {
		g.room.give(r.name(), r.charged)
	}
	if !r.post.reusable() {
		return
	}
	r.post.clear()
	buffer := r.buffer[:0]
	if cap(buffer) > bufferKept {
		buffer = make([]byte, 0, smallBody)
	}
	*r = request{buffer: buffer, post: r.post}
	g.requests.Put(r)
}

// answer remembers the status that was sent.
type answer struct {
	http.ResponseWriter
	status int // 0 before it was
}

// WriteHeader sends the status; an informational one is not the answer.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write sends some of the body.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is how http.ResponseController gets at deadlines and flushing.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
