package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// Limits bound what callers can take from the process. A zero is the default.
type Limits struct {
	Headers     int // bytes of a request's headers; 64 KiB
	Event       int // bytes of one event, its attributes counted; 1 MiB
	Batch       int // bytes of a batch's body; 16 MiB
	BatchEvents int // events of a batch; 10,000
	Connections int // open at once; 10,000

	UnderWay int64 // bytes of all requests being answered; 256 MiB
	Caller   int64 // of those, for one caller with a name; half
	Unacked  int64 // bytes of events that Kafka has yet to acknowledge; 48 MiB. Less than the producer's buffer

	ReadHeader time.Duration // until a request's headers are here; 10 s
	BodyGrace  time.Duration // until a body has to come at BodyRate; 10 s
	BodyRate   int           // bytes a second, on average; 16 KiB
	Room       time.Duration // an event may wait for room among the unacknowledged; 1 s
	Ack        time.Duration // and for its acknowledgement; 30 s
	Write      time.Duration // an answer may take to be taken; 10 s
	Idle       time.Duration // a connection may be silent between requests; 2 minutes

	Runs int // that one request starts, cancels or retries; 50,000

	Look      time.Duration // Kafka may take to say how streams are; 5 s
	Soon      time.Duration // and whoever knows what an answer can do without; 1 s
	Sight     time.Duration // a node may take to tell of a container that has begun, and a controller to say so; 2 s
	Tails     int           // open at once; 64
	OwnTails  int           // of those, of one caller with a name; half
	Keepalive time.Duration // a tail is silent for no longer; 15 s

	DrainDelay time.Duration // Close goes on answering; none
}

// headerSlack is how far beyond Headers net/http itself refuses them, without a
// problem. It is small: headers of four bytes take thirty times as much in
// memory, before anybody knows who sends them.
const headerSlack = 32 << 10

// http2Streams are the requests at once on one HTTP/2 connection.
const http2Streams = 100

func (l Limits) withDefaults() Limits {
	setDefault(&l.Headers, 64<<10)
	setDefault(&l.Event, 1<<20)
	setDefault(&l.Batch, 16<<20)
	setDefault(&l.BatchEvents, 10_000)
	setDefault(&l.Connections, 10_000)
	setDefault(&l.UnderWay, 256<<20)
	setDefault(&l.Caller, l.UnderWay/2)
	setDefault(&l.Unacked, 48<<20)
	setDefault(&l.ReadHeader, 10*time.Second)
	setDefault(&l.BodyGrace, 10*time.Second)
	setDefault(&l.BodyRate, 16<<10)
	setDefault(&l.Room, time.Second)
	setDefault(&l.Ack, 30*time.Second)
	setDefault(&l.Write, 10*time.Second)
	setDefault(&l.Idle, 2*time.Minute)
	setDefault(&l.Runs, 50_000)
	setDefault(&l.Look, 5*time.Second)
	setDefault(&l.Soon, time.Second)
	setDefault(&l.Sight, 2*time.Second)
	setDefault(&l.Tails, 64)
	setDefault(&l.OwnTails, (l.Tails+1)/2)
	setDefault(&l.Keepalive, 15*time.Second)
	return l
}

func setDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// structured is how long the JSON of an event may be that Event allows: data in
// base64 is longer by a third. The event itself is measured once it is read.
func (l *Limits) structured() int { return l.Event/3*4 + 64<<10 }

// answer is how long a request may take once its body is here.
func (l *Limits) answer() time.Duration { return l.Room + l.Ack + l.Write }

// soon is how long a look waits for what it can do without.
func (l *Limits) soon() time.Duration { return min(l.Soon, l.Look) }

// body is when so many bytes of a body have to be here.
func (l *Limits) body(began time.Time, bytes int) time.Time {
	return began.Add(l.BodyGrace + time.Duration(bytes)*time.Second/time.Duration(l.BodyRate))
}

// Check refuses of where a door is to be what Open would refuse, so that nothing
// else need have been opened by then.
func Check(listen, certFile, keyFile string, guarded bool) error {
	if err := checkOpen(listen, guarded); err != nil {
		return err
	}
	if certFile == "" && keyFile == "" {
		return nil
	}
	_, err := openCertificate(certFile, keyFile)
	return err
}

// checkOpen refuses to open a door without tokens to anyone but this machine.
func checkOpen(listen string, guarded bool) error {
	at, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for HTTP on %q: %w; write it as host:port", listen, err)
	}
	if guarded || at.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen for HTTP on %q: that is not a loopback address, and without tokens whoever reaches it can publish and read everything: "+
		"make a token with `tidemill token new` and name its file with --access, or listen on 127.0.0.1", listen)
}

// admit finds out who asks and whether the route is for them.
func (g *Gateway) admit(w http.ResponseWriter, r *request, needed access.Role) *api.Problem {
	if isOfAttempt(needed) {
		return g.admitAttempt(w, r, needed)
	}
	if g.opt.Access == nil {
		return g.admitOpen(r)
	}
	if needed == anyone {
		return nil
	}
	if p := g.identify(w, r); p != nil {
		g.metrics.refused.token.Inc()
		return p
	}
	if needed != known && !r.caller.Has(needed) {
		g.metrics.refused.role.Inc()
		return missingRole(r.caller.Name(), needed)
	}
	return nil
}

// admitOpen lets everyone on this machine in. A page on the web could have its
// own name point to this machine and a browser here ask us in its name; the
// host is then that name. Or it could have the browser post to us under our own
// name, and care nothing for the answer: to pause a trigger or to drop letters
// takes no more than a form does. The browser says then where the page is from.
func (g *Gateway) admitOpen(r *request) *api.Problem {
	if !isLoopback(r.Host) {
		g.metrics.refused.host.Inc()
		return strangeHost(r.Host)
	}
	if g.crossOrigin.Check(r.Request) != nil {
		g.metrics.refused.host.Inc()
		return strangeOrigin(r.Header.Get("Origin"))
	}
	r.caller = g.everyone
	return nil
}

func isLoopback(hostport string) bool {
	host := hostport
	if strings.Contains(host, ":") {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.IsLoopback()
}

// challenge is what a request without a good token is told to come with.
const challenge = `Bearer realm="tidemill"`

// identify asks the guard who the caller is.
func (g *Gateway) identify(w http.ResponseWriter, r *request) *api.Problem {
	caller, err := g.opt.Access.Caller(r.Context(), r.Header.Get("Authorization"))
	switch {
	case err == nil:
		r.caller = caller
		return nil
	case errors.Is(err, access.ErrIssuerAway):
		// Why is for readers of /readyz: it names servers, and this caller may be anybody.
		return unavailable(access.ErrIssuerAway.Error() + ": send it again a little later")
	case errors.Is(err, access.ErrNoToken):
		w.Header().Set("WWW-Authenticate", challenge)
	default:
		w.Header().Set("WWW-Authenticate", challenge+`, error="invalid_token"`)
	}
	return unauthenticated(err.Error())
}

// window bounds the bytes of events that Kafka has yet to acknowledge, so that
// the producer's buffer, which all streams share, is never full: a stream whose
// partitions have no leader would take all of it, and nothing could be published
// anywhere.
//
// A stream may hold as much as is free. One stalled stream so comes to hold a
// half, two a third each, and however many stall there is room for the next. A
// partition, in turn, may hold as much as its stream may still take: one without
// a leader leaves room for those that have one.
type window struct {
	mu      sync.Mutex
	free    int64
	waiting int // turns of all tracks
	lanes   []*lane
}

// lane is one stream's part of the window.
type lane struct {
	held   int64
	tracks []*track // that of partition n is n+1; the first is for whatever has no key
}

// track is one partition's part of a lane.
type track struct {
	lane  *lane
	held  int64
	turns []turn // of those who wait, in order
}

type turn struct {
	n     int64
	ready chan struct{}
}

// open adds a stream's lane. It stays, as streams are few and come back.
func (w *window) open() *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &lane{}
	w.lanes = append(w.lanes, l)
	return l
}

// track finds a partition's part of a lane, made on first use.
func (l *lane) track(partition int32) *track {
	for int(partition)+1 >= len(l.tracks) {
		l.tracks = append(l.tracks, &track{lane: l})
	}
	return l.tracks[partition+1]
}

// take waits for n bytes, as long as the context allows, behind whoever waits
// for the same partition already; -1 is that of whatever has no key.
func (w *window) take(ctx context.Context, l *lane, partition int32, n int64) (*track, error) {
	w.mu.Lock()
	k := l.track(partition)
	if len(k.turns) == 0 && w.admits(k) {
		w.grant(k, n)
		w.mu.Unlock()
		return k, nil
	}
	t := turn{n, make(chan struct{})}
	k.turns = append(k.turns, t)
	w.waiting++
	w.mu.Unlock()
	select {
	case <-t.ready:
		return k, nil
	case <-ctx.Done():
	}
	if !w.forget(k, t) {
		w.give(k, n) // it became ready in the same moment
	}
	return nil, context.Cause(ctx)
}

// admits tells whether a partition may take more.
func (w *window) admits(k *track) bool { return k.held+k.lane.held < w.free }

func (w *window) grant(k *track, n int64) {
	k.held += n
	k.lane.held += n
	w.free -= n
}

// give returns what was taken. Whatever is free may let a turn of any track in.
func (w *window) give(k *track, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grant(k, -n)
	if w.waiting == 0 {
		return
	}
	for _, l := range w.lanes {
		for _, k := range l.tracks {
			w.admit(k)
		}
	}
}

// admit lets in who waits for a partition, as many as it may take.
func (w *window) admit(k *track) {
	for len(k.turns) > 0 && w.admits(k) {
		w.grant(k, k.turns[0].n)
		close(k.turns[0].ready)
		k.turns = slices.Delete(k.turns, 0, 1)
		w.waiting--
	}
}

// bytes is how much is taken now.
func (w *window) bytes() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := int64(0)
	for _, l := range w.lanes {
		held += l.held
	}
	return float64(held)
}

// forget takes a turn back, unless it has come.
func (w *window) forget(k *track, t turn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(k.turns, func(o turn) bool { return o.ready == t.ready })
	if i < 0 {
		return false
	}
	k.turns = slices.Delete(k.turns, i, i+1)
	w.waiting--
	return true
}

// errNoRoom is the cause of a context of patience that has ended.
var errNoRoom = errors.New("no room among the events that Kafka has yet to acknowledge")

// patience hands out contexts that end after a while. One serves all requests
// of a tenth of that while: hardly any ever waits for it, and a context of its
// own would cost each of them more than all else about the wait.
type patience struct {
	while time.Duration

	mu    sync.Mutex
	now   context.Context
	until time.Time // it is handed out
}

// context ends after the while, or up to a tenth of it earlier.
func (p *patience) context() context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.After(p.until) {
		ctx, end := context.WithTimeoutCause(context.Background(), p.while, errNoRoom)
		context.AfterFunc(ctx, end) // not before: whoever waits, waits for all of it
		p.now, p.until = ctx, now.Add(p.while/10)
	}
	return p.now
}
