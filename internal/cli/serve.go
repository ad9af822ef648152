package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/ops/gctune"
	"tidemill.dev/internal/platform"
)

const (
	gatewayRole    = "gateway"
	dispatcherRole = "dispatcher"
	controllerRole = "controller"
	scorerRole     = "scorer"
	functionRole   = "function"
	observerRole   = "observer"
)

// roles returns the roles of serve.
func roles() []string {
	return []string{gatewayRole, dispatcherRole, controllerRole, scorerRole, functionRole, observerRole}
}

func serveCommand() command.Command {
	return command.Command{
		Name:    "serve",
		Args:    "ROLE [NAME]",
		Summary: "run one part of Tidemill against a Kafka and a Redis of yours",
		About: `The role gateway is the HTTP server: other systems publish events and read streams
with it. Any number of replicas may run. It creates the streams of its config, applies
the file again when it changes, and is ready (/readyz) while Kafka is. Without Redis it
does not recognise repeats. With --redis and --store it also serves data, runs and
models. Agents of runs need --run-secret.

Without --access every caller has all rights, so it listens on loopback only.

The role dispatcher sends events to the subscribers of the triggers. Any number of
replicas may run and share the work. If one dies, the others replace it within seconds.
Recipes need --functions, the address of train, promote and forget.

The role controller sends the ticks of the schedules. Any number may run: one is
active, and another takes over after its death. With --redis and --store it manages
runs and models. With --kubernetes it launches runs as Jobs, reports the ends of their
pods, and scales scorers.

The role function runs one of Tidemill's functions: tidemill serve function train.
With --kubernetes train launches its runs at once. It listens at --listen, else at
the port in $PORT, and answers callers with the same --run-secret.

The role scorer scores the events of one stream, with the scorer NAME of the config:
tidemill serve scorer intents. Any number of replicas may run and share the
partitions. It needs --kafka, --redis and --store, because it reads models from the
object store. A gateway needs the same to answer tidemill score.

The role observer joins the answers of scorers with their labels, watches models for drift, and
runs trials. Any number may run: one works for a scorer, and another takes over after its death.
Waiting answers are kept in the folder of --model-cache, so that a restart is quick. Drift and trials
need --store.

Roles other than the gateway only answer /healthz, /readyz and /metrics at --listen.`,
		Examples: []command.Example{
			{"tidemill serve gateway -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:8080 --access access.yaml", "a replica"},
			{"tidemill serve gateway --kafka localhost:9092", "only the gateway, on this machine"},
			{"tidemill serve dispatcher -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "a replica of the dispatcher"},
			{"tidemill serve controller -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "one of several controllers"},
			{"tidemill serve controller -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --kubernetes --agents-at http://tidemill:8080 --image registry.example/tidemill:1 --run-secret run-secret", "a controller that launches runs, in a pod"},
			{"tidemill serve function train -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --run-secret run-secret", "the function that requests runs"},
			{"tidemill serve scorer intents -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --model-cache /var/cache/tidemill", "a replica of a scorer"},
			{"tidemill serve observer -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --model-cache /var/cache/tidemill", "one of several observers"},
		},
		Values: func(args []string) []string {
			if len(args) == 1 && args[0] == functionRole {
				return platform.Functions()
			}
			return nil
		},
		Make: func() command.Program { return &serving{door: connect.DoorFlags{Drain: defaultDrain}} },
	}
}

// defaultDrain gives load balancers in front of a gateway time to notice its stop.
const defaultDrain = 5 * time.Second

// serving is a call of serve.
type serving struct {
	connect.Connection
	door    connect.DoorFlags
	scoring scoringFlags
	cluster clusterFlags
	reorder bool
	role    string
	name    string // name of the scorer or the function
	set     *command.FlagSet
}

func (r *serving) Flags(f *command.FlagSet) {
	r.set = f
	r.door.Flags(f)
	f.Yes(&r.reorder, "reorder", "allow new partitions of streams, although keys then move between them")
	r.scoring.Flags(f)
	r.cluster.Flags(f)
	r.Connection.Flags(f)
}

func (r *serving) Accept(positional []string) (err error) {
	if err = r.acceptRole(positional); err != nil {
		return err
	}
	if err := r.scoring.accept(); err != nil {
		return err
	}
	if err := r.cluster.accept(); err != nil {
		return err
	}
	if r.Place, err = r.cluster.place(); err != nil {
		return err
	}
	if r.door.Listen == "" && r.role != functionRole {
		r.door.Listen = r.listens()
	}
	if r.role != gatewayRole {
		return r.acceptNoDoor()
	}
	return r.door.Accept()
}

func (r *serving) acceptRole(positional []string) error {
	r.role = positional[0]
	if !slices.Contains(roles(), r.role) {
		return command.Usagef("there is no role %q:%s the roles: %s", r.role, command.DidYouMean(r.role, roles()), strings.Join(roles(), ", "))
	}
	switch named := r.role == scorerRole || r.role == functionRole; {
	case !named && len(positional) == 1:
		return nil
	case !named:
		return command.Usagef("%q is one argument too many: the role %s has no name", positional[1], r.role)
	case len(positional) == 1 && r.role == functionRole:
		return command.Usagef("NAME is missing; name the function: %s", strings.Join(platform.Functions(), ", "))
	case len(positional) == 1:
		return command.Usagef("NAME is missing; name the scorer of the config, as in tidemill serve scorer intents")
	}
	r.name = positional[1]
	if r.role == functionRole && !slices.Contains(platform.Functions(), r.name) {
		return command.Usagef("there is no function %q:%s the functions: %s", r.name, command.DidYouMean(r.name, platform.Functions()), strings.Join(platform.Functions(), ", "))
	}
	return nil
}

// acceptNoDoor refuses flags that only a gateway uses.
func (r *serving) acceptNoDoor() error {
	for _, long := range []string{"listen-grpc", "access", "tls-cert", "tls-key", "max-event", "drain-delay"} {
		if r.set.Changed(long) {
			return command.Usagef("--%s is for the role gateway: a %s accepts no events", long, r.role)
		}
	}
	if r.door.Listen == "" {
		return nil // the variable PORT has the port of a function
	}
	return connect.CheckListen("listen", r.door.Listen)
}

// listens returns the default HTTP address of a role. Only the gateway has a fixed port, because
// only it has external callers.
func (r *serving) listens() string {
	if r.role == gatewayRole {
		return connect.ListenAt
	}
	return "127.0.0.1:0"
}

func (r *serving) Run(ctx context.Context, s *command.Session, _ []string) error {
	addresses, err := config.ReadAddresses(r.Addresses, s.Getenv)
	if err != nil {
		return err
	}
	if addresses.Kafka == "" {
		return command.Usagef("Kafka's address is missing: give --kafka or set TIDEMILL_KAFKA; tidemill up starts an embedded Kafka")
	}
	log, err := r.Logger(s.Stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if r.role == gatewayRole {
		r.door.WarnOfPlainHTTP(log)
		err = r.door.Check()
	}
	if err != nil {
		return err
	}
	if err := r.needs(addresses); err != nil {
		return err
	}
	if r.role == functionRole && r.door.Listen == "" {
		r.door.Listen = portOf(s.Getenv)
	}
	if addresses.Redis == "" {
		log.Warn("serve: no Redis is given (--redis); " + missesRedis(r.role))
	}
	source := r.Source()
	conf, err := source.Load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	began := time.Now()
	r.UseLaptop(addresses)
	o := r.options(addresses)
	o.Config, o.Telemetry, o.Logger = conf, connect.TelemetryOf(s, "tidemill-"+r.role), log
	p, err := platform.Open(ctx, o)
	if err != nil {
		return unlessInterrupted(ctx, log, fmt.Errorf("start: %w", err))
	}
	return stay(ctx, p, log, source, r.block(), "serve: stopping", func(ctx context.Context) error {
		return unlessInterrupted(ctx, log, r.open(ctx, s, p, log, source, began))
	})
}

// missesRedis says what a role cannot do without Redis.
func missesRedis(role string) string {
	switch role {
	case dispatcherRole:
		return "gateways cannot show the state of the triggers"
	case controllerRole:
		return "several controllers compete for the schedules, but no tick is lost or sent twice"
	case observerRole:
		return "several observers compete for the scorers, but no outcome is lost or written twice"
	}
	return "repeats are not recognised and are stored again"
}

// unlessInterrupted drops the error of a start that was interrupted. That error would blame the
// server that the start waited for, often without mention of the context.
func unlessInterrupted(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	log.Info("serve: interrupted during the start")
	log.Debug("serve: start interrupted", "reason", err)
	return nil
}

// open opens the role and serves it until the context ends.
func (r *serving) open(ctx context.Context, s *command.Session, p *platform.Platform, log *slog.Logger, source *connect.ConfigSource, began time.Time) error {
	if r.role != gatewayRole {
		return r.work(ctx, s, p, log, source, began)
	}
	g, err := r.door.Open(ctx, p)
	if err != nil {
		return err
	}
	r.tell(s, p, source, r.door.URL(g), connect.GRPCLine(g), began)
	return connect.Serve(ctx, g)
}

// portOf returns the address of a function: the port from Knative, else a free one on loopback.
func portOf(getenv func(string) string) string {
	if port := strings.TrimSpace(getenv("PORT")); port != "" {
		return ":" + port
	}
	return "127.0.0.1:0"
}

// work runs a role other than gateway. The probes come first, so that they can report a start that
// waits.
func (r *serving) work(ctx context.Context, s *command.Session, p *platform.Platform, log *slog.Logger, source *connect.ConfigSource, began time.Time) (err error) {
	at := ""
	if r.role == functionRole {
		at, err = p.Function(ctx, r.name, r.door.Listen)
	} else {
		at, err = p.Probes(ctx, r.door.Listen)
	}
	if err != nil {
		return err
	}
	switch r.role {
	case dispatcherRole:
		err = beginTriggers(ctx, p, log)
	case scorerRole:
		err = p.Scorers(ctx, r.name)
	case controllerRole:
		_, err = p.Controller(ctx)
	case observerRole:
		err = p.Observer(ctx)
	}
	if err != nil {
		return err
	}
	r.tell(s, p, source, "http://"+at, "", began)
	<-ctx.Done()
	return nil
}

func (r *serving) tell(s *command.Session, p *platform.Platform, source *connect.ConfigSource, url, grpc string, began time.Time) {
	a, c := p.Addresses(), p.Config()
	fmt.Fprintf(s.Stdout, "tidemill's %s is up after %s, with %d streams\n", r.role, time.Since(began).Round(time.Millisecond), len(c.Streams))
	fmt.Fprintf(s.Stdout, "  http    %s\n%s  kafka   %s\n  redis   %s\n  config  %s\n", url, grpc, a.Kafka, cmp.Or(a.Redis, "none"), source.Shown())
}

// doorBlock is gctune's block of memory for a gateway, because net/http makes much garbage.
const doorBlock = 32 << 20

// block returns the size of gctune's block for the role; negative means no gctune. A scorer's
// models tune the heap themselves: see infer.Options.Collect.
func (r *serving) block() int {
	switch r.role {
	case gatewayRole:
		return doorBlock
	case scorerRole:
		return -1
	}
	return 0
}

// stay applies changes of the config while do serves. After that it logs that it is stopping, and closes the
// platform in the stop order.
func stay(ctx context.Context, p *platform.Platform, log *slog.Logger, source *connect.ConfigSource, block int, stopping string, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
		log.Info(stopping)
		err = errors.Join(err, connect.ClosePlatform(ctx, p))
	}()
	watching.Go(func() { p.Watch(ctx, source.Load, configEvery) })
	if block >= 0 {
		watching.Go(func() { gctune.Keep(ctx, block) })
	}
	return do(ctx)
}
