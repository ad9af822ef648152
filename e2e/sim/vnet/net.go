package vnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tidemill.dev/broker/network"
)

// Message is a write on a connection.
type Message struct {
	At       time.Time
	From, To string // names of hosts
	Conn     string // name of the connection: client, server, port and a count
	Number   int    // count of the messages of this direction of the connection
	Head     []byte // first bytes
	Size     int
	Fault    Fault
}

// Fault is what happens to a message.
type Fault struct {
	Delay time.Duration
	Cut   Cut
}

// Cut says whether a message ends its connection.
type Cut byte

// The receiver of a lost message gets no byte of it. The receiver of a message with CutAfter gets
// all of it, but its answer is lost.
const (
	Whole Cut = iota
	CutBefore
	CutAfter
)

// Options decide the fate of messages. Both functions are called by many goroutines.
type Options struct {
	Fault func(*Message) Fault // nil is no fault
	Trace func(*Message)       // nil is none
}

// Net is a network. Addresses of 127.0.0.1 belong to each host alone, but other hosts reach such a
// listener by its host's own address, as through a forwarded port.
type Net struct {
	o Options

	mu     sync.Mutex
	hosts  map[string]*Host // by IP; the newest of each name
	ips    map[string]string
	conns  map[*conn]struct{}
	counts map[string]int // connections so far, by client, server and port

	blocked atomic.Pointer[map[link]bool]
	healed  chan struct{} // closed after a change of blocked
}

type link struct{ from, to string }

// New returns a network without hosts.
func New(o Options) *Net {
	n := &Net{o: o, hosts: map[string]*Host{}, ips: map[string]string{}, conns: map[*conn]struct{}{}, counts: map[string]int{}, healed: make(chan struct{})}
	n.blocked.Store(&map[link]bool{})
	return n
}

// Host is one life of a machine. After Kill, a new Host of the same name has the same address.
type Host struct {
	n         *Net
	name, ip  string
	mu        sync.Mutex
	dead      chan struct{}
	sent      int
	dieAt     int // number of the message that is not sent any more; 0 is none
	listeners map[int]*listener
	lastPort  int
}

// Host starts a host.
func (n *Net) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	ip := n.ips[name]
	if ip == "" {
		ip = fmt.Sprintf("10.0.0.%d", len(n.ips)+1)
		n.ips[name] = ip
	}
	h := &Host{n: n, name: name, ip: ip, dead: make(chan struct{}), listeners: map[int]*listener{}, lastPort: 30_000}
	n.hosts[ip] = h
	return h
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// IP returns the host's address.
func (h *Host) IP() string { return h.ip }

// Network returns the network of the programs on this host.
func (h *Host) Network() network.Network { return network.Network{Dial: h.Dial, Listen: h.Listen} }

// Killed is closed when the host is dead.
func (h *Host) Killed() <-chan struct{} { return h.dead }

// KillAfter kills the host instead of sending the message after the next n.
func (h *Host) KillAfter(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dieAt = h.sent + n + 1
}

// Kill does what kill -9 does to sockets: peers still get what was sent before, and then a reset.
func (h *Host) Kill() {
	h.mu.Lock()
	if h.isDead() {
		h.mu.Unlock()
		return
	}
	close(h.dead)
	listeners := h.listeners
	h.listeners = map[int]*listener{}
	h.mu.Unlock()
	for _, l := range listeners {
		l.once.Do(func() { close(l.closed) })
	}
	for _, c := range h.n.connsOf(h) {
		c.die(c.host == h)
	}
}

func (h *Host) isDead() bool {
	select {
	case <-h.dead:
		return true
	default:
		return false
	}
}

// send counts a message, and reports whether the host still lives to send it.
func (h *Host) send() bool {
	h.mu.Lock()
	h.sent++
	dies := h.dieAt != 0 && h.sent >= h.dieAt
	dead := h.isDead()
	h.mu.Unlock()
	if dies && !dead {
		h.Kill()
	}
	return !dies && !dead
}

func (n *Net) connsOf(h *Host) (all []*conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if h == nil || c.host == h || c.peer.host == h {
			all = append(all, c)
		}
	}
	return all
}

// Block stops the messages from one host to another until Heal: they arrive then, if their
// connection still exists.
func (n *Net) Block(from, to string) { n.setBlocked(link{from, to}, true) }

// Heal ends a Block.
func (n *Net) Heal(from, to string) { n.setBlocked(link{from, to}, false) }

func (n *Net) setBlocked(l link, on bool) {
	n.mu.Lock()
	now := map[link]bool{l: on}
	for k, v := range *n.blocked.Load() {
		if k != l && v {
			now[k] = true
		}
	}
	n.blocked.Store(&now)
	close(n.healed)
	n.healed = make(chan struct{})
	n.mu.Unlock()
	for _, c := range n.connsOf(nil) {
		c.in.update(func() {})
		c.peer.in.update(func() {})
	}
}

func (n *Net) isBlocked(from, to string) bool {
	m := *n.blocked.Load()
	return len(m) > 0 && m[link{from, to}]
}

// CutBetween resets the connections for which pick returns true. Its argument is the name of the
// connection.
func (n *Net) CutBetween(pick func(conn string) bool) (cut int) {
	for _, c := range n.connsOf(nil) {
		if pick(c.name) {
			c.reset()
			cut++
		}
	}
	return cut
}

// Listen accepts connections at a port of this host; port 0 is a free one.
func (h *Host) Listen(_ context.Context, _, address string) (net.Listener, error) {
	ip, port, err := h.resolve(address)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if port == 0 {
		h.lastPort++
		port = h.lastPort
	}
	at := &net.TCPAddr{IP: net.ParseIP(ip), Port: port}
	if h.isDead() || h.listeners[port] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: at, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{host: h, at: at, arrived: make(chan net.Conn, 128), closed: make(chan struct{})}
	h.listeners[port] = l
	return l, nil
}

func (h *Host) resolve(address string) (ip string, port int, err error) {
	ip, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	if ip == "" || ip == "localhost" {
		ip = "127.0.0.1"
	}
	port, err = strconv.Atoi(text)
	return ip, port, err
}

const (
	connectWithin = 5 * time.Second // go-redis dials without a limit
	roundTrip     = 200 * time.Microsecond
)

// Dial opens a connection. It waits while the link is blocked, and is refused without a listener.
func (h *Host) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	ip, port, err := h.resolve(address)
	if err != nil {
		return nil, err
	}
	fail := func(why error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: port}, Err: why}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectWithin, os.NewSyscallError("connect", syscall.ETIMEDOUT))
	defer cancel()
	to, err := h.waitForLink(ctx, ip)
	if err != nil {
		return fail(err)
	}
	var l *listener
	if to != nil {
		to.mu.Lock()
		l = to.listeners[port]
		to.mu.Unlock()
	}
	if l == nil || h.isDead() {
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	c, s := h.n.connect(h, l)
	select {
	case l.arrived <- s:
		return c, nil
	case <-l.closed:
	case <-ctx.Done():
	}
	c.reset()
	return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
}

// waitForLink returns the host of an address; nil if there is none.
func (h *Host) waitForLink(ctx context.Context, ip string) (*Host, error) {
	for {
		h.n.mu.Lock()
		to, healed := h.n.hosts[ip], h.n.healed
		h.n.mu.Unlock()
		if ip == "127.0.0.1" {
			to = h
		}
		if to == nil || !h.n.isBlocked(h.name, to.name) && !h.n.isBlocked(to.name, h.name) {
			select {
			case <-time.After(roundTrip):
				return to, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		select {
		case <-healed:
		case <-h.dead:
			return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// connect makes both ends of a connection.
func (n *Net) connect(from *Host, to *listener) (client, server *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := fmt.Sprintf("%s>%s:%d", from.name, to.host.name, to.at.Port)
	n.counts[name]++
	name = fmt.Sprintf("%s#%d", name, n.counts[name])
	local := &net.TCPAddr{IP: to.at.IP, Port: 40_000 + len(n.counts) + n.counts[name]}
	client = &conn{host: from, name: name, in: newHalf(), local: local, remote: to.at}
	server = &conn{host: to.host, name: name, in: newHalf(), local: to.at, remote: local}
	client.peer, server.peer = server, client
	n.conns[client], n.conns[server] = struct{}{}, struct{}{}
	return client, server
}

type listener struct {
	host    *Host
	at      *net.TCPAddr
	arrived chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.arrived:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.at, Err: net.ErrClosed}
	}
}

// Addr returns the address of the listener.
func (l *listener) Addr() net.Addr { return l.at }

// Close refuses connections from now on.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		close(l.closed)
		l.host.mu.Lock()
		defer l.host.mu.Unlock()
		if l.host.listeners[l.at.Port] == l {
			delete(l.host.listeners, l.at.Port)
		}
	})
	return err
}
