package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/network"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/dashboard"
	"tidemill.dev/internal/gateway/rpc"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/models/fleet"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/rendezvous"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/internal/runs/warmpods"
	"tidemill.dev/internal/scoring/oip/protobuf"
	"tidemill.dev/triggers/schedule"
)

// Options say where the gateway listens and which services it uses.
type Options struct {
	Listen            string // host:port; port 0 takes a free port
	ListenGRPC        string // host:port of the Open Inference Protocol over gRPC; empty means none
	CertFile, KeyFile string // PEM files, checked again on new connections; empty means plain HTTP

	Config   func() *config.Config // returns the config that applies now
	Broker   *broker.Broker
	Producer *broker.Producer  // its Timeout is below Limits.Ack, so that its timeout comes first; its MaxBuffered is above Limits.Unacked
	Repeats  *dedupe.Memory    // nil recognises no repeats
	Standing *status.Board     // numbers of triggers; nil if unknown
	Scorers  *status.Scorers   // numbers of scorers; nil if unknown
	History  *status.History   // numbers of the last two hours; nil if unknown
	Rollouts *status.Rollouts  // figures of rollouts; nil if unknown
	Fresh    *status.Freshness // times from an event to a version's first score; nil if unknown
	// Score returns the answer of a scorer's champion for an event; nil if this gateway does not
	// score. A retry after an error may help, unless the error is an Unanswered.
	Score     func(ctx context.Context, c config.Scorer, v *broker.View) (api.ScoreDone, error)
	Rescore   Rescore        // nil if Score is nil
	Trials    *status.Trials // states of running trials; nil if unknown
	Rejudge   Rejudge        // nil if Score is nil
	Replay    Replay         // nil if Score is nil
	Inference Inference      // answers by the Open Inference Protocol; nil if this gateway does not score
	// InferenceGRPC answers the protocol's messages of gRPC; nil if this gateway does not score.
	InferenceGRPC *protobuf.Service
	Access        *access.Guard // nil admits all local callers, on loopback only
	Telemetry     *telemetry.Telemetry

	Warm   *warmpods.Book   // waiting pods; nil lets no pod wait
	Muster *rendezvous.Roll // rendezvous of the workers of an attempt; nil refuses attempts with several workers

	Runs      *scheduler.Foreman // nil if there are no runs; then the next six fields are nil too
	Ledger    *ledger.Ledger
	Models    *registry.Registrar
	Store     *store.Store
	Tokens    *scheduler.Tokens                       // tokens of attempts
	Forgetter *erase.Forgetter                        // erases keys
	Announce  func(context.Context, api.Commit) error // publishes a commit's event
	GPUs      func() int                              // number of GPUs of this machine; nil if unknown
	Network   network.Network                         // network on which Listen is
	Inside    net.Listener                            // listener for the agents of this process, without TLS; may be nil
	Slots     func(config.Pool) int                   // number of slots of a pool; nil takes the config's number

	Ready   func(context.Context) api.Readiness // state of the process's dependencies
	Full    func() string                       // says that the disk of the laptop's Kafka is full, and how to go on; empty if it is not. Nil if the disk is unknown
	Limits  Limits
	Logger  *slog.Logger
	Version string
}

// Gateway is an open HTTP server. Serve answers requests until Close.
type Gateway struct {
	opt         Options
	log         *slog.Logger
	everyone    *access.Caller // caller of all requests if there are no tokens
	crossOrigin http.CrossOriginProtection
	certificate *certificate // nil without TLS
	listener    net.Listener
	server      *network.Server
	inside      *network.Server // server for the agents of this process; may be nil
	rpcListener net.Listener    // nil without gRPC
	rpc         *rpc.Server     // nil without gRPC
	rpcStreams  seats
	routes      *router
	unrouted    routeMetrics // metrics of requests without a route
	metrics     *metrics
	tracer      trace.Tracer
	ofServer    trace.SpanStartOption
	shown       http.Handler // handler of the metrics
	requests    sync.Pool    // values are *request

	planned   atomic.Pointer[publishPlan]
	outlets   streamStates
	window    window
	patience  contextPool
	room      memoryLimit
	readiness readinessCache
	survey    sharedLookup[[]broker.StreamInfo]
	marks     sharedLookup[*schedule.Book]
	desk      commandState
	tails     *openTails
	live      liveConnections
	fresh     freshTimes
	attempts  attemptCache
	ownership atomic.Pointer[keyOwnership]
	fleet     fleet.Views
	refusals  refusals
	pages     *dashboard.Dashboard

	collecting sync.Mutex // held while a collection runs

	draining atomic.Bool   // readiness fails, and answers close their connection
	ending   chan struct{} // closed when endless answers must end
	over     chan struct{} // closed when no time is left to wait for Kafka
	closing  sync.Once
	closed   error
}

// Open listens. Requests are answered once Serve runs.
func Open(ctx context.Context, o Options) (*Gateway, error) {
	if err := Check(o.Listen, o.ListenGRPC, "", "", o.Access != nil); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.withDefaults()
	g := &Gateway{opt: o, log: o.Logger, everyone: access.Everyone(), ending: make(chan struct{}), over: make(chan struct{}),
		outlets: streamStates{of: map[string]*streamState{}}, window: window{free: o.Limits.Unacked}, patience: contextPool{while: o.Limits.Room}}
	g.rpcStreams = seats{what: "gRPC streams", most: o.Limits.Streams, own: o.Limits.OwnStreams, of: map[string]int{}}
	g.room = memoryLimit{limits: &g.opt.Limits, callers: map[string]int64{}}
	g.requests.New = func() any { return &request{buffer: make([]byte, 0, smallBody), post: newPost()} }
	if err := g.open(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// open listens last, so that an error leaves no open listener.
func (g *Gateway) open(ctx context.Context) (err error) {
	if g.opt.CertFile != "" || g.opt.KeyFile != "" {
		if g.certificate, err = openCertificate(g.opt.CertFile, g.opt.KeyFile); err != nil {
			return err
		}
	}
	if g.metrics, err = g.newMetrics(g.opt.Telemetry.Registry()); err != nil {
		return fmt.Errorf("register the gateway's metrics: %w", err)
	}
	if g.tails, err = newTails(&g.opt.Limits, g.opt.Telemetry.Registry()); err != nil {
		return fmt.Errorf("register the metrics of tails: %w", err)
	}
	if err = g.openLive(); err != nil {
		return fmt.Errorf("register the metrics of live connections: %w", err)
	}
	if err = g.openFresh(); err != nil {
		return fmt.Errorf("register the metrics of fresh models: %w", err)
	}
	g.openDesk()
	g.survey.look, g.survey.within = g.opt.Broker.Streams, g.opt.Limits.Look
	g.marks.look, g.marks.within = func(ctx context.Context) (*schedule.Book, error) { return schedule.Read(ctx, g.opt.Broker) }, g.opt.Limits.Look
	g.unrouted = g.metrics.of("")
	g.ofServer = trace.WithSpanKind(trace.SpanKindServer)
	g.tracer, g.shown = g.opt.Telemetry.Tracer(), g.opt.Telemetry.Metrics()
	g.openPages()
	g.routes = newRoutes(slices.Concat(g.routeTable(), g.pageTable()), g.metrics)
	var secured *tls.Config
	if g.certificate != nil {
		secured = g.certificate.config()
	}
	g.server = g.newServer(g.serveHTTP, secured)
	g.openInside()
	l, err := g.opt.Network.ListenTCP(ctx, g.opt.Listen)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w; give another address, or port 0 for a free one", err)
	}
	if err := g.openRPC(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	g.listener = g.server.Limit(l)
	return nil
}

// newServer returns a server with the gateway's limits. Hostile peers would fill the log with
// net/http's messages, so they have the level Debug.
func (g *Gateway) newServer(handler http.HandlerFunc, tlsConfig *tls.Config) *network.Server {
	l := &g.opt.Limits
	return network.NewServer(network.ServerOptions{
		Handler:     handler,
		Connections: l.Connections,
		Headers:     l.Headers + headerSlack,
		Unfinished:  l.Unfinished,
		ReadHeader:  l.ReadHeader,
		Read:        l.ReadHeader + l.BodyGrace,
		Write:       l.BodyGrace + l.answerTime(),
		Idle:        l.Idle,
		TLS:         tlsConfig,
		Refusal:     refusalAnswer(),
		Refused:     g.metrics.refused.connections.Inc,
		Errors:      slog.LevelDebug,
		Logger:      g.log,
	})
}

// Addr is the address that the gateway listens on.
func (g *Gateway) Addr() string { return g.listener.Addr().String() }

// Serve answers requests until Close. Their contexts derive from ctx.
func (g *Gateway) Serve(ctx context.Context) error {
	g.server.BaseContext = func(net.Listener) context.Context { return ctx }
	others := make(chan error, 2)
	go func() { others <- g.serveInside() }()
	go func() { others <- g.serveRPCs() }()
	if err := g.server.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", g.Addr(), errors.Join(err, g.closeInside(ctx), g.closeRPC(ctx), <-others, <-others))
	}
	return errors.Join(<-others, <-others)
}

// Close drains the gateway. Readiness fails at once, but requests are still answered for the drain
// delay, so that a load balancer can switch to another replica. Then no connection is accepted, and
// the requests under way get their answers. If Kafka does not acknowledge an event in time for
// ctx's deadline, the answer reports the missing acknowledgement, because a publisher without an
// answer would know less.
func (g *Gateway) Close(ctx context.Context) error {
	g.closing.Do(func() { g.closed = g.close(ctx) })
	return g.closed
}

func (g *Gateway) close(ctx context.Context) error {
	g.draining.Store(true)
	if late, ok := ctx.Deadline(); ok {
		left := time.Until(late)
		giveUp := time.AfterFunc(left-min(answerWithin, left/2), func() { close(g.over) })
		defer giveUp.Stop()
	}
	_ = retry.Sleep(ctx, g.opt.Limits.DrainDelay)
	close(g.ending)
	err := g.server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("wait for the running requests: %w", errors.Join(err, g.server.Close()))
	}
	if e := g.listener.Close(); !errors.Is(e, net.ErrClosed) { // Serve may never have run
		err = errors.Join(err, e)
	}
	return errors.Join(err, g.closeRPC(ctx), g.closeInside(ctx), g.live.feed.closeValue(ctx), g.desk.close(ctx))
}

// answerWithin is the part of Close's time that is reserved for answers. In it, no request waits
// for Kafka, but a request may wait for room for a second (Limits.Room). Then the answers are
// written. Net/http checks twice a second whether the connections are closed.
const answerWithin = 2 * time.Second

// isOver reports whether it is too late to send anything to Kafka.
func (g *Gateway) isOver() bool {
	select {
	case <-g.over:
		return true
	default:
		return false
	}
}

// agentRoutes is the prefix of all paths of agents.
const agentRoutes = "/agent/"

// openInside prepares the server for the agents of this process. It listens on loopback
// without TLS, and serves only paths that need the token of an attempt.
func (g *Gateway) openInside() {
	if g.opt.Inside == nil {
		return
	}
	g.inside = g.newServer(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, agentRoutes) {
			http.NotFound(w, r)
			return
		}
		g.serveHTTP(w, r)
	}, nil)
}

// serveInside answers the agents of this process until closeInside.
func (g *Gateway) serveInside() error {
	if g.inside == nil {
		return nil
	}
	if err := g.inside.Serve(g.opt.Inside); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (g *Gateway) closeInside(ctx context.Context) error {
	if g.inside == nil {
		return nil
	}
	if err := g.inside.Shutdown(ctx); err != nil {
		return errors.Join(err, g.inside.Close())
	}
	return nil
}

// answerHealth answers 200 while the process runs, even if a dependency is down.
func (g *Gateway) answerHealth(w http.ResponseWriter, _ *request) *api.Problem {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
	return nil
}

// answerReady answers with the state of everything that the process depends on. If tokens are
// required, only callers with the role read get the details, because the details name servers and
// files.
func (g *Gateway) answerReady(w http.ResponseWriter, r *request) *api.Problem {
	state := g.checkState()
	if !g.mayRead(r) {
		for i := range state.Checks {
			state.Checks[i].Detail = ""
		}
	}
	status := http.StatusOK
	if state.Status == api.Failed {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, state)
	return nil
}

func (g *Gateway) mayRead(r *request) bool {
	if g.opt.Access == nil {
		return true
	}
	caller, err := g.opt.Access.Caller(r.Context(), r.Header.Get("Authorization"))
	return err == nil && caller.Has(access.Read)
}

// checkState returns the state of the dependencies and of the gateway itself.
func (g *Gateway) checkState() api.Readiness {
	state := g.readiness.current(g.opt.Ready)
	state.Checks = append(state.Checks, g.checkDoor())
	if g.opt.Access != nil {
		state.Checks = append(state.Checks, g.opt.Access.Check())
	}
	for _, c := range state.Checks {
		if c.Status == api.Failed || c.Status == api.Degraded && state.Status == api.OK {
			state.Status = c.Status
		}
	}
	return state
}

func (g *Gateway) checkDoor() api.Check {
	switch {
	case g.draining.Load():
		return api.Check{Name: "gateway", Status: api.Failed, Detail: "draining"}
	case g.certificate != nil:
		return g.certificate.check(time.Now())
	}
	return api.Check{Name: "gateway", Status: api.OK, Detail: g.Addr()}
}

// readinessCache keeps the last result for a moment, because any caller may request it, and each
// check sends several requests to Kafka.
type readinessCache struct {
	mu    sync.Mutex
	until time.Time
	state api.Readiness
}

const (
	readyFor     = time.Second
	readyTimeout = 5 * time.Second
)

// current returns the last result if that result is recent; otherwise it checks again. Concurrent
// callers wait for the same check. The result belongs to the caller.
func (o *readinessCache) current(look func(context.Context) api.Readiness) api.Readiness {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Now().After(o.until) {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		o.state = look(ctx)
		o.until = time.Now().Add(readyFor)
	}
	state := o.state
	state.Checks = slices.Clone(state.Checks)
	return state
}
