package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/pflag"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

const (
	dataFolder = ".tidemill"
	configFile = "tidemill.yaml"
)

// connection has the flags of all commands that connect to Kafka.
type connection struct {
	config, data, name string
	addresses          config.Addresses
	security           broker.Security
	redis              platform.RedisSecurity
	log                string
	place              config.Place // limits of the cluster on the config
}

func (c *connection) flags(f *flagSet) {
	f.text(&c.config, "config", "f", "FILE", "the config, a file or a folder (default "+configFile+", if there is one)")
	c.data = dataFolder
	f.text(&c.data, "data", "", "FOLDER", "data folder of tidemill up, which also has its addresses")
	f.text(&c.name, "name", "", "NAME", "the install's name, instead of the config's")
	f.text(&c.addresses.Kafka, "kafka", "", "HOST:PORT", "address of Kafka; several with commas")
	f.text(&c.addresses.Redis, "redis", "", "HOST:PORT", "address of Redis")
	f.text(&c.addresses.Store, "store", "", "URL", "URL of the object store, such as s3://bucket or file:///folder")
	f.yes(&c.security.TLS, "kafka-tls", "use TLS with Kafka")
	f.text(&c.security.CAFile, "kafka-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.text(&c.security.CertFile, "kafka-cert", "", "FILE", "PEM with the client certificate")
	f.text(&c.security.KeyFile, "kafka-key", "", "FILE", "PEM with the key of the client certificate")
	f.text(&c.security.ServerName, "kafka-server-name", "", "NAME", "name in Kafka's certificate, if it is not the host")
	f.text(&c.security.Mechanism, "kafka-sasl", "", "MECHANISM", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	f.text(&c.security.User, "kafka-user", "", "USER", "user for SASL")
	f.text(&c.security.PasswordFile, "kafka-password-file", "", "FILE", "file with the password for SASL, read again when it changes")
	f.yes(&c.redis.TLS, "redis-tls", "use TLS with Redis")
	f.text(&c.redis.CAFile, "redis-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.text(&c.redis.User, "redis-user", "", "USER", "user of Redis, if it is not the default one")
	f.text(&c.redis.PasswordFile, "redis-password-file", "", "FILE", "file with Redis's password, read again when it changes")
	f.text(&c.log, "log", "", "LEVEL", "debug, info, warn or error")
	f.shownEnv("kafka", "TIDEMILL_KAFKA")
	f.shownEnv("redis", "TIDEMILL_REDIS")
	for flag, variable := range connectionEnv() {
		f.fromEnv(flag, variable)
	}
}

// connectionEnv returns the variable of each flag. The addresses are missing here because
// config.ReadAddresses reads and checks their variables.
func connectionEnv() map[string]string {
	return map[string]string{
		"config": "TIDEMILL_CONFIG", "data": "TIDEMILL_DATA", "name": "TIDEMILL_NAME",
		"kafka-tls": "TIDEMILL_KAFKA_TLS", "kafka-ca": "TIDEMILL_KAFKA_CA",
		"kafka-cert": "TIDEMILL_KAFKA_CERT", "kafka-key": "TIDEMILL_KAFKA_KEY",
		"kafka-server-name": "TIDEMILL_KAFKA_SERVER_NAME", "kafka-sasl": "TIDEMILL_KAFKA_SASL",
		"kafka-user": "TIDEMILL_KAFKA_USER", "kafka-password-file": "TIDEMILL_KAFKA_PASSWORD_FILE",
		"redis-tls": "TIDEMILL_REDIS_TLS", "redis-ca": "TIDEMILL_REDIS_CA",
		"redis-user": "TIDEMILL_REDIS_USER", "redis-password-file": "TIDEMILL_REDIS_PASSWORD_FILE",
		"log": "TIDEMILL_LOG",
	}
}

// open connects to the Kafka that the flags or the environment name.
func (c *connection) open(ctx context.Context, s *session, log *slog.Logger) (*platform.Platform, error) {
	addresses, err := config.ReadAddresses(c.addresses, s.getenv)
	if err != nil {
		return nil, err
	}
	conf, err := c.source().load()
	if err != nil {
		return nil, err
	}
	c.useLaptop(addresses)
	return platform.Open(ctx, platform.Options{Config: conf, Addresses: addresses, Security: c.security, RedisSecurity: c.redis, Logger: log})
}

// useLaptop sets the credentials of the embedded servers of the tidemill up of the data folder, for
// those addresses that are its own. Credentials that the user gave are kept.
func (c *connection) useLaptop(a config.Addresses) {
	running, found, err := platform.Find(c.data)
	if err != nil || !found || !running.Embedded {
		return // other servers, which may need no credentials
	}
	kafka, redis := platform.EmbeddedSecurity(c.data)
	if c.security == (broker.Security{}) && onLoopback(a.Kafka) == running.Kafka {
		c.security = kafka
	}
	if c.redis == (platform.RedisSecurity{}) && onLoopback(a.Redis) == running.Redis {
		c.redis = redis
	}
}

// onLoopback returns an address as tidemill up writes it.
func onLoopback(address string) string {
	if port, ok := strings.CutPrefix(address, "localhost:"); ok {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// source returns the source of the config: --config, else tidemill.yaml in the current folder.
func (c *connection) source() *configSource {
	source := &configSource{path: c.config, name: c.name}
	if source.path == "" {
		source.path, source.optional = configFile, true
	}
	source.reader = config.NewReader(source.path, c.place)
	return source
}

func (c *connection) logger(w io.Writer, level slog.Level) (*slog.Logger, error) {
	if c.log != "" {
		if err := level.UnmarshalText([]byte(c.log)); err != nil {
			return nil, usagef("--log %q: give debug, info, warn or error", c.log)
		}
	}
	return telemetry.Logger(w, level), nil
}

// configSource reads the config, again at each change.
type configSource struct {
	path     string
	name     string // name of the install, instead of the config's
	optional bool   // whether the file may be missing, for the default config
	reader   *config.Reader
	found    atomic.Bool // whether the file has ever existed; atomic, because the watcher may set it while the start reads it

	plain, named *config.Config // newest config as it was read, and with s.name
}

// shown returns the source as users see it.
func (s *configSource) shown() string {
	if s.missing() {
		return "the defaults; " + configFile + " is read as soon as it exists"
	}
	return s.path
}

// folder returns the folder of the config. Recipes' folders are relative to it. It is absolute,
// because plans are kept, and because a relative path of a program is looked up in the folder in
// which it runs.
func (s *configSource) folder() string {
	folder := filepath.Dir(s.path)
	if info, err := os.Stat(s.path); err == nil && info.IsDir() {
		folder = s.path
	}
	if absolute, err := filepath.Abs(folder); err == nil {
		return absolute
	}
	return folder // the current folder is gone, which the runs report
}

// load reads the config. It returns the same pointer while the config does not change. A file that
// existed once and is missing now is an error, because its streams must not get the default's
// retention.
func (s *configSource) load() (*config.Config, error) {
	c, err := s.read()
	if err != nil || s.name == "" {
		return c, err
	}
	if c == s.plain {
		return s.named, nil
	}
	named := *c
	named.Name = s.name
	if _, err := named.Names(); err != nil {
		return nil, usagef("--name: %v", err)
	}
	s.plain, s.named = c, &named
	return s.named, nil
}

func (s *configSource) read() (*config.Config, error) {
	if s.missing() {
		if _, err := os.Stat(s.path); os.IsNotExist(err) {
			return config.Default(), nil
		}
	}
	c, err := s.reader.Load()
	if err == nil {
		s.found.Store(true)
	}
	return c, err
}

// missing reports whether the file may still be missing.
func (s *configSource) missing() bool { return s.optional && !s.found.Load() }

// These variables replace the flags of the same meaning.
const (
	envURL       = "TIDEMILL_URL"
	envToken     = "TIDEMILL_TOKEN"
	envTokenFile = "TIDEMILL_TOKEN_FILE"
	envCA        = "TIDEMILL_CA"
)

// reach has the flags of the commands that publish and read, through a gateway or directly on
// Kafka.
type reach struct {
	connection
	url, tokenFile, ca string

	set *flagSet
}

// reached returns the flags that say where the command goes.
func (r *reach) reached() *reach { return r }

func (r *reach) flags(f *flagSet) {
	r.gatewayFlags(f)
	r.connection.flags(f)
}

func (r *reach) gatewayFlags(f *flagSet) {
	r.set = f
	f.text(&r.url, "url", "", "URL", "the gateway, such as https://tidemill.example")
	f.text(&r.tokenFile, "token-file", "", "FILE", "file with the token for the gateway, read again when it changes; or set "+envToken)
	f.text(&r.ca, "ca", "", "FILE", "PEM with the CAs to trust at the gateway, instead of the system's")
	f.fromEnv("ca", envCA)
	f.shownEnv("url", envURL)
	f.shownEnv("token-file", envTokenFile)
}

// way is the chosen gateway or Kafka.
type way struct {
	url     string            // URL of the gateway; empty for Kafka
	running *platform.Running // the tidemill up that wrote the gateway's address; nil if a flag or variable named it
}

// whereTo explains the choice to users.
const whereTo = `It calls the gateway of --url, else of TIDEMILL_URL, else of the tidemill up that was
started in the same folder. With --kafka it connects directly to Kafka. If no gateway
is given, TIDEMILL_KAFKA does the same.`

// choose chooses between gateway and Kafka. Flags come before variables, and a gateway before
// Kafka, because more users can reach a gateway.
func (r *reach) choose(getenv func(string) string) (way, error) {
	byEnv := strings.TrimSpace(getenv(envURL))
	switch {
	case r.addresses.Kafka != "" && r.url != "":
		return way{}, usagef("--url and --kafka are both given: --url uses a gateway, --kafka does not; leave one out")
	case r.addresses.Kafka != "":
		return way{}, r.refuse("is for a gateway, and --kafka uses none", isGatewayFlag)
	case r.url == "" && byEnv == "" && strings.TrimSpace(getenv("TIDEMILL_KAFKA")) != "":
		return way{}, r.refuse("is for a gateway, and only TIDEMILL_KAFKA is set; give --url too", isGatewayFlag)
	}
	if err := r.refuse("is for Kafka, and this command calls a gateway: leave it out, or give --kafka", isKafkaFlag); err != nil {
		return way{}, err
	}
	if r.url != "" || byEnv != "" {
		return way{url: cmp.Or(r.url, byEnv)}, nil
	}
	running, found, err := platform.Find(r.data)
	if err == nil && !found {
		err = fmt.Errorf("find Tidemill: no tidemill up runs on the data folder %s, and neither a gateway (--url, %s) nor Kafka (--kafka, TIDEMILL_KAFKA) is given; start it with tidemill up, or give an address", r.data, envURL)
	}
	return way{url: running.URL, running: &running}, err
}

// refuse returns an error for a flag that would have no effect.
func (r *reach) refuse(why string, idle func(long string) bool) error {
	var refused error
	r.set.Visit(func(f *pflag.Flag) {
		if refused == nil && idle(f.Name) {
			refused = usagef("%s %s", dashed(f.Name), why)
		}
	})
	return refused
}

func isGatewayFlag(long string) bool { return long == "token-file" || long == "ca" }

func isKafkaFlag(long string) bool {
	return long == "config" || long == "name" || long == "redis" || strings.HasPrefix(long, "kafka-")
}

// open connects to the chosen gateway or Kafka.
func (r *reach) open(ctx context.Context, s *session) (target, error) {
	log, err := r.logger(s.stderr, slog.LevelWarn)
	if err != nil {
		return nil, err
	}
	w, err := r.choose(s.getenv)
	if err != nil {
		return nil, err
	}
	if w.url == "" {
		p, err := r.connection.open(ctx, s, log)
		if err != nil {
			return nil, err
		}
		return &kafkaTarget{p: p, out: s.stderr}, nil
	}
	g, err := r.connect(ctx, s, w, log)
	if err != nil {
		return nil, err
	}
	return &gatewayTarget{g: g, out: s.stderr}, nil
}

// connect is dial, with a hint if tidemill up left the address and does not run any more.
func (r *reach) connect(ctx context.Context, s *session, w way, log *slog.Logger) (*client.Gateway, error) {
	g, err := r.dial(ctx, s, w, log)
	if w.running != nil && errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; that address is from %s, written by tidemill up as process %d: does it still run? Start it again, or remove the file",
			err, platform.AddressFile(r.data), w.running.PID)
	}
	return g, err
}

// dial connects to a gateway. It sends a token only if the user named the gateway or if the gateway
// is on this machine: the address file may have come with a folder of another person.
func (r *reach) dial(ctx context.Context, s *session, w way, log *slog.Logger) (*client.Gateway, error) {
	token, err := r.token(s.getenv)
	if err != nil {
		return nil, err
	}
	if token != nil && w.running != nil && !onThisMachine(w.url) {
		return nil, fmt.Errorf("%s has the address %s of tidemill up, which is another machine, and its owner would get the token: if it is yours, give it by --url",
			platform.AddressFile(r.data), w.url)
	}
	g, err := client.Dial(ctx, client.Options{URL: w.url, Token: token, CAFile: r.ca, Network: s.network, Logger: log})
	return g, r.explainTLS(err)
}

// explainTLS adds to a TLS error how to trust the server.
func (r *reach) explainTLS(err error) error {
	var untrusted *tls.CertificateVerificationError
	var name x509.HostnameError
	switch {
	case !errors.As(err, &untrusted):
		return err
	case errors.As(err, &name):
		return fmt.Errorf("%w; give --url with the name in the certificate", err)
	case r.ca != "":
		return fmt.Errorf("%w; no CA in %s (--ca, %s) has signed it", err, r.ca, envCA)
	}
	return fmt.Errorf("%w; if it is yours, give --ca a file with the CA that signed its certificate, or set %s", err, envCA)
}

func onThisMachine(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip != nil && ip.IsLoopback()
}

// token returns the source of the token: the flag's file, the variable or the variable's file. It
// is nil if there is none.
func (r *reach) token(getenv func(string) string) (func() (config.Secret, error), error) {
	file := r.tokenFile
	if file == "" {
		if text := strings.TrimSpace(getenv(envToken)); text != "" {
			secret := config.NewSecret(text)
			return func() (config.Secret, error) { return secret, nil }, nil
		}
		file = strings.TrimSpace(getenv(envTokenFile))
	}
	if file == "" {
		return nil, nil
	}
	f, err := config.OpenSecret(file)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	return f.Get, nil
}

// gate has the flags of the commands that only a gateway can answer.
type gate struct{ reach }

// atTheGate explains to users which gateway these commands use.
const atTheGate = `It calls the gateway of --url, else of TIDEMILL_URL, else of the tidemill up that was
started in the same folder.`

func (g *gate) flags(f *flagSet) {
	g.gatewayFlags(f)
	g.data = dataFolder
	f.text(&g.data, "data", "", "FOLDER", "data folder of tidemill up, which also has its addresses")
	f.text(&g.log, "log", "", "LEVEL", "debug, info, warn or error")
	f.fromEnv("data", "TIDEMILL_DATA")
	f.fromEnv("log", "TIDEMILL_LOG")
}

// enter connects to the gateway, and prints a warning while it does not answer. done closes the
// connection.
func (g *gate) enter(ctx context.Context, s *session) (_ *client.Gateway, done func(), err error) {
	at, leave, err := g.enterQuietly(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	worried := worry{who: "the gateway", trouble: at.Trouble}
	stop := worried.watch(s.stderr, "retrying for a while")
	return at, func() { stop(); leave() }, nil
}

// enterQuietly is enter for commands that report delays themselves.
func (g *gate) enterQuietly(ctx context.Context, s *session) (_ *client.Gateway, done func(), err error) {
	log, err := g.logger(s.stderr, slog.LevelWarn)
	if err != nil {
		return nil, nil, err
	}
	w, err := g.choose(s.getenv)
	if err != nil {
		return nil, nil, err
	}
	if running, found, _ := platform.Find(g.data); w.url == "" && found { // started with the same TIDEMILL_KAFKA
		w = way{url: running.URL, running: &running}
	}
	if w.url == "" {
		return nil, nil, usagef("only a gateway knows this, and only TIDEMILL_KAFKA is set: give one by --url or %s", envURL)
	}
	at, err := g.connect(ctx, s, w, log)
	if err != nil {
		return nil, nil, err
	}
	return at, at.Close, nil
}

// gateway connects to a gateway, for what Kafka alone cannot answer.
func (r *reach) gateway(ctx context.Context, s *session) (*client.Gateway, error) {
	log, err := r.logger(s.stderr, slog.LevelWarn)
	if err != nil {
		return nil, err
	}
	w, err := r.choose(s.getenv)
	if err != nil {
		return nil, err
	}
	if w.url == "" {
		return nil, usagef("only a gateway knows this: give it by --url or %s, and leave out --kafka and TIDEMILL_KAFKA", envURL)
	}
	return r.dial(ctx, s, w, log)
}
