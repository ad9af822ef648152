package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/ops/gctune"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

const (
	gatewayRole    = "gateway"
	dispatcherRole = "dispatcher"
	controllerRole = "controller"
	scorerRole     = "scorer"
	functionRole   = "function"
)

// roles returns the roles of serve.
func roles() []string {
	return []string{gatewayRole, dispatcherRole, controllerRole, scorerRole, functionRole}
}

func serveCommand() command {
	return command{
		name:    "serve",
		args:    "ROLE [NAME]",
		summary: "run one part of Tidemill against a Kafka and a Redis of yours",
		about: `The role gateway is the HTTP server: other systems publish events and read streams
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

Roles other than the gateway only answer /healthz, /readyz and /metrics at --listen.`,
		examples: []example{
			{"tidemill serve gateway -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:8080 --access access.yaml", "a replica"},
			{"tidemill serve gateway --kafka localhost:9092", "only the gateway, on this machine"},
			{"tidemill serve dispatcher -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "a replica of the dispatcher"},
			{"tidemill serve controller -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --listen 0.0.0.0:9090", "one of several controllers"},
			{"tidemill serve controller -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --kubernetes --agents-at http://tidemill:8080 --image registry.example/tidemill:1 --run-secret run-secret", "a controller that launches runs, in a pod"},
			{"tidemill serve function train -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --run-secret run-secret", "the function that requests runs"},
			{"tidemill serve scorer intents -f tidemill.yaml --kafka kafka-1.example:9092 --redis redis.example:6379 --store s3://models.example --model-cache /var/cache/tidemill", "a replica of a scorer"},
		},
		values: func(args []string) []string {
			if len(args) == 1 && args[0] == functionRole {
				return platform.Functions()
			}
			return nil
		},
		make: func() program { return &serving{door: doorFlags{drain: defaultDrain}} },
	}
}

// defaultDrain gives load balancers in front of a gateway time to notice its stop.
const defaultDrain = 5 * time.Second

// serving is a call of serve.
type serving struct {
	connection
	door    doorFlags
	scoring scoringFlags
	cluster clusterFlags
	reorder bool
	role    string
	name    string // name of the scorer or the function
	set     *flagSet
}

func (r *serving) flags(f *flagSet) {
	r.set = f
	r.door.flags(f)
	f.yes(&r.reorder, "reorder", "allow new partitions of streams, although keys then move between them")
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
		return usagef("there is no role %q:%s the roles: %s", r.role, didYouMean(r.role, roles()), strings.Join(roles(), ", "))
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
		return usagef("there is no function %q:%s the functions: %s", r.name, didYouMean(r.name, platform.Functions()), strings.Join(platform.Functions(), ", "))
	}
	return nil
}

// acceptNoDoor refuses flags that only a gateway uses.
func (r *serving) acceptNoDoor() error {
	for _, long := range []string{"access", "tls-cert", "tls-key", "max-event", "drain-delay"} {
		if r.set.Changed(long) {
			return usagef("--%s is for the role gateway: a %s accepts no events", long, r.role)
		}
	}
	if r.door.listen == "" {
		return nil // the variable PORT has the port of a function
	}
	return checkListen(r.door.listen)
}

// listens returns the default HTTP address of a role. Only the gateway has a fixed port, because
// only it has external callers.
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
		return usagef("Kafka's address is missing: give --kafka or set TIDEMILL_KAFKA; tidemill up starts an embedded Kafka")
	}
	log, err := r.logger(s.stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if r.role == gatewayRole {
		r.door.warnOfPlainHTTP(log)
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
		log.Warn("serve: no Redis is given (--redis); " + missesRedis(r.role))
	}
	source := r.source()
	conf, err := source.load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	began := time.Now()
	r.useLaptop(addresses)
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

// missesRedis says what a role cannot do without Redis.
func missesRedis(role string) string {
	switch role {
	case dispatcherRole:
		return "gateways cannot show the state of the triggers"
	case controllerRole:
		return "several controllers compete for the schedules, but no tick is lost or sent twice"
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

// portOf returns the address of a function: the port from Knative, else a free one on loopback.
func portOf(getenv func(string) string) string {
	if port := strings.TrimSpace(getenv("PORT")); port != "" {
		return ":" + port
	}
	return "127.0.0.1:0"
}

// work runs a role other than gateway. The probes come first, so that they can report a start that
// waits.
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
	case controllerRole:
		_, err = p.Controller(ctx)
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

// stay applies changes of the config while do serves. After that it closes the platform in the stop
// order.
func stay(ctx context.Context, p *platform.Platform, log *slog.Logger, source *configSource, block int, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		cancel()
		watching.Wait()
		log.Info("serve: stopping")
		err = errors.Join(err, closePlatform(ctx, p))
	}()
	watching.Go(func() { p.Watch(ctx, source.load, configEvery) })
	if block >= 0 {
		watching.Go(func() { gctune.Keep(ctx, block) })
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

// clusterFlags say how the processes of one install find each other, and their Kubernetes.
type clusterFlags struct {
	kubernetes                            bool
	kubeconfig, namespace, runs           string
	agentsAt, image, secret, functionsAre string
	withhold                              string
}

func (c *clusterFlags) flags(f *flagSet) {
	f.yes(&c.kubernetes, "kubernetes", "use the cluster of this process: launch runs as Jobs, scale scorers, find Knative Services")
	f.text(&c.kubeconfig, "kubeconfig", "", "FILE", "the same, with the cluster of a kubeconfig")
	f.text(&c.namespace, "namespace", "", "NAME", "namespace of all that (default: that of the pod or of the kubeconfig)")
	f.text(&c.runs, "runs-namespace", "", "NAME", "namespace of the Jobs and pods of runs (default: the same)")
	f.text(&c.agentsAt, "agents-at", "", "URL", "URL of the gateway for the agents in the pods of runs")
	f.text(&c.image, "image", "", "IMAGE", "image of Tidemill, from which the pods of runs copy the agent")
	f.text(&c.secret, "run-secret", "", "FILE", "file with 32 random bytes, raw or base64, the same for all processes: it authenticates attempts and functions")
	f.text(&c.withhold, "withhold", "", "KIND/NAME,…", "objects that no recipe may name: secret/NAME and claim/NAME; a trailing * matches any rest")
	f.text(&c.functionsAre, "functions", "", "knative|URL", "address of train, promote and forget for the dispatcher: Knative Services, or a URL, which may have {function} in it")
	for flag, variable := range map[string]string{
		"kubernetes": "TIDEMILL_KUBERNETES", "kubeconfig": "TIDEMILL_KUBECONFIG", "namespace": "TIDEMILL_NAMESPACE",
		"runs-namespace": "TIDEMILL_RUNS_NAMESPACE",
		"agents-at":      "TIDEMILL_AGENTS_AT", "image": "TIDEMILL_IMAGE", "run-secret": "TIDEMILL_RUN_SECRET_FILE", "functions": "TIDEMILL_FUNCTIONS",
		"withhold": "TIDEMILL_WITHHOLD",
	} {
		f.fromEnv(flag, variable)
	}
}

func (c *clusterFlags) accept() error {
	if c.kubeconfig != "" {
		c.kubernetes = true
	}
	if err := checkURL("--agents-at", c.agentsAt); err != nil {
		return err
	}
	if c.functionsAre == platform.Knative {
		return nil
	}
	return checkURL("--functions", platform.FunctionAt(c.functionsAre, "train"))
}

// place returns the limits of the cluster on the config.
func (c *clusterFlags) place() (config.Place, error) {
	withheld, err := config.ParseWithheld(c.withhold)
	if err != nil {
		return config.Place{}, usagef("--withhold: %v", err)
	}
	return config.Place{Namespace: c.namespace, Withheld: withheld}, nil
}

// checkURL checks an address that others call. It may be empty.
func checkURL(flag, text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return usagef("%s: give a URL such as http://tidemill.example:8080", flag)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return usagef("%s: give the address alone, without a user, a query or a fragment", flag)
	}
	return nil
}

// needs returns an error if the role lacks flags.
func (r *serving) needs(a config.Addresses) error {
	switch {
	case r.role == scorerRole && (a.Redis == "" || a.Store == ""):
		return usagef("a scorer needs Redis for the champions and the object store for the models: give --redis and --store")
	case r.role == functionRole && (a.Redis == "" || a.Store == ""):
		return usagef("the function %s needs Redis for the state of runs, and the object store: give --redis and --store", r.name)
	case r.role == functionRole && r.cluster.secret == "":
		return usagef("the function %s answers only callers that have its secret: give --run-secret, the same file as the dispatcher's", r.name)
	case r.role == dispatcherRole && r.cluster.functionsAre != "" && r.cluster.secret == "":
		return usagef("functions in other processes (--functions) answer only callers that have their secret: give --run-secret, the same file as theirs")
	case r.role == dispatcherRole && r.cluster.functionsAre == platform.Knative && !r.cluster.kubernetes:
		return usagef("--functions knative reads their addresses from Kubernetes: give --kubernetes or --kubeconfig")
	case r.launches():
		return r.needsToLaunch(a)
	}
	return nil
}

func (r *serving) needsToLaunch(a config.Addresses) error {
	var missing []string
	for _, one := range []struct{ flag, value string }{
		{"--redis", a.Redis}, {"--store", a.Store}, {"--run-secret", r.cluster.secret}, {"--agents-at", r.cluster.agentsAt}, {"--image", r.cluster.image},
	} {
		if one.value == "" {
			missing = append(missing, one.flag)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return usagef("launching runs in Kubernetes also needs %s", strings.Join(missing, ", "))
}

// launches reports whether the role starts attempts. Only these roles may make Jobs.
func (r *serving) launches() bool {
	return r.cluster.kubernetes && (r.role == controllerRole || r.role == functionRole && r.name == "train")
}

// options returns what the role opens: no more than it needs, for less memory and fewer rights.
func (r *serving) options(a config.Addresses) platform.Options {
	o := platform.Options{Addresses: a, Security: r.security, RedisSecurity: r.redis, OwnStreams: true, Reorder: r.reorder,
		Scoring: r.scoring.options(), Secret: r.cluster.secret}
	if r.role == dispatcherRole {
		o.FunctionsAt = r.cluster.functionsAre
	}
	if r.withRuns(a) {
		o.Runs = &platform.RunsOptions{Recipes: r.source().folder(), Launch: r.launches()}
	}
	if r.launches() || r.role == dispatcherRole && r.cluster.kubernetes {
		o.Cluster = &platform.ClusterOptions{Kubeconfig: r.cluster.kubeconfig, Namespace: r.cluster.namespace, Runs: r.cluster.runs,
			Gateway: r.cluster.agentsAt, Image: r.cluster.image, Withheld: r.place.Withheld}
	}
	return o
}

// withRuns reports whether the role works on runs. Without them a gateway only takes events, and a
// controller only makes ticks.
func (r *serving) withRuns(a config.Addresses) bool {
	switch r.role {
	case gatewayRole, controllerRole, functionRole:
		return a.Redis != "" && a.Store != ""
	}
	return false
}

// scoringFlags limit the memory of models, and name their cache on disk.
type scoringFlags struct{ memory, cache string }

func (m *scoringFlags) flags(f *flagSet) {
	f.text(&m.memory, "model-memory", "", "SIZE", "most memory for models, such as 512MiB or 4GiB (default 1GiB)")
	f.text(&m.cache, "model-cache", "", "FOLDER", "folder for fetched models (default: models in the data folder of tidemill up, none for serve)")
	f.fromEnv("model-memory", "TIDEMILL_MODEL_MEMORY")
	f.fromEnv("model-cache", "TIDEMILL_MODEL_CACHE")
}

func (m *scoringFlags) accept() error {
	if _, err := parseMemory(m.memory); err != nil {
		return usagef("--model-memory %q: %v", m.memory, err)
	}
	return nil
}

func (m *scoringFlags) options() platform.ScoringOptions {
	memory, _ := parseMemory(m.memory) // accept has checked it
	return platform.ScoringOptions{Memory: memory, Dir: m.cache}
}

const (
	leastMemory = 16 << 20
	mostMemory  = 1 << 42
)

// parseMemory parses a size. Empty is 0, the default.
func parseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number, factor := text, int64(1)
	for i, unit := range []string{"MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, factor = n, 1<<(10*(i+2))
		}
	}
	n, err := strconv.ParseUint(number, 10, 42)
	if err != nil || int64(n) > mostMemory/factor || int64(n)*factor < leastMemory {
		return 0, errors.New("give 16MiB to 4TiB, such as 512MiB or 4GiB")
	}
	return int64(n) * factor, nil
}

const (
	listenAt     = "127.0.0.1:8080"
	longestDrain = 15 * time.Second // a part of the grace; internal/platform has the sum of the stop order
)

// doorFlags configure the HTTP server of a gateway.
type doorFlags struct {
	listen, access, cert, key string
	insecure                  bool
	maxEvent                  string
	drain                     time.Duration
}

func (d *doorFlags) flags(f *flagSet) {
	f.text(&d.listen, "listen", "", "HOST:PORT", "address to serve HTTP at; port 0 is a free one")
	f.text(&d.access, "access", "", "FILE", "file with the rights of the callers, by token; without it every caller has all rights, on loopback only")
	f.text(&d.cert, "tls-cert", "", "FILE", "PEM with the certificate for HTTPS, read again when it changes")
	f.text(&d.key, "tls-key", "", "FILE", "PEM with the certificate's key")
	f.yes(&d.insecure, "insecure-http", "plain HTTP beyond this machine is intended, because a proxy ends TLS; without it a start warns")
	f.text(&d.maxEvent, "max-event", "", "SIZE", "size of the largest event to accept, such as 512KiB (default 1MiB)")
	f.span(&d.drain, "drain-delay", "DURATION", "time to keep answering at shutdown while /readyz fails, so that load balancers switch first")
	for flag, variable := range map[string]string{
		"listen": "TIDEMILL_LISTEN", "access": envAccess, "tls-cert": "TIDEMILL_TLS_CERT",
		"tls-key": "TIDEMILL_TLS_KEY", "insecure-http": "TIDEMILL_INSECURE_HTTP", "max-event": "TIDEMILL_MAX_EVENT", "drain-delay": "TIDEMILL_DRAIN_DELAY",
	} {
		f.fromEnv(flag, variable)
	}
}

func checkListen(at string) error {
	_, port, err := net.SplitHostPort(at)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usagef("--listen %q: write it like %s; a port is 0, which is a free one, to 65535", at, listenAt)
	}
	return nil
}

func (d *doorFlags) accept() error {
	if err := checkListen(d.listen); err != nil {
		return err
	}
	if (d.cert == "") != (d.key == "") {
		return usagef("only one of --tls-cert and --tls-key is given: HTTPS needs both")
	}
	if d.drain < 0 || d.drain > longestDrain {
		return usagef("--drain-delay %s: give 0s to %s, so that the rest of the shutdown fits into the 30 s that a pod has", d.drain, longestDrain)
	}
	if _, err := parseSize(d.maxEvent); err != nil {
		return usagef("--max-event %q: %v", d.maxEvent, err)
	}
	return nil
}

// check runs before anything is opened, so that a refused start creates no folder and no streams.
func (d *doorFlags) check() error {
	if d.access != "" {
		if _, err := config.LoadAccess(d.access); err != nil {
			return fmt.Errorf("read the access file: %w", err)
		}
	}
	return gateway.Check(d.listen, d.cert, d.key, d.access != "")
}

// warnOfPlainHTTP warns if tokens cross the network unencrypted and no flag says that this is intended.
func (d *doorFlags) warnOfPlainHTTP(log *slog.Logger) {
	at, err := net.ResolveTCPAddr("tcp", d.listen)
	if err != nil || at.IP.IsLoopback() || d.cert != "" || d.insecure {
		return
	}
	log.Warn("gateway: tokens and events cross the network by plain HTTP; a machine on the way can read a token and use it: give --tls-cert and --tls-key, "+
		"listen on 127.0.0.1, or give --insecure-http if a proxy ends TLS", "address", d.listen)
}

func (d *doorFlags) open(ctx context.Context, p *platform.Platform) (*gateway.Gateway, error) {
	limit, err := parseSize(d.maxEvent)
	if err != nil {
		return nil, err
	}
	return p.Gateway(ctx, platform.GatewayOptions{
		Listen: d.listen, CertFile: d.cert, KeyFile: d.key, AccessFile: d.access,
		Limits: gateway.Limits{Event: limit, DrainDelay: d.drain},
	})
}

// url returns the gateway's address for clients on this machine. If it listens on all addresses, it
// is the loopback address.
func (d *doorFlags) url(g *gateway.Gateway) string {
	scheme := "http"
	if d.cert != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(g.Addr()) // a listener's address is valid
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// serve serves until the context ends or the server fails. Open requests continue after that; the
// stop order waits for them.
func serve(ctx context.Context, g *gateway.Gateway) error {
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(context.WithoutCancel(ctx)) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// parseSize parses a number of bytes, with the units of size. Empty is 0.
func parseSize(text string) (int, error) {
	number, factor := text, 1
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, factor = n, 1<<(10*(i+1))
		}
	}
	if number == "" && factor == 1 {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
	if err != nil || n == 0 || int64(n)*int64(factor) > 1<<30 {
		return 0, errors.New("give a number of bytes up to 1GiB, such as 1048576, 512KiB or 1MiB")
	}
	return int(n) * factor, nil
}
