package web

import (
	"net/http"
	"runtime/debug"
	"time"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
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
