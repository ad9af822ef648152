package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// refusalAnswer returns the answer to refused connections. Net/http does not send it.
func refusalAnswer() string {
	body, _ := json.Marshal(unavailable("too many connections are open: try again later")) // strings and numbers cannot fail
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nRetry-After: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		api.ProblemType, retryAfter, len(body), body)
}

// certificate is the gateway's TLS certificate and key. When a connection opens, the two files are
// read again, at most once a second. So the swapped link of a mounted Secret and the renamed file
// of an editor are noticed. If certificate and key do not match, for example while a file is being
// written, the previous pair stays in use.
type certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	looked    time.Time
	cert, key []byte // contents of the files when last read
	pair      *tls.Certificate
	fault     error // reason why the present files are not in use
}

const lookEvery = time.Second

func openCertificate(certFile, keyFile string) (*certificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("serve HTTPS: a certificate and a key are needed, and one of the files is missing")
	}
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if c.reload(time.Now()); c.fault != nil {
		return nil, c.fault
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, _ := c.reload(time.Now())
			return pair, nil
		},
	}
}

// reload reads the files again, unless they were read within the last second.
func (c *certificate) reload(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.looked.IsZero() && now.Sub(c.looked) < lookEvery {
		return c.pair, c.fault
	}
	c.looked = now
	cert, err := os.ReadFile(c.certFile)
	key, keyErr := os.ReadFile(c.keyFile)
	if err = errors.Join(err, keyErr); err != nil {
		c.fault = fmt.Errorf("read the gateway's certificate: %w", err)
		return c.pair, c.fault
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		c.fault = nil
		return c.pair, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		c.fault = fmt.Errorf("load the gateway's certificate %s with its key %s: %w", c.certFile, c.keyFile, err)
		return c.pair, c.fault
	}
	c.cert, c.key, c.pair, c.fault = cert, key, &pair, nil
	return c.pair, nil
}

// check returns the readiness check of the certificate.
func (c *certificate) check(now time.Time) api.Check {
	pair, fault := c.reload(now)
	until := pair.Leaf.NotAfter
	switch {
	case now.After(until):
		return api.Check{Name: "gateway", Status: api.Degraded, Detail: fmt.Sprintf("%s expired on %s: renew it", c.certFile, until.Format(time.RFC3339))}
	case fault != nil:
		return api.Check{Name: "gateway", Status: api.Degraded, Detail: fmt.Sprintf("the previous certificate stays in use: %v", fault)}
	}
	return api.Check{Name: "gateway", Status: api.OK, Detail: "certificate until " + until.Format(time.RFC3339)}
}

// serveHTTP is the only place where requests arrive and problems are written.
func (g *Gateway) serveHTTP(w http.ResponseWriter, hr *http.Request) {
	began := time.Now()
	r := g.beginRequest(w, hr)
	same, value := g.routes.find(hr.URL.Path)
	to := routeOf(same, hr.Method)
	measure := &g.unrouted
	if to != nil {
		measure = &to.measure
	}
	defer func() {
		abort := false
		if cause := recover(); cause != nil {
			abort = g.answerPanic(r, measure.route, cause)
		}
		took := time.Since(began)
		measure.answered(r.answer.status, took)
		if to != nil && to.role == access.Publish {
			g.metrics.own.Observe((took - r.reading - r.waiting).Seconds())
		}
		g.endRequest(r)
		if abort {
			panic(http.ErrAbortHandler)
		}
	}()
	if g.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	r.value = value
	if p := g.respond(&r.answer, r, same, to); p != nil {
		if to != nil && r.post.used == 0 { // the events of a post are noted one by one
			g.noteRefusal(r, to.role, measure.route, p)
		}
		writeRefusal(&r.answer, hr.URL.Path, p)
	}
}

// respond runs the cheap checks first, so that a caller without permission is refused before the
// body is read.
func (g *Gateway) respond(w http.ResponseWriter, r *request, same []*route, to *route) *api.Problem {
	size := headerSize(r.Request)
	if limit := g.opt.Limits.Headers; size > limit {
		g.metrics.refused.headers.Inc()
		hangUp(w, r)
		return headersTooLarge(limit)
	}
	options := r.Method == http.MethodOptions && same != nil
	needed := known // a caller with any valid token may see that a path does not exist
	switch {
	case to != nil:
		needed = to.role
	case options:
		needed = anyone
	}
	p := g.admitCaller(w, r, needed)
	if p == nil && size > freeHeaders {
		p = g.chargeMemory(r, size*headerMemory)
	}
	if p != nil || to == nil || to.method != http.MethodPost {
		hangUp(w, r)
	}
	switch {
	case p != nil:
		return p
	case to != nil:
		return to.handle(w, r)
	case same == nil:
		return notFound(r.URL.Path)
	}
	w.Header().Set("Allow", allowHeader(same))
	if options {
		answerHandshake(w.Header(), r, same)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return methodNotAllowed(r.Method, r.URL.Path, allowHeader(same))
}

// Headers of more than freeHeaders bytes count against the memory of the requests under way, because
// net/http takes up to headerMemory bytes for each byte of them.
const (
	freeHeaders  = 4 << 10
	headerMemory = 25
)

// lingerFor is how long an unread body may keep a connection open after the answer.
const lingerFor = time.Second

// hangUp ends the connection of a request whose body will not be read. Net/http would wait for the
// body before it answers, for as long as a body may take. By sending nothing, a client without a
// token could then occupy connections and the memory of their headers.
func hangUp(w http.ResponseWriter, r *request) {
	if r.ContentLength == 0 || r.ProtoMajor > 1 { // HTTP/2 resets the stream
		return
	}
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingerFor)) // fails only if the connection is closed
}

// headerSize is the size of a request's headers as they were sent.
func headerSize(r *http.Request) int {
	const line = len(": \r\n")
	n := len(r.RequestURI) + len(r.Host)
	for key, values := range r.Header {
		for _, value := range values {
			n += len(key) + len(value) + line
		}
	}
	return n
}

// answerHandshake answers the CloudEvents webhook handshake, in which a sender asks for permission
// to send events. Any sender with a token is allowed, so nothing else is checked. The limit of
// bytes under way bounds the sender's rate.
func answerHandshake(h http.Header, r *request, same []*route) {
	origin := r.Header.Get("WebHook-Request-Origin")
	if origin == "" || routeOf(same, http.MethodPost) == nil {
		return
	}
	h.Set("WebHook-Allowed-Origin", origin)
	h.Set("WebHook-Allowed-Rate", "*")
}

// answerPanic answers with a problem, if no answer has begun. Otherwise the connection must be
// closed, so that the client does not take half an answer for a complete one.
func (g *Gateway) answerPanic(r *request, route string, cause any) (abort bool) {
	if cause != http.ErrAbortHandler {
		g.log.Error("gateway: a handler panicked; its caller gets a 500 or is cut off", "route", route, "reason", cause, "stack", string(debug.Stack()))
	}
	r.post.forbidReuse()
	if cause == http.ErrAbortHandler || r.answer.status != 0 {
		return true
	}
	r.answer.Header().Set("Connection", "close") // the rest of the body is in an unknown state
	writeRefusal(&r.answer, r.URL.Path, internalFault())
	return false
}

// request is one HTTP request and its state in the gateway. A request is used again, so no code may
// keep it after its handler has returned.
type request struct {
	*http.Request
	answer statusWriter
	caller *access.Caller // nil if the route needs no role
	value  string         // text that matched the route's braces

	attempt bearer // attempt that sent the request, on agents' routes

	buffer  []byte // bytes of the body
	charged int64  // bytes taken from the gateway's room
	post    *eventPost
	trace   context.Context // context of the gateway's span, for events without a trace
	reading time.Duration   // time spent reading the body
	waiting time.Duration   // time spent waiting for Kafka
}

// callerName returns the caller's name; empty if the caller was not identified.
func (r *request) callerName() string {
	if r.attempt.run != nil {
		return "attempt " + r.attempt.name // no token's name has a space
	}
	if r.caller == nil {
		return ""
	}
	return r.caller.Name()
}

// loggedName returns the caller's name as tables show it.
func (r *request) loggedName() string { return orElse(r.callerName(), "anonymous") }

// beginRequest takes a request from the pool.
func (g *Gateway) beginRequest(w http.ResponseWriter, hr *http.Request) *request {
	r := g.requests.Get().(*request)
	r.Request = hr
	r.answer = statusWriter{ResponseWriter: w}
	return r
}

// endRequest returns a request to the pool, unless the producer may still call it.
func (g *Gateway) endRequest(r *request) {
	if r.charged > 0 {
		g.room.give(r.callerName(), r.charged)
	}
	if !r.post.isReusable() {
		return
	}
	r.post.reset()
	buffer := r.buffer[:0]
	if cap(buffer) > bufferKept {
		buffer = make([]byte, 0, smallBody)
	}
	*r = request{buffer: buffer, post: r.post}
	g.requests.Put(r)
}

// statusWriter remembers the status that was sent.
type statusWriter struct {
	http.ResponseWriter
	status int // status that was sent; 0 before
}

// WriteHeader sends the status. An informational status is not remembered, because another follows.
func (a *statusWriter) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (a *statusWriter) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController set deadlines and flush.
func (a *statusWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// metrics are the gateway's metrics. docs/metrics.md lists them.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	events   *prometheus.CounterVec
	own, ack prometheus.Histogram
	homeless prometheus.Counter // refused events without a stream
	idle     *prometheus.CounterVec
	refused  refusalCounts
}

// refusalCounts counts the requests that were refused before a handler ran.
type refusalCounts struct {
	token, role, host, headers, share, room, slow, connections, superseded prometheus.Counter
}

// ownBuckets are small enough to show whether 99 of 100 requests take less than a millisecond.
func ownBuckets() []float64 {
	return []float64{25e-6, 50e-6, 100e-6, 150e-6, 200e-6, 300e-6, 400e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3, 50e-3}
}

func secondsBuckets() []float64 {
	return []float64{250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}

func (g *Gateway) newMetrics(to prometheus.Registerer) (*metrics, error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_refused_total",
		Help: "Requests and connections refused before they were handled, by reason."}, []string{"reason"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_requests_total",
			Help: "Requests answered, by route and status."}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_gateway_request_seconds",
			Help: "From a request's headers to the end of its answer.", Buckets: secondsBuckets()}, []string{"route"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_events_total",
			Help: "Events published, by stream and outcome: stored, repeated, refused or failed. The stream is empty if it is unknown."},
			[]string{"stream", "outcome"}),
		own: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_gateway_own_seconds",
			Help: "Time of a request that publishes, without reading its body and without waiting for Kafka.", Buckets: ownBuckets()}),
		ack: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_gateway_ack_seconds",
			Help: "Time from sending the events of a request to Kafka's acknowledgement of all of them.", Buckets: secondsBuckets()}),
	}
	m.idle = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_idle_gpu_seconds_total",
		Help: "GPU-seconds that pods waited for another run after their own, by pool."}, []string{"pool"})
	m.homeless = m.events.WithLabelValues("", "refused")
	for reason, counter := range map[string]*prometheus.Counter{
		"token": &m.refused.token, "role": &m.refused.role, "host": &m.refused.host, "headers": &m.refused.headers,
		"share": &m.refused.share, "room": &m.refused.room, "slow": &m.refused.slow, "connections": &m.refused.connections,
		"superseded": &m.refused.superseded,
	} {
		*counter = refused.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.events, m.own, m.ack, refused, m.idle,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_under_way_bytes",
			Help: "Memory of the requests being answered."}, func() float64 { return g.room.takenBytes() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_unacked_bytes",
			Help: "Events that Kafka has yet to acknowledge."}, func() float64 { return g.window.takenBytes() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_connections",
			Help: "Connections open now."}, func() float64 { return float64(g.server.Open()) }),
	} {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// showMetrics serves the metrics of the whole process.
func (g *Gateway) showMetrics(w http.ResponseWriter, r *request) *api.Problem {
	g.shown.ServeHTTP(w, r.Request)
	return nil
}

// routeMetrics holds the metrics of one route, so that requests need not look up the metrics.
type routeMetrics struct {
	route    string
	requests *prometheus.CounterVec
	accepted prometheus.Counter
	seconds  prometheus.Observer
}

func (m *metrics) of(route string) routeMetrics {
	return routeMetrics{route, m.requests, m.requests.WithLabelValues(route, strconv.Itoa(http.StatusAccepted)), m.seconds.WithLabelValues(route)}
}

func (m *routeMetrics) answered(status int, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	if status == http.StatusAccepted {
		m.accepted.Inc()
		return
	}
	m.requests.WithLabelValues(m.route, strconv.Itoa(status)).Inc()
}
