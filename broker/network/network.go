// Package network opens and accepts the connections of a process: those of the operating system,
// or those of the simulator in e2e/sim, which are in memory.
package network

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Network makes the connections of a process. The zero value is the operating system's network.
type Network struct {
	// Dial opens a connection, as net.Dialer.DialContext does. If nil, the operating system does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Listen accepts connections, as net.ListenConfig.Listen does. If nil, the operating system does.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Virtual reports whether the connections are in memory.
func (n Network) Virtual() bool { return n.Dial != nil }

// Dialer returns the function that opens connections; d applies only to the operating system's.
func (n Network) Dialer(d net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	if n.Dial != nil {
		return n.Dial
	}
	return d.DialContext
}

// ListenTCP accepts connections at host:port.
func (n Network) ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	if n.Listen != nil {
		return n.Listen(ctx, "tcp", address)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// The default limits of a server. MaxHeaders bounds the header fields of one request. Net/http holds
// up to 25 times as much memory for them, if the fields are short.
const (
	MaxHeaders  = 16 << 10
	connections = 1024
	unfinished  = 1 << 20
	readHeader  = 10 * time.Second
	readRequest = time.Minute
	writeAnswer = 2 * time.Minute
	idle        = 2 * time.Minute
	// headConnections is the number of connections that may be without a complete request head.
	headConnections = 1024
	// http2Streams is the number of concurrent requests on one HTTP/2 connection, and http2Frame is
	// the size of a frame. Net/http keeps a buffer of that size for each connection.
	http2Streams = 64
	http2Frame   = 16 << 10
)

// ServerOptions bound what clients can take from a process before it knows them. A zero field means
// the default, and a negative time means no limit.
type ServerOptions struct {
	Handler     http.Handler
	Connections int           // open connections; 1024
	Headers     int           // bytes of a request's header fields; MaxHeaders
	Unfinished  int           // bytes of all request heads that are not complete; 1 MiB
	ReadHeader  time.Duration // time for a request's head; 10 s
	Read        time.Duration // time for a whole request; 1 minute
	Write       time.Duration // time from a request's head to the end of its answer; 2 minutes
	Idle        time.Duration // time without a request; 2 minutes, which is longer than the dispatcher keeps a connection
	TLS         *tls.Config   // nil means no TLS
	HTTP2       bool          // HTTP/2 without TLS; with TLS, HTTP/2 is always offered
	Refusal     string        // answer to a connection that is refused; empty means none. Net/http does not send it
	Refused     func()        // called for each refused connection; may be nil
	Errors      slog.Level    // level of net/http's own messages, which clients can cause; Info
	Logger      *slog.Logger
}

// Server is an HTTP server whose clients cannot take much memory before they have sent a complete
// request. All servers of Tidemill are of this type.
//
// A connection without a complete request head counts against two limits: the number of such
// connections, and the bytes of their heads. Above a limit, the connection that has been without a
// complete head for longest is closed if it is older than a second. Otherwise the new one is refused.
// A client sends its head at once, so the oldest connection is nearly always one that holds its head
// back on purpose.
type Server struct {
	*http.Server
	o      ServerOptions
	inside atomic.Int64
	away   chan struct{} // holds one entry for each connection that is being refused
	leave  sync.WaitGroup

	mu    sync.Mutex
	idle  list.List // connections between two requests, the longest idle first
	heads list.List // connections without a complete head, the oldest first
	bytes int       // bytes of the heads
}

// NewServer returns a server with limits.
func NewServer(o ServerOptions) *Server {
	o.Connections, o.Headers, o.Unfinished = cmp.Or(o.Connections, connections), cmp.Or(o.Headers, MaxHeaders), cmp.Or(o.Unfinished, unfinished)
	o.ReadHeader, o.Read, o.Write, o.Idle = cmp.Or(o.ReadHeader, readHeader), cmp.Or(o.Read, readRequest), cmp.Or(o.Write, writeAnswer), cmp.Or(o.Idle, idle)
	s := &Server{o: o, away: make(chan struct{}, refusedAtOnce)}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(o.TLS != nil)
	protocols.SetUnencryptedHTTP2(o.HTTP2)
	s.Server = &http.Server{
		Handler:           forgetHeaders(o.Handler),
		TLSConfig:         o.TLS,
		Protocols:         protocols,
		ReadHeaderTimeout: o.ReadHeader,
		ReadTimeout:       o.Read,
		WriteTimeout:      o.Write,
		IdleTimeout:       o.Idle,
		MaxHeaderBytes:    o.Headers,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: http2Streams, MaxReadFrameSize: http2Frame},
		ConnState:         connState,
		ErrorLog:          errorLog(o),
	}
	return s
}

func errorLog(o ServerOptions) *log.Logger {
	if o.Logger == nil {
		return nil
	}
	return slog.NewLogLogger(o.Logger.Handler(), o.Errors)
}

// forgetHeaders drops a request's headers after its handler. Net/http keeps the request while it waits
// for the rest of a body or for a client that does not take its answer.
func forgetHeaders(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { r.Header = nil }()
		h.ServeHTTP(w, r)
	})
}

// Serve answers the connections of a listener until Shutdown or Close, as http.Server does.
func (s *Server) Serve(l net.Listener) error {
	limited := s.Limit(l)
	if s.TLSConfig != nil {
		return s.Server.ServeTLS(limited, "", "")
	}
	return s.Server.Serve(limited)
}

// Limit returns a listener that applies the server's limits. Serve does it too.
func (s *Server) Limit(l net.Listener) net.Listener {
	if limited, ok := l.(*listener); ok {
		return limited
	}
	return &listener{Listener: l, server: s}
}

// Open returns the number of open connections.
func (s *Server) Open() int { return int(s.inside.Load()) }

// Resting returns the number of connections between two requests.
func (s *Server) Resting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle.Len()
}

// listener accepts the connections of a server.
type listener struct {
	net.Listener
	server *Server
}

const (
	refusedAtOnce = 64
	refuseWithin  = 500 * time.Millisecond
	refusedRead   = 4 << 10 // bytes of a refused request that are read
)

// Accept waits for the next connection that is not refused. A new connection replaces an idle one if
// too many are open. A client that had to wait would not learn the reason, so no connection waits.
func (l *listener) Accept() (net.Conn, error) {
	s := l.server
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if s.inside.Add(1) <= int64(s.o.Connections) || s.replaceIdle() {
			if v := s.enter(c); v != nil {
				return v, nil
			}
		}
		s.inside.Add(-1)
		s.refused()
		s.refuse(c)
	}
}

// Close stops listening and waits for the connections that are being refused.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.server.leave.Wait()
	return err
}

func (s *Server) refused() {
	if s.o.Refused != nil {
		s.o.Refused()
	}
}

// refuse sends the refusal and closes the connection. The client's bytes are read first, because the
// kernel would otherwise drop the answer. At most refusedAtOnce connections get an answer at the same
// time, because each answer needs a goroutine.
func (s *Server) refuse(c net.Conn) {
	select {
	case s.away <- struct{}{}:
	default:
		_ = c.Close() // without an answer
		return
	}
	s.leave.Go(func() {
		defer func() { <-s.away }()
		defer c.Close()
		if s.o.Refusal == "" || s.o.TLS != nil || c.SetDeadline(time.Now().Add(refuseWithin)) != nil {
			return // with TLS the client could not read the answer
		}
		if _, err := io.WriteString(c, s.o.Refusal); err == nil && closeWrite(c) == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c, refusedRead)) // ends when the client hangs up, at the limit or at the deadline
		}
	})
}

// minAge is how long a connection must have been idle or without a head before another one may
// replace it. A client that was just answered may already have sent its next request.
const minAge = time.Second

// replaceIdle closes the connection that has been idle for longest, if one is idle, because idle
// connections of one host must not block other hosts. The client opens a new connection when needed.
func (s *Server) replaceIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replace(&s.idle)
}

// replace closes the oldest connection of a list. The caller holds the lock.
func (s *Server) replace(all *list.List) bool {
	first := all.Front()
	if first == nil {
		return false
	}
	v := first.Value.(*conn)
	if time.Since(v.since) < minAge {
		return false
	}
	v.unlist()
	v.reading.Store(false)
	_ = v.Close()
	return true
}

// enter counts a new connection among those without a head. It returns nil if there are too many.
func (s *Server) enter(c net.Conn) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads.Len() >= headConnections && !s.replace(&s.heads) {
		return nil
	}
	v := &conn{Conn: c, server: s}
	v.await()
	return v
}

// conn is an open connection. The server's lock guards the fields from in on.
type conn struct {
	net.Conn
	server  *Server
	left    atomic.Bool
	reading atomic.Bool // the head of a request is not complete

	in    *list.List // list with the connection; nil if there is none
	entry *list.Element
	since time.Time // time at which the connection entered the list
	bytes int       // bytes of the head
}

// await adds a connection without a complete head to the list. The caller holds the lock.
func (v *conn) await() {
	v.list(&v.server.heads)
	v.reading.Store(true)
}

// list moves a connection to another list. The caller holds the lock.
func (v *conn) list(to *list.List) {
	v.unlist()
	v.in, v.since, v.entry = to, time.Now(), to.PushBack(v)
}

func (v *conn) unlist() {
	if v.in == nil {
		return
	}
	v.in.Remove(v.entry)
	v.server.bytes -= v.bytes
	v.in, v.entry, v.bytes = nil, nil, 0
}

// errNoRoom ends a connection whose head has no room.
var errNoRoom = errors.New("too many requests are not complete: try again later")

// Read reads, and counts the bytes of a head that is not complete.
func (v *conn) Read(b []byte) (int, error) {
	n, err := v.Conn.Read(b)
	if n > 0 && v.reading.Load() && !v.server.addHead(v, n) {
		v.server.refused()
		_ = v.Close()
		return 0, errNoRoom
	}
	return n, err
}

// addHead counts bytes of a head. It returns false if there is no room for them.
func (s *Server) addHead(v *conn, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.in == &s.idle {
		v.list(&s.heads)
	}
	if v.in == nil { // the head has just become complete, or another connection has replaced this one
		return true
	}
	for s.bytes+n > s.o.Unfinished {
		if s.heads.Front().Value == v || !s.replace(&s.heads) {
			return false
		}
	}
	v.bytes += n
	s.bytes += n
	return true
}

// connState follows a connection. Net/http calls it when the connection changes its state.
func connState(c net.Conn, state http.ConnState) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	v, ok := c.(*conn)
	if !ok {
		return
	}
	s := v.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew: // listed by enter
	case http.StateIdle:
		v.list(&s.idle)
		v.reading.Store(true)
	default:
		v.unlist()
		v.reading.Store(false)
	}
}

// Close closes the connection and makes room for another one.
func (v *conn) Close() error {
	if v.left.CompareAndSwap(false, true) {
		v.server.inside.Add(-1)
	}
	return v.Conn.Close()
}

// ReadFrom lets the kernel send a file without a copy.
func (v *conn) ReadFrom(r io.Reader) (int64, error) {
	if to, ok := v.Conn.(io.ReaderFrom); ok {
		return to.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{v.Conn}, r)
}

// CloseWrite ends the answers, so that the client reads to their end.
func (v *conn) CloseWrite() error { return closeWrite(v.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
