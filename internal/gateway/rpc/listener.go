package rpc

import (
	"container/list"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// listener accepts a limited number of connections. Above it, a new connection replaces the one from
// which nothing has been read for longest, because connections of one host must not block other hosts.
type listener struct {
	net.Listener
	most    int
	refused func()

	mu   sync.Mutex
	open map[*conn]struct{}
}

// Accept waits for the next connection that is not refused.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if v := l.enter(c); v != nil {
			return v, nil
		}
		_ = c.Close()
	}
}

// enter adds a connection. It returns nil if there are too many.
func (l *listener) enter(c net.Conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		l.refused()
		if !l.replace() {
			return nil
		}
	}
	v := &conn{Conn: c, from: l}
	v.read.Store(time.Now().UnixNano())
	l.open[v] = struct{}{}
	return v
}

// replace closes the connection from which nothing has been read for longest, if that is a while ago.
// The caller holds the lock.
func (l *listener) replace() bool {
	var oldest *conn
	for v := range l.open {
		if oldest == nil || v.read.Load() < oldest.read.Load() {
			oldest = v
		}
	}
	if oldest == nil || time.Since(time.Unix(0, oldest.read.Load())) < minAge {
		return false
	}
	delete(l.open, oldest)
	_ = oldest.Conn.Close()
	return true
}

// conn is an open connection.
type conn struct {
	net.Conn
	from *listener
	read atomic.Int64 // time of the last read, in nanoseconds
}

// Read reads, and remembers when.
func (v *conn) Read(b []byte) (int, error) {
	n, err := v.Conn.Read(b)
	v.read.Store(time.Now().UnixNano())
	return n, err
}

// Close closes the connection and makes room for another one.
func (v *conn) Close() error {
	v.from.mu.Lock()
	delete(v.from.open, v)
	v.from.mu.Unlock()
	return v.Conn.Close()
}

// At most places messages are read at the same time, ownPlaces of them of one caller. Messages of up to
// Window bytes usually wait in memory already, so they need their place for a moment only.
const (
	places    = 8
	ownPlaces = 4
	minAge    = time.Second // time for which a message has its place in any case
)

// arrivals are the messages that are being read. A message that has been arriving for longest gives its
// place to another one, as a connection does whose head is not complete.
type arrivals struct {
	within time.Duration // longest wait for a place

	mu      sync.Mutex
	of      map[string]int // number of places by caller
	all     list.List      // values are *place, the oldest first
	changed chan struct{}  // closed when a place becomes free; nil if no request waits for one
}

// place is a message that is being read.
type place struct {
	caller string
	since  time.Time
	cut    func() // ends the reading; nil if it has been called
	in     *list.Element
}

// take waits for a place. The function cut ends the reading of the message.
func (a *arrivals) take(ctx context.Context, caller string, cut func()) (*place, error) {
	p := &place{caller: caller, cut: cut}
	changed := a.enter(p)
	if changed == nil {
		return p, nil
	}
	late := time.NewTimer(a.within)
	defer late.Stop()
	again := time.NewTicker(minAge / 8) // the oldest message may be old enough to give way
	defer again.Stop()
	for ; changed != nil; changed = a.enter(p) {
		select {
		case <-changed:
		case <-again.C:
		case <-late.C:
			return nil, Error(503, "too many messages arrive at the same time: send the request again later")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return p, nil
}

// enter takes a place. If none is free it returns a channel that is closed when one may be.
func (a *arrivals) enter(p *place) (changed chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.of[p.caller] >= ownPlaces
	if own || a.all.Len() >= places {
		a.replaceOldest(p.caller, own)
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		return a.changed
	}
	a.of[p.caller]++
	p.since = time.Now()
	p.in = a.all.PushBack(p)
	return nil
}

// replaceOldest ends the oldest message, or the caller's oldest one, if it is old enough. The caller holds
// the lock.
func (a *arrivals) replaceOldest(caller string, own bool) {
	for e := a.all.Front(); e != nil; e = e.Next() {
		p := e.Value.(*place)
		if time.Since(p.since) < minAge {
			return
		}
		if !own || p.caller == caller {
			if p.cut != nil {
				p.cut()
				p.cut = nil
			}
			return
		}
	}
}

// give gives a place back.
func (a *arrivals) give(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.Remove(p.in)
	if a.of[p.caller]--; a.of[p.caller] == 0 {
		delete(a.of, p.caller)
	}
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}
