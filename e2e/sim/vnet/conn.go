package vnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is one end of a connection. It reads from its own half, and writes to its peer's.
type conn struct {
	host          *Host
	peer          *conn
	name          string
	in            *half
	local, remote net.Addr

	mu      sync.Mutex
	number  int // messages sent
	closed  bool
	readBy  deadline
	writeBy deadline
}

// half is the queue of one direction.
type half struct {
	mu     sync.Mutex
	queue  []chunk
	size   int
	end    error         // error after the queue; nil while more may come
	broken bool          // the queue is dropped
	wake   chan struct{} // closed at each change
}

type chunk struct {
	at    time.Time // when it arrives
	bytes []byte
}

// most is the size of the buffers of a connection.
const most = 1 << 20

func newHalf() *half { return &half{wake: make(chan struct{})} }

// update changes a half and wakes those that wait for a change.
func (h *half) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	close(h.wake)
	h.wake = make(chan struct{})
}

func (h *half) fail(err error, drop bool) {
	h.update(func() {
		if h.end == nil || drop && !h.broken {
			h.end = err
		}
		if drop {
			h.broken, h.queue, h.size = true, nil, 0
		}
	})
}

func errOf(op string, err error) error {
	if number, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, number)
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

// reset ends a connection at both ends; bytes under way are lost.
func (c *conn) reset() {
	c.forget()
	c.in.fail(syscall.ECONNRESET, true)
	c.peer.in.fail(syscall.ECONNRESET, true)
}

// die ends a connection because of the death of one end's host: the other end still reads what was
// sent.
func (c *conn) die(isDead bool) {
	c.forget()
	if isDead {
		c.in.fail(syscall.ECONNRESET, true)
		c.peer.in.fail(syscall.ECONNRESET, false)
	}
}

func (c *conn) forget() {
	n := c.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
	delete(n.conns, c.peer)
}

// Read reads what has arrived.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, wake, at, err := c.readNow(p)
		if n > 0 || err != nil {
			return n, err
		}
		c.wait(wake, at, &c.readBy)
	}
}

// readNow returns no bytes and no error if the reader has to wait.
func (c *conn) readNow(p []byte) (n int, wake chan struct{}, at time.Time, err error) {
	if c.past(&c.readBy) {
		return 0, nil, at, errOf("read", os.ErrDeadlineExceeded)
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, nil, at, errOf("read", net.ErrClosed)
	}
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.queue) == 0 && h.end == io.EOF:
		return 0, nil, at, io.EOF
	case len(h.queue) == 0 && h.end != nil:
		return 0, nil, at, errOf("read", h.end)
	case len(h.queue) == 0 || c.host.n.isBlocked(c.peer.host.name, c.host.name):
		return 0, h.wake, at, nil
	case h.queue[0].at.After(time.Now()):
		return 0, h.wake, h.queue[0].at, nil
	}
	first := &h.queue[0]
	n = copy(p, first.bytes)
	if first.bytes = first.bytes[n:]; len(first.bytes) == 0 {
		h.queue = h.queue[1:]
	}
	full := h.size >= most
	h.size -= n
	if full {
		close(h.wake)
		h.wake = make(chan struct{})
	}
	return n, nil, at, nil
}

// Write sends one message.
func (c *conn) Write(p []byte) (int, error) {
	if !c.host.send() {
		return 0, errOf("write", syscall.ECONNRESET)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, errOf("write", net.ErrClosed)
	}
	c.number++
	m := Message{At: time.Now(), From: c.host.name, To: c.peer.host.name, Conn: c.name, Number: c.number, Head: p[:min(len(p), 160)], Size: len(p)}
	c.mu.Unlock()
	n := c.host.n
	if n.o.Fault != nil {
		m.Fault = n.o.Fault(&m)
	}
	if n.o.Trace != nil {
		n.o.Trace(&m)
	}
	if m.Fault.Cut == CutBefore {
		c.reset()
		return 0, errOf("write", syscall.ECONNRESET)
	}
	if err := c.push(p, m.At.Add(m.Fault.Delay)); err != nil {
		return 0, err
	}
	if m.Fault.Cut == CutAfter {
		c.forget()
		c.in.fail(syscall.ECONNRESET, true)
		c.peer.in.fail(syscall.ECONNRESET, false)
	}
	return len(p), nil
}

func (c *conn) push(p []byte, at time.Time) error {
	for {
		if c.past(&c.writeBy) {
			return errOf("write", os.ErrDeadlineExceeded)
		}
		h := c.peer.in
		h.mu.Lock()
		if h.end != nil {
			h.mu.Unlock()
			return errOf("write", syscall.EPIPE)
		}
		if h.size < most {
			if last := len(h.queue) - 1; last >= 0 && h.queue[last].at.After(at) {
				at = h.queue[last].at
			}
			h.queue = append(h.queue, chunk{at, append([]byte(nil), p...)})
			h.size += len(p)
			close(h.wake)
			h.wake = make(chan struct{})
			h.mu.Unlock()
			return nil
		}
		wake := h.wake
		h.mu.Unlock()
		c.wait(wake, time.Time{}, &c.writeBy)
	}
}

// ReadFrom copies r into the connection.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// CloseWrite tells the peer that no more bytes follow.
func (c *conn) CloseWrite() error {
	c.peer.in.fail(io.EOF, false)
	return nil
}

// Close ends our reads; the peer reads what was sent, and then the end.
func (c *conn) Close() error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return errOf("close", net.ErrClosed)
	}
	c.peer.in.fail(io.EOF, false)
	c.in.fail(net.ErrClosed, true)
	n := c.host.n
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
	return nil
}

// LocalAddr returns our address.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline limits reads and writes.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t) // never fails
	return c.SetWriteDeadline(t)
}

// SetReadDeadline limits reads.
func (c *conn) SetReadDeadline(t time.Time) error { c.limit(&c.readBy, t); return nil }

// SetWriteDeadline limits writes.
func (c *conn) SetWriteDeadline(t time.Time) error { c.limit(&c.writeBy, t); return nil }

// deadline is guarded by its connection's mu.
type deadline struct {
	at      time.Time
	changed chan struct{} // closed at a change; nil while nothing waits
}

func (c *conn) limit(d *deadline, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.at = t
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

func (c *conn) past(d *deadline) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

// wait waits for a change of a half or of the deadline, or until the earlier of the deadline and at.
func (c *conn) wait(wake chan struct{}, at time.Time, d *deadline) {
	c.mu.Lock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	changed, until := d.changed, d.at
	c.mu.Unlock()
	if !until.IsZero() && (at.IsZero() || until.Before(at)) {
		at = until
	}
	var due <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-wake:
	case <-changed:
	case <-due:
	}
}
