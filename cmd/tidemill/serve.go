package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/heap"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/telemetry"
)

const (
	gatewayRole    = "gateway"
	dispatcherRole = "dispatcher"
	keeperRole     = "keeper"
	scorerRole     = "scorer"
	functionRole   = "function"
)

// roles are what serve can be.
func roles() []string {
	return []string{gatewayRole, dispatcherRole, keeperRole, scorerRole, functionRole}
}

func serveCommand() command {
	return command{
		name:    "serve",
		args:    "ROLE [NAME]",
		summary: "run one part of Tidemill against a Kafka and a Redis of yours",
		about: `The role gateway is the HTTP door: other systems publish events through it, and
look at streams. Any number of replicas may run. It creates the streams of its
config, applies the file again whenever it changes, and is ready (/readyz) while
Kafka is. Without Redis repeats are not recognised. With --redis and --store it is
the whole door: data, runs, models. Agents of runs get in with --run-secret.

Without --access everybody may everything, so it listens on loopback alone.

The role dispatcher sends events to the subscribers of the triggers. Any number of
replicas may run, and share the work; one that dies is replaced by the others
within seconds. Recipes need --functions, which says where train, promote and
forget are.

The role keeper sends the ticks of the schedules. Any number may run: one is
active, and another takes over when it is gone. With --redis and --store it looks
after runs and models; with --kubernetes it launches runs as Jobs, tells what
becomes of their pods, and scales scorers.

The role function is one of ours in a process of its own: tidemill serve function
train. With --kubernetes train launches what it asks for at once. It listens at
--listen, else at the port in $PORT, and answers who shares --run-secret with it.

The role scorer scores the events of one stream, by the scorer of the config that
NAME names: tidemill serve scorer intents. Any number of replicas may run, and
share the partitions. It reads models from the object store, so that it needs
--store beside --kafka and --redis; so does a gateway that is to answer tidemill
score.

None but the gateway has a door: at --listen they answer /healthz, /readyz and /metrics.`,
		examples: []example{
			{"tidemill serve gateway -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:8080 --access access.yaml", "a replica"},
			{"tidemill serve gateway --kafka localhost:9092", "the door alone, on this machine"},
			{"tidemill serve dispatcher -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "a replica of what serves the triggers"},
			{"tidemill serve keeper -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "one of several keepers"},
			{"tidemill serve keeper -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --kubernetes --agents-at http://tidemill:8080 --image registry.example/tidemill:1 --run-secret run-secret", "one that launches runs, in a pod"},
			{"tidemill serve function train -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --run-secret run-secret", "what asks for runs, in a process of its own"},
			{"tidemill serve scorer intents -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --model-cache /var/cache/tidemill", "a replica of what scores messages"},
		},
		make: func() program { return &serving{door: doorFlags{drain: defaultDrain}} },
	}
}

// defaultDrain is for balancers in front of a gateway.
const defaultDrain = 5 * time.Second

// serving is a call of serve.
type serving struct {
	connection
	door    doorFlags
	scoring scoringFlags
	cluster clusterFlags
	reorder bool
	role    string
	name    string // of the scorer or the function
	set     *flagSet
}

func (r *serving) flags(f *flagSet) {
	r.set = f
	r.door.flags(f)
	f.yes(&r.reorder, "reorder", "let streams grow partitions though keys then move between them")
	r.scoring.flags(f)
	r.cluster.flags(f)
	r.connection.flags(f)
}

func (r *serving) accept(positional []string) (err error) {
	if err = r.acceptRole(positional); err != nil {
		return err
	}
	if err := r.scoring.accept(); err != nil {
		return err
	}
	if err := r.cluster.accept(); err != nil {
		return err
	}
	if r.place, err = r.cluster.place(); err != nil {
		return err
	}
	if r.door.listen == "" && r.role != functionRole {
		r.door.listen = r.listens()
	}
	if r.role != gatewayRole {
		return r.acceptNoDoor()
	}
	return r.door.accept()
}

func (r *serving) acceptRole(positional []string) error {
	if len(positional) == 0 {
		return usagef("ROLE is missing; the roles: %s", strings.Join(roles(), ", "))
	}
	r.role = positional[0]
	if !slices.Contains(roles(), r.role) {
		return usagef("there is no role %q:%s those there are: %s", r.role, didYouMean(r.role, roles()), strings.Join(roles(), ", "))
	}
	if r.role != scorerRole && r.role != functionRole {
		return wants(positional, "ROLE")
	}
	if err := wants(positional, "ROLE", "NAME"); err != nil {
		if r.role == functionRole {
			return usagef("%v; name the function: %s", err, strings.Join(platform.Functions(), ", "))
		}
		return usagef("%v; name the scorer of the config, as in tidemill serve scorer intents", err)
	}
	r.name = positional[1]
	if r.role == functionRole && !slices.Contains(platform.Functions(), r.name) {
		return usagef("there is no function %q:%s those there are: %s", r.name, didYouMean(r.name, platform.Functions()), strings.Join(platform.Functions(), ", "))
	}
	return nil
}

// acceptNoDoor refuses what says something to a gateway alone.
func (r *serving) acceptNoDoor() error {
	for _, long := range []string{"access", "tls-cert", "tls-key", "max-event", "drain-delay"} {
		if r.set.given[long] {
			return usagef("--%s is for the role gateway: a %s takes nothing in", long, r.role)
		}
	}
	if r.door.listen == "" {
		return nil // where a function listens stands in $PORT
	}
	return checkListen(r.door.listen)
}

// listens is where a role serves HTTP that was not told where. Only the gateway
// is looked for at a place that is known.
func (r *serving) listens() string {
	if r.role == gatewayRole {
		return listenAt
	}
	return "127.0.0.1:0"
}

func (r *serving) run(ctx context.Context, s *session, _ []string) error {
	addresses, err := config.ReadAddresses(r.addresses, s.getenv)
	if err != nil {
		return err
	}
	if addresses.Kafka == "" {
		return usagef("Kafka's address is missing: give --kafka or set TIDEMILL_KAFKA; tidemill up brings a Kafka of its own")
	}
	log, err := r.logger(s.stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if r.role == gatewayRole {
		err = r.door.check()
	}
	if err != nil {
		return err
	}
	if err := r.needs(addresses); err != nil {
		return err
	}
	if r.role == functionRole && r.door.listen == "" {
		r.door.listen = portOf(s.getenv)
	}
	if addresses.Redis == "" {
		log.Warn("no Redis is given (--redis), so " + missesRedis(r.role))
	}
	source := r.source()
	conf, err := source.load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	began := time.Now()
	o := r.options(addresses)
	o.Config, o.Telemetry, o.Logger = conf, telemetryOf(s, "tidemill-"+r.role), log
	p, err := platform.Open(ctx, o)
	if err != nil {
		return unlessInterrupted(ctx, log, fmt.Errorf("start: %w", err))
	}
	return stay(ctx, p, log, source, r.block(), func(ctx context.Context) error {
		return unlessInterrupted(ctx, log, r.open(ctx, s, p, log, source, began))
	})
}

// missesRedis is what a role cannot do without Redis.
func missesRedis(role string) string {
	switch role {
	case dispatcherRole:
		return "gateways cannot tell how the triggers stand"
	case keeperRole:
		return "several keepers take the clock from each other, though no tick is lost or doubled by that"
	}
	return "repeats are not recognised and are stored again"
}

// unlessInterrupted is no error where a start was asked to stop, and has: its
// error blames whatever it happened to wait for, and not always by the context.
func unlessInterrupted(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	log.Info("interrupted before it was up")
	log.Debug("what the interrupted start met", "reason", err)
	return nil
}

// open opens the role and serves it until the context ends.
func (r *serving) open(ctx context.Context, s *session, p *platform.Platform, log *slog.Logger, source *configSource, began time.Time) error {
	if r.role != gatewayRole {
		return r.work(ctx, s, p, log, source, began)
	}
	g, err := r.door.open(ctx, p)
	if err != nil {
		return err
	}
	r.tell(s, p, source, r.door.url(g), began)
	return serve(ctx, g)
}

// portOf is where Knative has a function listen; without that a free one here.
func portOf(getenv func(string) string) string {
	if port := strings.TrimSpace(getenv("PORT")); port != "" {
		return ":" + port
	}
	return "127.0.0.1:0"
}

// work is a role without a door. The probes come first: a start that waits is
// seen to wait.
func (r *serving) work(ctx context.Context, s *session, p *platform.Platform, log *slog.Logger, source *configSource, began time.Time) (err error) {
	at := ""
	if r.role == functionRole {
		at, err = p.Function(ctx, r.name, r.door.listen)
	} else {
		at, err = p.Probes(ctx, r.door.listen)
	}
	if err != nil {
		return err
	}
	switch r.role {
	case dispatcherRole:
		err = beginTriggers(ctx, p, log)
	case scorerRole:
		err = p.Scorers(ctx, r.name)
	case keeperRole:
		_, err = p.Keeper(ctx)
	}
	if err != nil {
		return err
	}
	r.tell(s, p, source, "http://"+at, began)
	<-ctx.Done()
	return nil
}

func (r *serving) tell(s *session, p *platform.Platform, source *configSource, url string, began time.Time) {
	a, c := p.Addresses(), p.Config()
	fmt.Fprintf(s.stdout, "tidemill's %s is up after %s, with %d streams\n", r.role, time.Since(began).Round(time.Millisecond), len(c.Streams))
	fmt.Fprintf(s.stdout, "  http    %s\n  kafka   %s\n  redis   %s\n  config  %s\n", url, a.Kafka, orNone(a.Redis), source.shown())
}

// doorBlock lets so much garbage of net/http come together in a gateway.
const doorBlock = 32 << 20

// block is what the role's heap is given while it has much to do; negative is that
// nobody looks after it. A scorer's models do: see infer.Options.Collect.
func (r *serving) block() int {
	switch r.role {
	case gatewayRole:
		return doorBlock
	case scorerRole:
		return -1
	}
	return 0
}

// stay keeps the config applied and the platform open while something serves,
// and stops it all in the stop order.
func stay(ctx context.Context, p *platform.Platform, log *slog.Logger, source *configSource, block int, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
		log.Info("stopping")
		err = errors.Join(err, closePlatform(ctx, p))
	}()
	watching.Go(func() { p.Watch(ctx, source.load, configEvery) })
	if block >= 0 {
		watching.Go(func() { heap.Keep(ctx, block) })
	}
	return do(ctx)
}

func telemetryOf(s *session, service string) *telemetry.Options {
	return &telemetry.Options{Version: thisBuild().Version, Getenv: s.getenv, Name: service}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
