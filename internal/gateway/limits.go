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
	"tidemill.dev/broker/network"
	"tidemill.dev/internal/gateway/access"
)

// Limits bound the resources that callers can take from the process. A zero field means the
// default.
type Limits struct {
	Headers     int // bytes of a request's headers; 16 KiB
	Event       int // bytes of one event with its attributes; 1 MiB
	Batch       int // bytes of a batch's body; 16 MiB
	BatchEvents int // events of a batch; 10,000
	Connections int // open connections; 10,000
	Unfinished  int // bytes of all requests whose headers are not complete; 4 MiB

	UnderWay int64 // bytes of all requests being answered; 192 MiB
	Caller   int64 // bytes of the requests of one named caller; half of UnderWay
	Unacked  int64 // bytes of events that Kafka has yet to acknowledge; 48 MiB. This is less than the producer's buffer

	ReadHeader time.Duration // time for a request's headers; 10 s
	BodyGrace  time.Duration // time before a body must arrive at BodyRate; 10 s
	BodyRate   int           // bytes of a body per second, on average; 16 KiB
	Room       time.Duration // time that an event may wait for room among the unacknowledged; 1 s
	Ack        time.Duration // time that an event may wait for its acknowledgement; 30 s
	Write      time.Duration // time in which a caller must take an answer; 10 s
	Idle       time.Duration // time that a connection may be idle between requests; 2 minutes

	Runs int // runs that one request starts, cancels or retries; 50,000

	Look      time.Duration // time for a lookup in Kafka, Redis or the store; 5 s
	Soon      time.Duration // time for a lookup whose result an answer may lack; 1 s
	Sight     time.Duration // time for a node and a controller to report the image of a new container; 2 s
	Tails     int           // open tails; 24. A tail takes up to 6 MiB
	OwnTails  int           // open tails of one named caller; a quarter of Tails
	Keepalive time.Duration // longest time without a sent byte on a tail or a live connection; 15 s
	Live      int           // open live connections; 1,000
	OwnLive   int           // open live connections of one named caller; a quarter of Live

	Streams    int // open gRPC streams; 32. A stream takes up to 4 MiB for a message that is not complete
	OwnStreams int // open gRPC streams of one named caller; a quarter of Streams

	DrainDelay time.Duration // time that Close goes on answering; none
}

// headerSlack is added to Headers to get net/http's own limit, whose refusal is not a problem
// document. The slack is small, because headers of four bytes take thirty times as much memory, and
// the caller is still unknown.
const headerSlack = 4 << 10

func (l Limits) withDefaults() Limits {
	setDefault(&l.Headers, network.MaxHeaders)
	setDefault(&l.Event, 1<<20)
	setDefault(&l.Batch, 16<<20)
	setDefault(&l.BatchEvents, 10_000)
	setDefault(&l.Connections, 10_000)
	setDefault(&l.Unfinished, 4<<20)
	setDefault(&l.UnderWay, 192<<20)
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
	setDefault(&l.Tails, 24)
	setDefault(&l.OwnTails, (l.Tails+3)/4)
	setDefault(&l.Keepalive, 15*time.Second)
	setDefault(&l.Live, 1000)
	setDefault(&l.OwnLive, (l.Live+3)/4)
	setDefault(&l.Streams, 32)
	setDefault(&l.OwnStreams, (l.Streams+3)/4)
	return l
}

func setDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// maxJSON is the maximum size of an event's JSON. Base64 makes data a third longer. The event's own
// size is checked after it has been read.
func (l *Limits) maxJSON() int { return l.Event/3*4 + 64<<10 }

// answerTime is the time for a request after its body has arrived.
func (l *Limits) answerTime() time.Duration { return l.Room + l.Ack + l.Write }

// lookupTime is the time for a lookup whose result an answer may lack.
func (l *Limits) lookupTime() time.Duration { return min(l.Soon, l.Look) }

// bodyDeadline is the time at which the given number of bytes of a body must have arrived.
func (l *Limits) bodyDeadline(began time.Time, bytes int) time.Time {
	return began.Add(l.BodyGrace + time.Duration(bytes)*time.Second/time.Duration(l.BodyRate))
}

// Check returns the error that Open would return for these addresses and certificates, so that a
// caller can check them before it opens anything. The address for gRPC may be empty.
func Check(listen, listenGRPC, certFile, keyFile string, guarded bool) error {
	if err := checkOpen(listen, guarded); err != nil {
		return err
	}
	if listenGRPC != "" {
		if err := checkOpen(listenGRPC, guarded); err != nil {
			return err
		}
	}
	if certFile == "" && keyFile == "" {
		return nil
	}
	_, err := openCertificate(certFile, keyFile)
	return err
}

// checkOpen refuses to listen without tokens on an address that other machines can reach.
func checkOpen(listen string, guarded bool) error {
	at, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on %q: %w; write it as host:port", listen, err)
	}
	if guarded || at.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen on %q: that is not a loopback address, and without tokens every client that reaches it can publish and read everything: "+
		"make a token with `tidemill token new` and name its file with --access, or listen on 127.0.0.1", listen)
}

// admitCaller identifies the caller and checks the role.
func (g *Gateway) admitCaller(w http.ResponseWriter, r *request, needed access.Role) *api.Problem {
	if isOfAttempt(needed) {
		return g.admitAttempt(w, r, needed)
	}
	if g.opt.Access == nil {
		return g.admitOpen(r)
	}
	if needed == anyone {
		return nil
	}
	if p := g.identifyCaller(w, r); p != nil {
		g.metrics.refused.token.Inc()
		return p
	}
	if needed != known && !r.caller.Has(needed) {
		g.metrics.refused.role.Inc()
		return missingRole(r.caller.Name(), needed)
	}
	return nil
}

// admitOpen admits every caller on this machine, except web pages in a browser on this machine. A
// page may resolve its own host name to this machine; then the Host header has that name. Or a page
// may post a plain form to localhost, which is enough to pause a trigger or to drop dead letters;
// then the Origin header names the page's site.
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

// authChallenge is the WWW-Authenticate header for a request without a valid token.
const authChallenge = `Bearer realm="tidemill"`

// identifyCaller asks the guard for the caller of a request.
func (g *Gateway) identifyCaller(w http.ResponseWriter, r *request) *api.Problem {
	caller, err := g.opt.Access.Caller(r.Context(), r.Header.Get("Authorization"))
	switch {
	case err == nil:
		r.caller = caller
		return nil
	case errors.Is(err, access.ErrNoToken):
		w.Header().Set("WWW-Authenticate", authChallenge)
	case !errors.Is(err, access.ErrIssuerAway):
		w.Header().Set("WWW-Authenticate", authChallenge+`, error="invalid_token"`)
	}
	return unidentified(err)
}

// unidentified returns the problem of a caller without a valid token.
func unidentified(err error) *api.Problem {
	if errors.Is(err, access.ErrIssuerAway) {
		// Only /readyz shows the reason, because the reason names servers, and this caller is
		// unknown.
		return unavailable(access.ErrIssuerAway.Error() + ": send it again later")
	}
	return unauthenticated(err.Error())
}

// window bounds the bytes of events that Kafka has yet to acknowledge, so that the producer's
// buffer is never full. All streams share that buffer. A stream whose partitions have no leader
// would fill the buffer, and then nothing could be published on any stream.
//
// A stream may hold as many bytes as are still free. So one stalled stream holds a half, two
// stalled streams hold a third each, and there is always room for the next stream. In the same way,
// a partition may hold as many bytes as its stream may still take. So a partition without a leader
// leaves room for the others.
type window struct {
	mu      sync.Mutex
	free    int64
	waiting int // number of turns in all tracks
	lanes   []*lane
}

// lane is one stream's part of the window.
type lane struct {
	held   int64
	tracks []*track // track n+1 is for partition n; the first is for events without a key
}

// track is one partition's part of a lane.
type track struct {
	lane  *lane
	held  int64
	turns []turn // waiting events, in order
}

type turn struct {
	n     int64
	ready chan struct{}
}

// open adds a stream's lane. Lanes are never removed, because streams are few, and a removed stream
// may be created again.
func (w *window) open() *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &lane{}
	w.lanes = append(w.lanes, l)
	return l
}

// track returns the track of a partition, and creates it on first use.
func (l *lane) track(partition int32) *track {
	for int(partition)+1 >= len(l.tracks) {
		l.tracks = append(l.tracks, &track{lane: l})
	}
	return l.tracks[partition+1]
}

// take waits for n bytes as long as the context allows. Events that already wait for the same
// partition come first. Partition -1 is for events without a key.
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
	if !w.removeTurn(k, t) {
		w.release(k, n) // the turn became ready at the same moment
	}
	return nil, context.Cause(ctx)
}

// admits reports whether a partition may take more bytes.
func (w *window) admits(k *track) bool { return k.held+k.lane.held < w.free }

func (w *window) grant(k *track, n int64) {
	k.held += n
	k.lane.held += n
	w.free -= n
}

// release returns n bytes to the window and admits waiting events, which may be of any track.
func (w *window) release(k *track, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grant(k, -n)
	if w.waiting == 0 {
		return
	}
	for _, l := range w.lanes {
		for _, k := range l.tracks {
			w.admitWaiting(k)
		}
	}
}

// admitWaiting admits as many waiting events of a partition as the partition may take.
func (w *window) admitWaiting(k *track) {
	for len(k.turns) > 0 && w.admits(k) {
		w.grant(k, k.turns[0].n)
		close(k.turns[0].ready)
		k.turns = slices.Delete(k.turns, 0, 1)
		w.waiting--
	}
}

// takenBytes returns the number of bytes that are taken now.
func (w *window) takenBytes() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := int64(0)
	for _, l := range w.lanes {
		held += l.held
	}
	return float64(held)
}

// removeTurn removes a turn, unless it is ready.
func (w *window) removeTurn(k *track, t turn) bool {
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

// errNoRoom is the cause with which a context of a contextPool ends.
var errNoRoom = errors.New("too many events wait for Kafka's acknowledgement")

// contextPool returns contexts with a timeout. All requests within a tenth of the timeout share one
// context. Hardly any request waits until the timeout, so a context per request would cost too
// much.
type contextPool struct {
	while time.Duration

	mu    sync.Mutex
	now   context.Context
	until time.Time // time until which newContext returns now
}

// newContext returns a context that ends after the timeout, or up to a tenth of the timeout
// earlier.
func (p *contextPool) newContext() context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.After(p.until) {
		ctx, end := context.WithTimeoutCause(context.Background(), p.while, errNoRoom)
		context.AfterFunc(ctx, end) // end runs only after the timeout, because other requests may share the context
		p.now, p.until = ctx, now.Add(p.while/10)
	}
	return p.now
}

const (
	// refusalsKept bounds the memory for callers, whose number an identity provider decides.
	refusalsKept = 1000
	// refusalsQuiet is the time for which refusals of one caller on one route are only counted.
	refusalsQuiet = 30 * time.Second
)

// refusals counts what callers tried to do without the right to do it. The log gets the first
// refusal of a caller on a route at once, and later ones as a number, so that a caller cannot fill
// the log.
type refusals struct {
	mu  sync.Mutex
	all map[refusal]*refusalCount
}

type refusal struct{ by, route string }

type refusalCount struct {
	times int       // refusals since the last line of the log
	quiet time.Time // time until which nothing is logged
}

// add counts a refusal, and returns the number for the log; 0 if nothing is logged now.
func (f *refusals) add(one refusal, now time.Time) (times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.all[one]
	if c == nil {
		if f.all == nil || len(f.all) >= refusalsKept {
			f.all = map[refusal]*refusalCount{}
		}
		c = &refusalCount{}
		f.all[one] = c
	}
	c.times++
	if now.Before(c.quiet) {
		return 0
	}
	times, c.times, c.quiet = c.times, 0, now.Add(refusalsQuiet)
	return times
}

// noteRefusal counts and logs a problem that says that the caller lacks a right. Refused reads are
// not counted, because a read changes nothing.
func (g *Gateway) noteRefusal(r *request, role access.Role, route string, p *api.Problem) {
	if p == nil || p.Status != http.StatusForbidden || r.caller == nil {
		return
	}
	switch role {
	case access.Publish, access.Operate, access.Approve:
	default:
		return
	}
	if times := g.refusals.add(refusal{r.callerName(), route}, time.Now()); times > 0 {
		g.log.Warn("gateway: a caller lacks a right; its request is refused", "by", r.loggedName(), "route", route, "reason", p.Detail, "times", times)
	}
}
