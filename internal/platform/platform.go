package platform

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/network"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/kube"
	"tidemill.dev/internal/runs/warmpods"
)

// Options configure a Platform.
type Options struct {
	Config *config.Config // if nil, the default config
	// Embedded starts the laptop's servers. Addresses and Security are ignored then. With a data folder
	// the servers ask for the passwords in it; see EmbeddedSecurity.
	Embedded  *embedded.Options
	Addresses config.Addresses
	Security  broker.Security
	// RedisSecurity is ignored if the servers are embedded.
	RedisSecurity RedisSecurity
	// OwnStreams creates the config's streams and alters those that differ. It is false in a
	// process that only publishes or reads.
	OwnStreams bool
	Reorder    bool // whether keys may move to other partitions; see broker.EnsureOptions
	// Telemetry starts metrics and traces. Long-running processes set it; commands that end at once
	// do not. Its Logger is ignored.
	Telemetry *telemetry.Options
	// Functions are our own functions that triggers may name, by name.
	Functions map[string]functions.Func
	// Scoring limits the resources of models in this process.
	Scoring ScoringOptions
	// Runs opens the ledger and the object store, unless nil.
	Runs *RunsOptions
	// Cluster is the Kubernetes cluster for attempts and services; nil for none.
	Cluster *ClusterOptions
	// FunctionsAt is where the dispatcher finds train, promote and forget: Knative, or a URL, which
	// may contain {function}. If empty, they run in the dispatcher's own process.
	FunctionsAt string
	// Secret is a file with the secret for attempts' tokens and our functions, which all processes
	// share. If empty, it is a file in the data folder of the runs.
	Secret string
	// Network is the network of all connections, except those to an identity provider, a trace collector
	// and Kubernetes.
	Network network.Network
	// Skew is how much older the config of a process may be than that of another, without embedded
	// servers; 0 means what Kubernetes may need.
	Skew time.Duration
	// Layout is the layout of the ledger's data in Redis; empty for that of this version. Only simulations of
	// upgrades set it.
	Layout string
	Logger *slog.Logger
}

// Platform holds the connections and components of a process.
type Platform struct {
	names     tidemill.Names
	addresses config.Addresses
	network   network.Network
	servers   *embedded.Servers // embedded servers; nil in a cluster
	broker    *broker.Broker
	kafka     string               // id of the Kafka cluster
	redis     *redis.Client        // client of Redis; nil without an address
	telemetry *telemetry.Telemetry // nil unless Options.Telemetry is set
	version   string
	log       *slog.Logger
	reorder   bool
	functions map[string]functions.Func
	called    string // address at which the functions are served on loopback

	calledToken string // token that these functions ask for

	functionsAt string
	secretFile  string
	skew        time.Duration   // how much older the config of this process may be than that of another
	layout      string          // Options.Layout
	cluster     *kube.Cluster   // nil outside a cluster
	services    *serviceWatcher // Knative Services for the dispatcher; nil outside a cluster
	warm        *warmpods.Book  // nil without Redis
	stops       stopOrder
	works       *runServices // nil without runs
	models      ScoringOptions
	announcer   *broker.Producer // producer for the events of commits
	trains      trainFunctions

	applying retry.Mutex // held while a config is applied to the parts

	mu      sync.Mutex
	config  *config.Config
	parts   []component
	repeats *dedupe.Memory // memory of the gateway; nil without a gateway
	scorers *scorerSet     // nil if Scorers was not called
	refused error          // reason why the newest config is not in force

	scoringLock retry.Mutex
	scores      *scoringModels // nil until the first use of models
	library     *store.Store   // store of a process that scores and has no runs
	registry    *ledger.Ledger // ledger of such a process
}

// Open starts the servers or connects to them, and makes the streams match the config if OwnStreams
// is set. After an error it leaves nothing open.
func Open(ctx context.Context, o Options) (*Platform, error) {
	if o.Config == nil {
		o.Config = config.Default()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Platform{config: o.Config, addresses: o.Addresses, network: o.Network, log: o.Logger, reorder: o.Reorder, functions: o.Functions, models: o.Scoring,
		functionsAt: o.FunctionsAt, secretFile: o.Secret, layout: o.Layout}
	p.models.Dir = modelDir(o)
	if o.Embedded == nil {
		p.skew = cmp.Or(o.Skew, skewInCluster)
	}
	if err := p.open(ctx, o); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// open adds everything that it opens to the stop order, even if it fails later.
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
		if p.servers.Dir() != "" {
			o.Security, o.RedisSecurity = EmbeddedSecurity(p.servers.Dir())
		}
	}
	p.broker, err = broker.Open(ctx, broker.Options{Addr: p.addresses.Kafka, Names: p.names, Security: o.Security, Network: p.network, Logger: p.log})
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
	o.Network, o.Passwords = p.network, o.Dir != ""
	servers, err := embedded.Start(ctx, o)
	if err != nil {
		return err
	}
	p.servers = servers
	p.addresses.Kafka, p.addresses.Redis = servers.Kafka(), servers.Redis()
	p.AtStop(lastly, "the embedded servers", func(context.Context) error { return servers.Close() })
	return nil
}

// EmbeddedSecurity returns the credentials for the embedded servers of a data folder.
func EmbeddedSecurity(dir string) (broker.Security, RedisSecurity) {
	return broker.Security{Mechanism: embedded.Mechanism, User: embedded.UserName, PasswordFile: embedded.KafkaPasswordFile(dir)},
		RedisSecurity{PasswordFile: embedded.RedisPasswordFile(dir)}
}

// openRedis opens no connection yet, because a process must be able to start while Redis is down.
func (p *Platform) openRedis(s RedisSecurity) error {
	if p.addresses.Redis == "" {
		return nil
	}
	o, err := redisOptions(p.addresses.Redis, s)
	if err != nil {
		return err
	}
	o.Dialer = p.network.Dial // nil is go-redis's own
	redis.SetLogger(silentLogger{})
	p.redis = redis.NewClient(o)
	p.AtStop(clients, "Redis's connections", func(context.Context) error { return p.redis.Close() })
	return nil
}

// Broker returns the connection to Kafka.
func (p *Platform) Broker() *broker.Broker { return p.broker }

// Redis returns the client of Redis; nil without an address.
func (p *Platform) Redis() *redis.Client { return p.redis }

// Telemetry returns the metrics and traces; nil unless Options.Telemetry is set.
func (p *Platform) Telemetry() *telemetry.Telemetry { return p.telemetry }

// Names returns the names of the install.
func (p *Platform) Names() tidemill.Names { return p.names }

// Addresses returns the addresses of the servers, embedded ones included.
func (p *Platform) Addresses() config.Addresses { return p.addresses }

// Config returns the config in force.
func (p *Platform) Config() *config.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}

// Producer opens a producer. The stop order flushes it.
func (p *Platform) Producer(o broker.ProducerOptions) (*broker.Producer, error) {
	producer, err := p.broker.Producer(o)
	if err != nil {
		return nil, fmt.Errorf("open a producer: %w", err)
	}
	p.AtStop(Producers, "a producer", producer.Close)
	return producer, nil
}

// Consumer opens a consumer. The stop order drains it.
func (p *Platform) Consumer(ctx context.Context, o broker.ConsumerOptions) (*broker.Consumer, error) {
	consumer, err := p.broker.Consumer(ctx, o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "a consumer", consumer.Close)
	return consumer, nil
}

// Embedded reports whether the servers run in this process, as on a laptop.
func (p *Platform) Embedded() bool { return p.servers != nil }

// component is a part of the process that keeps running when the config changes.
type component struct {
	name  string
	has   *config.Config                              // config that the component was opened with; nil for none
	apply func(context.Context, *config.Config) error // nil if the component does not depend on the config
	check func(context.Context) api.Check             // nil if the component is always ready
}

// addComponent registers a component for new configs and readiness checks. The config may have changed since the component
// began to open, so it gets the present one.
func (p *Platform) addComponent(ctx context.Context, with component) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	p.parts = append(p.parts, with)
	now := p.config
	p.mu.Unlock()
	if with.apply == nil || with.has == now {
		return nil
	}
	if err := with.apply(ctx, now); err != nil {
		return fmt.Errorf("apply the config to %s: %w", with.name, err)
	}
	return nil
}

func (p *Platform) allParts() []component {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts[:len(p.parts):len(p.parts)]
}

// applyToParts puts a config in force. It stops at the first component that refuses the config. The watcher tries again,
// so a component must accept the same config twice.
func (p *Platform) applyToParts(ctx context.Context, c *config.Config) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	for _, each := range p.allParts() {
		if each.apply == nil {
			continue
		}
		if err := each.apply(ctx, c); err != nil {
			return fmt.Errorf("apply the config to %s: %w", each.name, err)
		}
	}
	p.mu.Lock()
	p.config = c
	p.mu.Unlock()
	return nil
}

// readinessChecks returns the readiness checks of the components.
func (p *Platform) readinessChecks() []func(context.Context) api.Check {
	var all []func(context.Context) api.Check
	for _, each := range p.allParts() {
		if each.check != nil {
			all = append(all, each.check)
		}
	}
	return all
}

// RedisSecurity holds TLS and credentials for Redis.
type RedisSecurity struct {
	TLS          bool
	CAFile       string // PEM file; if empty, the system's authorities
	User         string // if empty, the default user
	PasswordFile string // file that is read again for new connections after a change
}

// redisOptions switches off the commands that go-redis sends on each new connection, because only
// some servers know them.
func redisOptions(address string, s RedisSecurity) (*redis.Options, error) {
	o := &redis.Options{
		Addr:                     address,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if err := s.applyTo(o); err != nil {
		return nil, fmt.Errorf("speak to Redis at %s: %w", address, err)
	}
	return o, nil
}

func (s RedisSecurity) applyTo(o *redis.Options) (err error) {
	if s.CAFile != "" && !s.TLS {
		return errors.New("--redis-ca has no effect without --redis-tls: give both")
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
		now, err := password.Get() // the last password if the file cannot be read now
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

// silentLogger keeps go-redis from writing to standard error instead of our logger. It returns the
// same errors to its callers.
type silentLogger struct{}

// Printf does nothing.
func (silentLogger) Printf(context.Context, string, ...any) {}
