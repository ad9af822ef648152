package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/e2e/sim/clock"
	"tidemill.dev/e2e/sim/vnet"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

const (
	serversHost     = "servers"
	subscribersHost = "subscribers"
	agentsHost      = "agents"
	publishersHost  = "publishers"
	chaosHost       = "chaos"

	kafkaPort, redisPort, gatewayPort, subscriberPort = 19092, 16379, 8080, 9000
)

// world is an install of Tidemill, its surroundings, and the plan of its faults.
//
// The goroutine of the test begins everything, carries out the schedule, and judges. Each process
// has a goroutine that starts its next life. Publishers, subscribers and agents write what they did
// into their own records, which the oracle reads after their end.
type world struct {
	t       *testing.T
	p       *plan
	net     *vnet.Net
	history *history
	dir     string
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	reaping sync.WaitGroup

	servers   *embedded.Servers // of a cluster
	procs     []*process
	chaos     *vnet.Host
	sub       *subscribers
	agents    *agents
	posts     *publishers
	bucket    *bucket // store of a cluster; nil if it is a folder
	conf      atomic.Pointer[config.Config]
	changes   []time.Time          // time of each generation of the config
	again     map[string]time.Time // when a stream was there again, after it had been deleted
	slept     time.Time            // when processes stopped for weeks
	lastings  sync.WaitGroup       // faults that will end
	upgrading chan struct{}        // full during an upgrade
	stalls    atomic.Pointer[[]stall]
	carries   sync.Map // stream of each connection with Kafka, by its name
}

func newWorld(t *testing.T, p *plan, dir string) *world {
	w := &world{t: t, p: p, dir: dir, history: newHistory(), again: map[string]time.Time{}, upgrading: make(chan struct{}, 1)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.net = vnet.New(vnet.Options{Fault: w.message, Trace: w.history.message})
	w.chaos = w.net.Host(chaosHost)
	return w
}

// begin starts the surroundings and the processes, and waits until events can be published.
func (w *world) begin() {
	w.sub = newSubscribers(w)
	w.agents = newAgents(w)
	w.posts = newPublishers(w)
	if w.p.bucket {
		w.bucket = newBucket(w)
	}
	w.changeConfig()
	if err := os.WriteFile(filepath.Join(w.dir, "secret"), []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if !w.p.up {
		w.startServers()
	}
	if f, _ := w.p.weeks(); f.other == "awake" {
		if err := w.forgetGroups(shortRetention); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, name := range w.p.hosts() {
		one := &process{w: w, name: name, role: strings.TrimRight(name, "0123456789")}
		w.procs = append(w.procs, one)
		one.host.Store(w.net.Host(name))
		entered := make(chan struct{})
		w.running.Go(func() {
			one.clock = clock.Enter(name)
			close(entered)
			one.live()
		})
		<-entered
	}
	w.posts.waitUntilServed()
	if isOn("clock") && !clock.IsUsed() {
		w.t.Fatal("a process has no clock that can jump: run make sim CLOCKS=1")
	}
}

// startServers keeps Kafka's data in a folder only if the servers will be restarted.
func (w *world) startServers() {
	host, dir := w.net.Host(serversHost), ""
	if slices.ContainsFunc(w.p.faults, func(f fault) bool { return f.kind == "servers" }) {
		dir = filepath.Join(w.dir, "kafka")
	}
	var err error
	w.servers, err = embedded.Start(w.ctx, embedded.Options{Network: host.Network(), Public: true, Dir: dir,
		Kafka: at(host, kafkaPort), Redis: at(host, redisPort), Logger: w.logger(serversHost)})
	if err != nil {
		w.t.Fatal(err)
	}
}

func at(h *vnet.Host, port int) string { return net.JoinHostPort(h.IP(), fmt.Sprint(port)) }

func (w *world) logger(host string) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{w.history, host}, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func (w *world) changeConfig() {
	c, err := config.Parse("sim.yaml", []byte(w.p.config(at(w.sub.host, subscriberPort), len(w.changes))))
	if err != nil {
		w.t.Fatal(err)
	}
	w.changes = append(w.changes, time.Now())
	w.conf.Store(c)
}

// process is a process of Tidemill, which a supervisor starts again after each death.
type process struct {
	w          *world
	name, role string
	life       int
	host       atomic.Pointer[vnet.Host] // of the present life
	ready      atomic.Bool
	hold       atomic.Bool                        // the next life waits
	layout     atomic.Int64                       // layout of the ledger in the next life; 0 is that of this version
	dies       atomic.Int64                       // the next life dies after so many messages; 0 is none
	ask        atomic.Pointer[context.CancelFunc] // stops the present life in order
	clock      *clock.Clock
}

// live runs one life after another until the world ends.
func (o *process) live() {
	pause := random(o.w.p.seed, o.name)
	for {
		o.life++
		began := time.Now()
		o.oneLife(o.host.Load())
		if o.w.ctx.Err() != nil {
			return
		}
		o.w.history.say("%s: life %d ended after %v", o.name, o.life, time.Since(began))
		sleep(o.w.ctx, time.Duration(200+pause.IntN(5000))*time.Millisecond)
		for o.hold.Load() && o.w.ctx.Err() == nil {
			sleep(o.w.ctx, time.Minute)
		}
		next := o.w.net.Host(o.name)
		if n := o.dies.Swap(0); n > 0 {
			next.KillAfter(int(n))
		}
		o.host.Store(next)
	}
}

// oneLife returns after the host's death, after the world's end, and after a failed start.
func (o *process) oneLife(h *vnet.Host) {
	ctx, cancel := context.WithCancelCause(o.w.ctx)
	defer cancel(nil)
	asked, stop := context.WithCancel(ctx)
	defer stop()
	o.ask.Store(&stop)
	go func() {
		select {
		case <-h.Killed():
			cancel(errors.New("killed"))
		case <-ctx.Done():
		}
	}()
	p, err := platform.Open(ctx, o.options(h))
	if err != nil {
		o.w.history.say("%s: start: %v", o.name, err)
		h.Kill()
		return
	}
	var closing sync.WaitGroup
	if err := o.serve(ctx, p, &closing); err != nil && ctx.Err() == nil {
		o.w.history.say("%s: start: %v", o.name, err)
	} else {
		o.ready.Store(true)
		<-asked.Done()
		o.ready.Store(false)
	}
	inOrder := ctx.Err() == nil || o.w.ctx.Err() != nil
	cancel(nil)
	o.close(h, p, &closing, inOrder)
}

// close ends a platform, in order or as a kill does. The folder of an up
// must be free before the next life. Other processes end beside their next life, as a zombie does.
func (o *process) close(h *vnet.Host, p *platform.Platform, closing *sync.WaitGroup, inOrder bool) {
	if inOrder {
		ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			o.w.history.say("%s: close: %v", o.name, err)
		}
		closing.Wait()
		h.Kill()
		return
	}
	h.Kill()
	gone, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("killed"))
	o.w.reaping.Go(func() {
		_ = p.Close(gone) // a killed process reports nothing
		closing.Wait()
	})
	if o.w.p.up {
		o.w.reaping.Wait()
	}
}

// restart stops the present life in order.
func (o *process) restart() {
	if stop := o.ask.Load(); stop != nil {
		(*stop)()
	}
}

func (o *process) options(h *vnet.Host) platform.Options {
	log := o.w.logger(o.name)
	o.w.history.say("%s: begins with config %s", o.name, o.w.conf.Load().Hash())
	opt := platform.Options{Config: o.w.conf.Load(), OwnStreams: true, Network: h.Network(), Logger: log,
		Telemetry: &telemetry.Options{Getenv: func(string) string { return "" }},
		Secret:    filepath.Join(o.w.dir, "secret"), Scoring: platform.ScoringOptions{Dir: filepath.Join(o.w.dir, o.name)}}
	if n := o.layout.Load(); n > 0 {
		opt.Layout = fmt.Sprint("sim-", n)
	}
	if o.w.p.up {
		opt.Embedded = &embedded.Options{Dir: filepath.Join(o.w.dir, "data"), Kafka: fmt.Sprint("127.0.0.1:", kafkaPort), Redis: fmt.Sprint("127.0.0.1:", redisPort), Logger: log}
		opt.Runs = &platform.RunsOptions{Data: filepath.Join(o.w.dir, "data"), Launcher: o.w.agents.launcher(h)}
		return opt
	}
	if o.w.p.judging.rollout != "" {
		opt.Skew = configSkew
	}
	servers := o.w.servers
	opt.Addresses = config.Addresses{Kafka: servers.Kafka(), Redis: servers.Redis(), Store: filepath.Join(o.w.dir, "store")}
	if o.w.bucket != nil {
		opt.Addresses.Store = o.w.bucket.url()
	}
	if o.role != "scorer" && o.role != "observer" {
		opt.Runs = &platform.RunsOptions{Launcher: o.w.agents.launcher(nil)}
	}
	return opt
}

// configEvery is how often a process looks at its config. configSkew is the skew of a cluster with rollouts; a fault lasts
// less time there.
const configEvery, configSkew = 500 * time.Millisecond, 5 * time.Second

// serve opens the role.
func (o *process) serve(ctx context.Context, p *platform.Platform, closing *sync.WaitGroup) error {
	closing.Go(func() {
		p.Watch(ctx, func() (*config.Config, error) { return o.w.conf.Load(), nil }, configEvery)
	})
	if o.role == "dispatcher" || o.role == "up" {
		d, err := p.Dispatcher(ctx)
		if err != nil {
			return err
		}
		o.w.history.say("%s: %s%s", o.name, servesTriggers, p.Config().Hash())
		if err := d.Ready(ctx); err != nil {
			return err
		}
	}
	if o.role == "controller" || o.role == "up" {
		if _, err := p.Controller(ctx); err != nil {
			return err
		}
	}
	if o.role == "scorer" || o.role == "up" {
		if err := p.Scorers(ctx, ""); err != nil {
			return err
		}
	}
	if o.role == "observer" || o.role == "up" {
		if err := p.Observer(ctx); err != nil {
			return err
		}
	}
	if o.role != "gateway" && o.role != "up" {
		return nil
	}
	g, err := p.Gateway(ctx, platform.GatewayOptions{Listen: fmt.Sprint("127.0.0.1:", gatewayPort)})
	if err != nil {
		return err
	}
	closing.Go(func() {
		if err := g.Serve(ctx); err != nil {
			o.w.history.say("%s: serve: %v", o.name, err)
		}
	})
	return nil
}

// doors returns the processes with a gateway.
func (w *world) doors() (all []*process) {
	for _, o := range w.procs {
		if o.role == "gateway" || o.role == "up" {
			all = append(all, o)
		}
	}
	return all
}

// client returns an HTTP client of a host.
func (w *world) client(from *vnet.Host, to *process) *http.Client {
	return &http.Client{Timeout: 40 * time.Second, Transport: transport(from, func() *process { return to })}
}

// transport sends requests to the gateway of a process, whichever address they name, and to the bucket if a gateway sends
// them there.
func transport(from *vnet.Host, next func() *process) *http.Transport {
	return &http.Transport{IdleConnTimeout: time.Minute, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if !strings.HasSuffix(address, fmt.Sprint(":", bucketPort)) {
			address = at(next().host.Load(), gatewayPort)
		}
		return from.Dial(ctx, network, address)
	}}
}

const gatewayURL = "http://127.0.0.1:8080"

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
