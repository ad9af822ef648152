package web

import (
	"context"
	"net/http"
	"time"

	"tidemill.dev/internal/access"
)

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
