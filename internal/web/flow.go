package web

import (
	"errors"
	"io"
	"net/http"
	"time"

	"tidemill.dev/internal/api"
)

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
