package platform

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/kube"
	"tidemill.dev/internal/runs/warmpods"
)

// Options say what to open.
type Options struct {
	Config *config.Config // nil is the default
	// Embedded starts the laptop's servers; Addresses and Security then count
	// for nothing.
	Embedded  *embedded.Options
	Addresses config.Addresses
	Security  broker.Security
	// RedisSecurity counts for nothing where the servers are embedded.
	RedisSecurity RedisSecurity
	// OwnStreams creates the config's streams and alters those that differ. A
	// process that only publishes or reads leaves them alone.
	OwnStreams bool
	Reorder    bool // see broker.EnsureOptions
	// Telemetry starts metrics and traces, which a process that stays has and a
	// command that ends at once has not. Its Logger counts for nothing.
	Telemetry *telemetry.Options
	// Functions are those of ours that triggers may name, by name.
	Functions map[string]functions.Func
	// Scoring says what scorers and whoever else asks models may take.
	Scoring ScoringOptions
	// Runs opens the ledger and the object store; nil is a process without them.
	Runs *RunsOptions
	// Cluster is the Kubernetes that attempts run in and services are found in;
	// nil is none.
	Cluster *ClusterOptions
	// FunctionsAt is where the dispatcher finds train, promote and forget: Knative,
	// or a URL, which may have {function} in it. Empty is in the dispatcher's own process.
	FunctionsAt string
	// Secret is a file with the secret of attempts' tokens and of our functions,
	// which all processes share. Empty is one in the data folder of the runs.
	Secret string
	Logger *slog.Logger
}

// Platform is an open Kafka and, where there is an address for it, Redis.
type Platform struct {
	names     tidemill.Names
	addresses config.Addresses
	servers   *embedded.Servers // nil in a cluster
	broker    *broker.Broker
	kafka     string               // the id of its cluster
	redis     *redis.Client        // nil without an address
	telemetry *telemetry.Telemetry // nil unless it was asked for
	version   string
	log       *slog.Logger
	reorder   bool
	functions map[string]functions.Func
	called    string // where they are served

	functionsAt string
	secretFile  string
	cluster     *kube.Cluster  // nil outside one
	services    *services      // of the dispatcher; nil outside a cluster
	warm        *warmpods.Book // nil without Redis
	stops       stopOrder
	works       *works // nil without runs
	models      ScoringOptions
	announcer   *broker.Producer // of the commits' events
	trains      trains

	mu      sync.Mutex
	config  *config.Config
	parts   []part
	repeats *dedupe.Memory // of the gateway; nil without one
	scorers *scorers       // nil without any
	refused error          // why a later config does not apply

	scoringLock sync.Mutex
	scores      *scoring       // nil until somebody asks models
	library     *store.Store   // of a process that scores and has no runs
	registry    *ledger.Ledger // as well
}

// Open starts or reaches the servers and, if asked to, brings the streams to
// what the config wants. What it leaves open after an error is nothing.
func Open(ctx context.Context, o Options) (*Platform, error) {
	if o.Config == nil {
		o.Config = config.Default()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Platform{config: o.Config, addresses: o.Addresses, log: o.Logger, reorder: o.Reorder, functions: o.Functions, models: o.Scoring,
		functionsAt: o.FunctionsAt, secretFile: o.Secret}
	p.models.Dir = modelDir(o)
	if err := p.open(ctx, o); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// open leaves what it has opened to the stop order, also when it fails.
func (p *Platform) open(ctx context.Context, o Options) (err error) {
	if p.names, err = o.Config.Names(); err != nil {
		return err
	}
	if o.Telemetry != nil {
		if err := p.startTelemetry(ctx, *o.Telemetry); err != nil {
			return err
		}
	}
	if o.Embedded != nil {
		if err := p.startServers(ctx, *o.Embedded); err != nil {
			return err
		}
		o.Security, o.RedisSecurity = broker.Security{}, RedisSecurity{}
	}
	p.broker, err = broker.Open(ctx, broker.Options{Addr: p.addresses.Kafka, Names: p.names, Security: o.Security, Logger: p.log})
	if err != nil {
		return err
	}
	p.AtStop(clients, "Kafka's connections", func(context.Context) error { return p.broker.Close() })
	if p.kafka, err = p.broker.Cluster(ctx); err != nil {
		return err
	}
	if err := p.openRedis(o.RedisSecurity); err != nil {
		return err
	}
	p.openWarm()
	if o.Cluster != nil {
		err = p.openCluster(ctx, *o.Cluster)
	}
	if err == nil && o.OwnStreams {
		err = p.ensureStreams(ctx, o.Config)
	}
	if err != nil || o.Runs == nil {
		return err
	}
	return p.openRuns(ctx, *o.Runs)
}

func (p *Platform) startTelemetry(ctx context.Context, o telemetry.Options) (err error) {
	o.Logger, p.version = p.log, o.Version
	if p.telemetry, err = telemetry.Start(ctx, o); err != nil {
		return err
	}
	p.AtStop(traces, "the traces", p.telemetry.Close)
	return nil
}

func (p *Platform) startServers(ctx context.Context, o embedded.Options) error {
	servers, err := embedded.Start(ctx, o)
	if err != nil {
		return err
	}
	p.servers = servers
	p.addresses.Kafka, p.addresses.Redis = servers.Kafka(), servers.Redis()
	p.AtStop(lastly, "the embedded servers", func(context.Context) error { return servers.Close() })
	return nil
}

// openRedis connects to nothing yet: Redis is a cache, and a process that
// starts while it is away shall start.
func (p *Platform) openRedis(s RedisSecurity) error {
	if p.addresses.Redis == "" {
		return nil
	}
	o, err := redisOptions(p.addresses.Redis, s)
	if err != nil {
		return err
	}
	redis.SetLogger(silence{})
	p.redis = redis.NewClient(o)
	p.AtStop(clients, "Redis's connections", func(context.Context) error { return p.redis.Close() })
	return nil
}

// Broker is the open Kafka.
func (p *Platform) Broker() *broker.Broker { return p.broker }

// Redis is the cache, or nil where there is no address for one.
func (p *Platform) Redis() *redis.Client { return p.redis }

// Telemetry is what the process tells of itself, or nil unless it was asked for.
func (p *Platform) Telemetry() *telemetry.Telemetry { return p.telemetry }

// Names derive the install's names outside the process.
func (p *Platform) Names() tidemill.Names { return p.names }

// Addresses are where the servers are, the embedded ones included.
func (p *Platform) Addresses() config.Addresses { return p.addresses }

// Config is the one that applies now.
func (p *Platform) Config() *config.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}

// Producer opens a producer that the stop order flushes.
func (p *Platform) Producer(o broker.ProducerOptions) (*broker.Producer, error) {
	producer, err := p.broker.Producer(o)
	if err != nil {
		return nil, fmt.Errorf("open a producer: %w", err)
	}
	p.AtStop(Producers, "a producer", producer.Close)
	return producer, nil
}

// Consumer opens a consumer that the stop order drains.
func (p *Platform) Consumer(ctx context.Context, o broker.ConsumerOptions) (*broker.Consumer, error) {
	consumer, err := p.broker.Consumer(ctx, o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "a consumer", consumer.Close)
	return consumer, nil
}

// Embedded says whether the servers run in this process, on a laptop.
func (p *Platform) Embedded() bool { return p.servers != nil }

// part is something that runs on the platform and lives through changes of the
// config.
type part struct {
	name  string
	apply func(context.Context, *config.Config) error // nil if the config does not concern it
	check func(context.Context) api.Check             // nil if it is always ready
}

// add has a part told of each new config, and asked whether it is ready.
func (p *Platform) add(with part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts = append(p.parts, with)
}

func (p *Platform) allParts() []part {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts[:len(p.parts):len(p.parts)]
}

// applyToParts stops at the first part that cannot have the config; the watcher
// tries again, so a part must bear to be told the same config twice.
func (p *Platform) applyToParts(ctx context.Context, c *config.Config) error {
	for _, each := range p.allParts() {
		if each.apply == nil {
			continue
		}
		if err := each.apply(ctx, c); err != nil {
			return fmt.Errorf("apply the config to %s: %w", each.name, err)
		}
	}
	return nil
}

// checks are the probes of the parts that have one.
func (p *Platform) checks() []func(context.Context) api.Check {
	var all []func(context.Context) api.Check
	for _, each := range p.allParts() {
		if each.check != nil {
			all = append(all, each.check)
		}
	}
	return all
}

// RedisSecurity is how we speak to a Redis that does not let everybody in.
type RedisSecurity struct {
	TLS          bool
	CAFile       string // PEM; empty is the system's
	User         string // empty is the default user
	PasswordFile string // read again for every new connection when it has changed
}

// redisOptions leave out what go-redis asks a server for on every new
// connection and only some servers know.
func redisOptions(addresses string, s RedisSecurity) (*redis.Options, error) {
	first, _, _ := strings.Cut(addresses, ",")
	o := &redis.Options{
		Addr:                     first,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if err := s.dress(o); err != nil {
		return nil, fmt.Errorf("speak to Redis at %s: %w", first, err)
	}
	return o, nil
}

func (s RedisSecurity) dress(o *redis.Options) (err error) {
	if s.CAFile != "" && !s.TLS {
		return errors.New("--redis-ca says whom to trust, and without --redis-tls nobody is asked: give both")
	}
	if s.User != "" && s.PasswordFile == "" {
		return errors.New("--redis-user has no password: give --redis-password-file")
	}
	if s.TLS {
		if o.TLSConfig, err = s.tls(o.Addr); err != nil {
			return err
		}
	}
	if s.PasswordFile == "" {
		return nil
	}
	password, err := config.OpenSecret(s.PasswordFile)
	if err != nil {
		return fmt.Errorf("read its password: %w", err)
	}
	o.CredentialsProviderContext = func(context.Context) (string, string, error) {
		now, err := password.Get() // what was there last, where it cannot be read now
		if err != nil && now.IsZero() {
			return "", "", err
		}
		return s.User, now.Reveal(), nil
	}
	return nil
}

func (s RedisSecurity) tls(addr string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if s.CAFile == "" {
		return c, nil
	}
	text, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read whom to trust: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read whom to trust: %s holds no certificate in PEM", s.CAFile)
	}
	return c, nil
}

// silence keeps go-redis from writing to standard error, past every logger: what
// it says there it also returns as errors.
type silence struct{}

// Printf says nothing.
func (silence) Printf(context.Context, string, ...any) {}
