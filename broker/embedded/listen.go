package embedded

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const acceptAgain = 50 * time.Millisecond

// openDoors opens a listener for each broker.
func openDoors(o Options) ([]*brokerListener, error) {
	if err := checkHost(o.Kafka, o.Public); err != nil {
		return nil, fmt.Errorf("listen for kafka: %w", err)
	}
	var doors []*brokerListener
	unknown := new(strangers)
	for i := range o.Brokers {
		addr, err := brokerAddress(o.Kafka, i)
		if err != nil {
			return doors, fmt.Errorf("listen for kafka on %s: %w", o.Kafka, err)
		}
		var l net.Listener
		err = listenAt(addr, func(addr string) (err error) {
			l, err = o.Network.ListenTCP(context.Background(), addr)
			return err
		})
		if err != nil {
			return doors, fmt.Errorf("listen for kafka: %w; give another address, or port 0 for a free one", err)
		}
		doors = append(doors, &brokerListener{Listener: l, advertised: o.Advertise, tls: o.TLS, users: len(o.Users) > 0, strangers: unknown, open: map[*clientConn]struct{}{}})
	}
	return doors, nil
}

// brokerAddress returns the address of the i-th broker: the ports follow the given one.
func brokerAddress(addr string, i int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("port %q is not a number", port)
	}
	if n != 0 {
		n += i
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// checkHost refuses a host beyond loopback unless public is set. It also refuses a host that is not
// an address of this machine, because clients connect to it.
func checkHost(addr string, public bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("address %q: %w; write it as host:port", addr, err)
	}
	ip := net.ParseIP(host)
	if host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	if !public {
		return fmt.Errorf("%s is not a loopback address: any client that reaches it has full access to the data; use 127.0.0.1, or allow a public address", addr)
	}
	if host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%s names no interface, and clients connect to the address that the server listens on; give one of this machine's addresses", addr)
	}
	return nil
}

// brokerListener is a broker's listener. The listener tracks the open connections, so that closeAll
// can wait until all are closed; kfake's own Close does not wait.
type brokerListener struct {
	net.Listener
	advertised string // address for clients; if empty, the listener's own
	tls        *tls.Config
	users      bool // whether clients must log in
	strangers  *strangers

	mu       sync.Mutex
	shutting bool
	open     map[*clientConn]struct{}
	wg       sync.WaitGroup
}

// Addr returns the address that clients are to connect to.
func (d *brokerListener) Addr() net.Addr {
	if d.advertised != "" {
		return advertisedAddr(d.advertised)
	}
	return d.Listener.Addr()
}

// advertisedAddr is an advertised address as a net.Addr.
type advertisedAddr string

func (advertisedAddr) Network() string  { return "tcp" }
func (a advertisedAddr) String() string { return string(a) }

// Accept returns the next connection. kfake stops listening for good at the first error,
// so Accept returns an error only if the listener is closed. It retries other errors,
// such as too few file descriptors.
func (d *brokerListener) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		switch {
		case err == nil:
			if v := d.admit(c); v != nil {
				return v, d.enter(v)
			}
		case errors.Is(err, net.ErrClosed):
			return nil, err
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// admit returns nil if there is no room for one more client that has not logged in.
func (d *brokerListener) admit(c net.Conn) *clientConn {
	v := &clientConn{Conn: c, door: d}
	v.frame.stranger.Store(d.users)
	if d.users {
		if v.stranger = d.strangers.enter(c); v.stranger == nil {
			_ = c.Close()
			return nil
		}
	}
	if d.tls != nil {
		v.Conn = tls.Server(c, d.tls)
	}
	return v
}

func (d *brokerListener) enter(v *clientConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shutting {
		v.stranger.leave()
		return closeWith(v.Conn, net.ErrClosed)
	}
	d.open[v] = struct{}{}
	d.wg.Add(1)
	return nil
}

// closeAll closes the listener and every connection, and waits until all are closed.
func (d *brokerListener) closeAll() {
	_ = d.Listener.Close() // kfake may have closed it already
	d.mu.Lock()
	d.shutting = true
	inside := make([]*clientConn, 0, len(d.open))
	for v := range d.open {
		inside = append(inside, v)
	}
	d.mu.Unlock()
	for _, v := range inside {
		_ = v.Close() // the client sees a closed connection even after an error
	}
	d.wg.Wait()
}

func closeWith(c net.Conn, err error) error {
	_ = c.Close() // the connection is refused; the returned error gives the reason
	return err
}

// clientConn is one client's connection.
type clientConn struct {
	net.Conn
	door     *brokerListener
	frame    frameGuard
	stranger *stranger // nil if clients need not log in
	once     sync.Once
	err      error
}

// Read reads the client's bytes, and returns an error before the first bytes that must not reach
// the server.
func (v *clientConn) Read(p []byte) (int, error) {
	n, err := v.Conn.Read(p)
	if bad := v.frame.check(p[:n]); bad != nil {
		return 0, closeWith(v, bad)
	}
	return n, err
}

// Write sends an answer, and looks whether it accepts the client. kfake writes each answer at once.
func (v *clientConn) Write(p []byte) (int, error) {
	if v.frame.checkAnswer(p) {
		v.stranger.leave()
	}
	return v.Conn.Write(p)
}

// Close closes the connection; kfake calls it twice.
func (v *clientConn) Close() error {
	v.once.Do(func() {
		v.stranger.leave()
		v.err = v.Conn.Close()
		v.door.mu.Lock()
		delete(v.door.open, v)
		v.door.mu.Unlock()
		v.door.wg.Done()
	})
	return v.err
}

const (
	maxRequest = 100 << 20 // Apache's socket.request.max.bytes
	maxLogin   = 4 << 10   // largest request of a client that has not logged in
	sizeBytes  = 4
	headBytes  = sizeBytes + 4 // size, then the request's key and version
	minRequest = 8             // length of key, version and correlation id
)

// frameGuard parses the frames of a connection. kfake allocates whatever size a frame
// claims and panics on an unknown request key, which would end this whole process. A
// browser that connects to the port ("GET " means 1.2 GB) must not cause that. A client that has still
// to log in may send only small requests for that, because kfake keeps them in memory.
type frameGuard struct {
	head [headBytes]byte
	have int
	left int // remaining bytes of the body

	stranger atomic.Bool  // whether the client has still to log in
	proof    atomic.Int32 // 1 + version of the newest SaslAuthenticate; 0 for none
}

func (g *frameGuard) check(b []byte) error {
	for len(b) > 0 {
		if skip := min(g.left, len(b)); skip > 0 {
			g.left -= skip
			b = b[skip:]
			continue
		}
		g.head[g.have] = b[0]
		g.have++
		b = b[1:]
		if err := g.checkHead(); err != nil {
			return err
		}
	}
	return nil
}

func (g *frameGuard) checkHead() error {
	size := binary.BigEndian.Uint32(g.head[:])
	switch g.have {
	case sizeBytes:
		if size < minRequest || size > maxRequest || size > maxLogin && g.stranger.Load() {
			return fmt.Errorf("a frame of %d bytes is no Kafka request", size)
		}
	case headBytes:
		key := int16(binary.BigEndian.Uint16(g.head[sizeBytes:]))
		if kmsg.RequestForKey(key) == nil {
			return fmt.Errorf("kafka has no request with key %d", key)
		}
		if g.stranger.Load() && key != keyHandshake && key != keyVersions && key != keyAuthenticate {
			return fmt.Errorf("kafka has no answer to the request with key %d before the login", key)
		}
		if key == keyAuthenticate {
			g.proof.Store(1 + int32(binary.BigEndian.Uint16(g.head[sizeBytes+2:])))
		}
		g.have, g.left = 0, int(size)-(headBytes-sizeBytes)
	}
	return nil
}

// The requests of a login.
const (
	keyHandshake    = int16(kmsg.SASLHandshake)
	keyVersions     = int16(kmsg.ApiVersions)
	keyAuthenticate = int16(kmsg.SASLAuthenticate)
)

// checkAnswer ends the time as a stranger at the answer that accepts the client, and then returns true.
// The first answer of SCRAM begins with the nonce, r=, and accepts no client yet.
func (g *frameGuard) checkAnswer(p []byte) (accepts bool) {
	version := g.proof.Load() - 1
	if !g.stranger.Load() || version < 0 {
		return false
	}
	resp := kmsg.NewPtrSASLAuthenticateResponse()
	resp.SetVersion(int16(version))
	head := sizeBytes + 4 // size and correlation id
	if resp.IsFlexible() {
		head++ // empty tags
	}
	accepts = len(p) > head && resp.ReadFrom(p[head:]) == nil && resp.ErrorCode == 0 && !bytes.HasPrefix(resp.SASLAuthBytes, []byte("r="))
	if accepts {
		g.stranger.Store(false)
	}
	return accepts
}

const (
	maxStrangers = 64               // connections of a server whose clients have not logged in
	loginWithin  = 10 * time.Second // time for a login
	// strangerAge is how old a stranger must be before another one may take its place. A login takes
	// milliseconds.
	strangerAge = time.Second
)

// strangers are the connections of a server whose clients have not logged in. Every program of the
// machine can open connections, so the list bounds their number and their time. It works as
// network.Server does: above the limit the oldest stranger is closed if it is older than a second.
// Otherwise the new connection is refused.
type strangers struct {
	mu  sync.Mutex
	all list.List // values are *stranger, the oldest first
}

// stranger is a connection whose client has still to log in.
type stranger struct {
	net.Conn
	in    *strangers
	since time.Time
	entry *list.Element
	late  *time.Timer // closes the connection
}

// enter adds a connection. It returns nil if there is no room for it.
func (s *strangers) enter(c net.Conn) *stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Len() >= maxStrangers {
		oldest := s.all.Front().Value.(*stranger)
		if time.Since(oldest.since) < strangerAge {
			return nil
		}
		oldest.remove()
		_ = oldest.Close()
	}
	v := &stranger{Conn: c, in: s, since: time.Now()}
	v.entry = s.all.PushBack(v)
	v.late = time.AfterFunc(loginWithin, func() {
		v.leave()
		_ = v.Close()
	})
	return v
}

// leave ends the limits of a connection, because its client has logged in or gone. It may be called
// again, and for no stranger.
func (v *stranger) leave() {
	if v == nil {
		return
	}
	v.in.mu.Lock()
	defer v.in.mu.Unlock()
	v.remove()
}

// remove is called with the lock held.
func (v *stranger) remove() {
	v.late.Stop()
	v.in.all.Remove(v.entry) // does nothing the second time
}
