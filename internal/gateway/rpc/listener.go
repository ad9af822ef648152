package rpc

import (
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
