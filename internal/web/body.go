package web

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"tidemill.dev/internal/api"
)

const (
	smallBody  = 4 << 10 // every request has a buffer of this size
	firstGrown = 64 << 10
	bufferKept = 1 << 20 // a larger one is not kept for the next request
)

// body reads the request's body of at most limit bytes; over is the refusal of
// a longer one. It believes no
// Content-Length: the buffer grows with what has come, twofold each time, and is
// paid for as it grows.
//
// Whoever is slow is given up, but not a big upload on a slow line: net/http's
// ReadTimeout bounds what fits the small buffer, and then each time the buffer
// has filled up, the time is set within which that much more has to come.
func (g *Gateway) body(r *request, limit int, over func() *api.Problem) ([]byte, *api.Problem) {
	if r.ContentLength > int64(limit) {
		return nil, over()
	}
	if p := g.charge(r, cap(r.buffer)); p != nil {
		return nil, p
	}
	began := time.Now()
	b, err := r.buffer[:0], error(nil)
	for err == nil {
		if len(b) == cap(b) {
			if len(b) > limit {
				return nil, over()
			}
			var p *api.Problem
			if b, p = g.grow(r, b, limit, began); p != nil {
				return nil, p
			}
		}
		var n int
		n, err = r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
	}
	r.buffer = b
	r.reading = time.Since(began)
	switch {
	case !errors.Is(err, io.EOF):
		return nil, g.unread(r, err)
	case len(b) > limit:
		return nil, over()
	}
	return b, nil
}

// grow makes room for as much again as has come, but not for more than may.
func (g *Gateway) grow(r *request, b []byte, limit int, began time.Time) ([]byte, *api.Problem) {
	size := max(2*cap(b), firstGrown)
	if length := int(r.ContentLength); length >= len(b) {
		size = min(size, length+1) // one more, to see the end without growing again
	}
	size = min(size, limit+1)
	if p := g.charge(r, size-cap(b)); p != nil {
		return nil, p
	}
	control := http.NewResponseController(&r.answer)
	late := g.opt.Limits.body(began, size)
	// Where the connection knows no deadline, net/http's own stays in force.
	_, _ = control.SetReadDeadline(late), control.SetWriteDeadline(late.Add(g.opt.Limits.answer()))
	grown := make([]byte, len(b), size)
	copy(grown, b)
	return grown, nil
}

// unread tells why a body could not be read to its end. What is left of it
// would be taken for the next request, so the connection ends.
func (g *Gateway) unread(r *request, err error) *api.Problem {
	r.answer.Header().Set("Connection", "close")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.metrics.refused.slow.Inc()
		return tooSlow(&g.opt.Limits)
	}
	return invalidRequest("read the body: " + err.Error() + "; send as much as Content-Length says, or chunks as RFC 9112 has them")
}
