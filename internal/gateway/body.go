package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"tidemill.dev/api"
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

const (
	flowStep    = 1 << 20 // has to move within the time that a body of that size has
	flowBuffer  = 128 << 10
	storeWithin = 5 * time.Minute // the store may take over what has come
)

// flow lets a request take as long as it likes while bytes move, and cuts it
// when they do not: a part of a large file may be minutes on a slow line. It
// sets the connection's deadlines anew each time that a step has moved.
type flow struct {
	g     *Gateway
	c     *http.ResponseController
	body  io.Reader
	left  int64 // of the body; negative where nobody said
	moved int
	err   error // that ended the body, but for its end
}

// flowing is the flow of a request. Its memory is the buffer that it moves
// through.
func (g *Gateway) flowing(r *request) (*flow, *api.Problem) {
	if p := g.charge(r, flowBuffer); p != nil {
		return nil, p
	}
	f := &flow{g: g, c: http.NewResponseController(&r.answer), body: r.Body, left: r.ContentLength}
	f.extend()
	return f, nil
}

func (f *flow) extend() {
	f.left -= int64(f.moved)
	f.moved = 0
	step := int64(flowStep)
	if f.left >= 0 {
		step = min(step, f.left)
	}
	late := f.g.opt.Limits.body(time.Now(), int(step))
	// Where the connection knows no deadline, net/http's own stays in force.
	_, _ = f.c.SetReadDeadline(late), f.c.SetWriteDeadline(late.Add(f.g.opt.Limits.answer()))
}

// Read reads the body.
func (f *flow) Read(to []byte) (int, error) {
	n, err := f.body.Read(to)
	if f.moved += n; f.moved >= flowStep {
		f.extend()
	}
	if errors.Is(err, io.EOF) {
		f.rest()
	} else if err != nil {
		f.err = err
	}
	return n, err
}

// rest is for when nothing moves for a good reason: all has come, and the store
// takes it over. Net/http would end the request's context by the old deadline.
func (f *flow) rest() {
	_, _ = f.c.SetReadDeadline(time.Time{}), f.c.SetWriteDeadline(time.Now().Add(storeWithin+f.g.opt.Limits.Write))
}

// sendWithin gives an answer the time that a step of it has, whatever came before.
func (f *flow) sendWithin() {
	f.moved = 0
	_ = f.c.SetWriteDeadline(f.g.opt.Limits.body(time.Now(), flowStep).Add(f.g.opt.Limits.Write))
}

// send writes what a reader has, the last of it only when the reader has said at
// its end that the bytes are the right ones: an answer that is not is cut short.
// The two errors are the reader's and the caller's.
func (f *flow) send(w io.Writer, from io.Reader) (read, sent error) {
	_ = f.c.SetReadDeadline(time.Time{}) // it would end the context, though the caller has said all
	f.sendWithin()
	now, next := make([]byte, 0, flowBuffer/2), make([]byte, flowBuffer/2)
	for {
		n, err := fill(from, next[:cap(next)])
		if err != nil && !errors.Is(err, io.EOF) {
			return err, nil
		}
		if err := f.write(w, now); err != nil {
			return nil, err
		}
		now, next = next[:n], now
		if err != nil {
			return nil, f.write(w, now)
		}
	}
}

func (f *flow) write(w io.Writer, b []byte) error {
	if f.moved += len(b); f.moved >= flowStep {
		f.sendWithin()
	}
	_, err := w.Write(b)
	return err
}

// fill reads until the buffer is full or there is an error, which it tells as it
// is: io.ReadFull takes an end for one that its reader told of.
func fill(from io.Reader, to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = from.Read(to[n:])
		n += k
	}
	return n, err
}

// room bounds the memory of the requests under way, of all and of each caller.
// Nobody waits for it: who is refused can come again, and who waited would hold
// a connection.
type room struct {
	limits *Limits

	mu      sync.Mutex
	taken   int64
	callers map[string]int64
}

// callersKept is how many callers without a request are remembered, so that
// those who come again and again cost no allocation.
const callersKept = 1024

// take takes n bytes for a caller. One without a name is everybody, and so has
// no share of its own.
func (o *room) take(caller string, n int64) *api.Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.taken+n > o.limits.UnderWay:
		return busy(o.limits.UnderWay)
	case caller == "":
	case o.callers[caller]+n > o.limits.Caller:
		return callerBusy(o.limits.Caller)
	default:
		o.callers[caller] += n
	}
	o.taken += n
	return nil
}

func (o *room) give(caller string, n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= n
	if caller == "" {
		return
	}
	if o.callers[caller] -= n; o.callers[caller] == 0 && len(o.callers) > callersKept {
		delete(o.callers, caller)
	}
}

// bytes is how much is taken now.
func (o *room) bytes() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return float64(o.taken)
}

// charge has a request pay for n bytes more. They are given back when it has
// been answered.
func (g *Gateway) charge(r *request, n int) *api.Problem {
	name := r.name()
	if p := g.room.take(name, int64(n)); p != nil {
		if p.Status == http.StatusTooManyRequests {
			g.metrics.refused.share.Inc()
		} else {
			g.metrics.refused.room.Inc()
		}
		return p
	}
	r.charged += int64(n)
	return nil
}
