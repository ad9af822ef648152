package cli

import (
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

// connection is the flags of everything that speaks to Kafka.
type connection struct {
	config, data, name string
	addresses          config.Addresses
	security           broker.Security
	redis              platform.RedisSecurity
	log                string
	place              config.Place // where the config applies
}

func (c *connection) flags(f *flagSet) {
	f.text(&c.config, "config", "f", "FILE", "the config, a file or a folder (default "+configFile+", if there is one)")
	c.data = dataFolder
	f.text(&c.data, "data", "", "FOLDER", "where tidemill up keeps its data and its addresses")
	f.text(&c.name, "name", "", "NAME", "the install's name, instead of the config's")
	f.text(&c.addresses.Kafka, "kafka", "", "HOST:PORT", "where Kafka is; several with commas")
	f.text(&c.addresses.Redis, "redis", "", "HOST:PORT", "where Redis is")
	f.text(&c.addresses.Store, "store", "", "URL", "where the object store is, such as s3://bucket or file:///folder")
	f.yes(&c.security.TLS, "kafka-tls", "speak TLS with Kafka")
	f.text(&c.security.CAFile, "kafka-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.text(&c.security.CertFile, "kafka-cert", "", "FILE", "PEM with our certificate")
	f.text(&c.security.KeyFile, "kafka-key", "", "FILE", "PEM with our certificate's key")
	f.text(&c.security.ServerName, "kafka-server-name", "", "NAME", "name in Kafka's certificate, if not the host dialed")
	f.text(&c.security.Mechanism, "kafka-sasl", "", "MECHANISM", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	f.text(&c.security.User, "kafka-user", "", "USER", "user for SASL")
	f.text(&c.security.PasswordFile, "kafka-password-file", "", "FILE", "file with the password for SASL, read again when it changes")
	f.yes(&c.redis.TLS, "redis-tls", "speak TLS with Redis")
	f.text(&c.redis.CAFile, "redis-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.text(&c.redis.User, "redis-user", "", "USER", "user of Redis, if not the default one")
	f.text(&c.redis.PasswordFile, "redis-password-file", "", "FILE", "file with Redis's password, read again when it changes")
	f.text(&c.log, "log", "", "LEVEL", "debug, info, warn or error")
	for flag, variable := range connectionEnv() {
		f.fromEnv(flag, variable)
	}
}

// connectionEnv names the variable for each flag. The addresses are not
// among them: config.ReadAddresses reads theirs, and checks them.
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

// open reaches the Kafka that the flags or the environment name.
func (c *connection) open(ctx context.Context, s *session, log *slog.Logger) (*platform.Platform, error) {
	addresses, err := config.ReadAddresses(c.addresses, s.getenv)
	if err != nil {
		return nil, err
	}
	conf, err := c.source().load()
	if err != nil {
		return nil, err
	}
	return platform.Open(ctx, platform.Options{Config: conf, Addresses: addresses, Security: c.security, RedisSecurity: c.redis, Logger: log})
}

// source is where the config is read from: what was said, else the file that
// lies here.
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

// configSource is where a config comes from, time and again.
type configSource struct {
	path     string
	name     string // instead of the config's own
	optional bool   // no file is the default config
	reader   *config.Reader
	found    atomic.Bool // there was a file once; the watcher may find it while a start still tells of it

	plain, named *config.Config // as it was read last, and with the name
}

// shown is the source as people are told of it.
func (s *configSource) shown() string {
	if s.missing() {
		return "the defaults; " + configFile + " is read as soon as there is one"
	}
	return s.path
}

// folder is where the config lies, which recipes' folders are relative to.
func (s *configSource) folder() string {
	if info, err := os.Stat(s.path); err == nil && info.IsDir() {
		return s.path
	}
	return filepath.Dir(s.path)
}

// load reads the config; what has not changed is the same config. A file that
// was there once and is gone is an error: its streams must not fall back to the
// default's retention.
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

// missing tells whether there may be no file yet.
func (s *configSource) missing() bool { return s.optional && !s.found.Load() }

// The variables that stand for the flags of the same meaning.
const (
	envURL       = "TIDEMILL_URL"
	envToken     = "TIDEMILL_TOKEN"
	envTokenFile = "TIDEMILL_TOKEN_FILE"
	envCA        = "TIDEMILL_CA"
)

// reach is the flags of the commands that publish and read, through a gateway
// or straight at Kafka.
type reach struct {
	connection
	url, tokenFile, ca string

	set *flagSet
}

// reached lets completion ask the gateway that the command would ask.
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
}

// way is what a call has chosen.
type way struct {
	url     string            // of the gateway; empty is Kafka
	running *platform.Running // that told us of the gateway, if one did
}

// whereTo explains the choice to people.
const whereTo = `It speaks to the gateway: the one that --url names, else TIDEMILL_URL, else that of
a tidemill up that was started in the same folder. With --kafka it goes straight to
Kafka, and so it does with TIDEMILL_KAFKA where no gateway is named.`

// choose decides where to go: flags before variables, and a gateway before
// Kafka, because more may reach it.
func (r *reach) choose(getenv func(string) string) (way, error) {
	byEnv := strings.TrimSpace(getenv(envURL))
	switch {
	case r.addresses.Kafka != "" && r.url != "":
		return way{}, usagef("--url and --kafka are both given: one is the gateway, the other goes past it; leave one out")
	case r.addresses.Kafka != "":
		return way{}, r.refuse("is for a gateway, and --kafka goes past it", isGatewayFlag)
	case r.url == "" && byEnv == "" && strings.TrimSpace(getenv("TIDEMILL_KAFKA")) != "":
		return way{}, r.refuse("is for a gateway, and only TIDEMILL_KAFKA is set; give --url too", isGatewayFlag)
	}
	if err := r.refuse("is for Kafka, and this goes to a gateway, which knows it: leave it out, or give --kafka", isKafkaFlag); err != nil {
		return way{}, err
	}
	if r.url != "" || byEnv != "" {
		return way{url: first(r.url, byEnv)}, nil
	}
	running, found, err := platform.Find(r.data)
	if err == nil && !found {
		err = fmt.Errorf("find Tidemill: no tidemill up runs on the data folder %s, and neither a gateway (--url, %s) nor Kafka (--kafka, TIDEMILL_KAFKA) is named; start one with tidemill up, or say where it is", r.data, envURL)
	}
	return way{url: running.URL, running: &running}, err
}

// refuse finds a flag that would silently do nothing.
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

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// open reaches what was chosen.
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
	g, err := r.knock(ctx, s, w, log)
	if err != nil {
		return nil, err
	}
	return &gatewayTarget{g: g, out: s.stderr}, nil
}

// knock finds the gateway that was chosen.
func (r *reach) knock(ctx context.Context, s *session, w way, log *slog.Logger) (*client.Gateway, error) {
	g, err := r.dial(ctx, s, w, log)
	if w.running != nil && errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; that address is from %s, written by tidemill up as process %d: does it still run? Start it again, or remove the file",
			err, platform.AddressFile(r.data), w.running.PID)
	}
	return g, err
}

// dial tells the token to a gateway that was named, or that runs on this
// machine. The folder's addresses may come with anybody's files.
func (r *reach) dial(ctx context.Context, s *session, w way, log *slog.Logger) (*client.Gateway, error) {
	token, err := r.token(s.getenv)
	if err != nil {
		return nil, err
	}
	if token != nil && w.running != nil && !onThisMachine(w.url) {
		return nil, fmt.Errorf("%s says that tidemill up is at %s, which is not this machine, and its owner would get the token: if it is yours, name it with --url",
			platform.AddressFile(r.data), w.url)
	}
	g, err := client.Dial(ctx, client.Options{URL: w.url, Token: token, CAFile: r.ca, Logger: log})
	return g, r.distrust(err)
}

// distrust says how a command is told whom to trust.
func (r *reach) distrust(err error) error {
	var untrusted *tls.CertificateVerificationError
	var name x509.HostnameError
	switch {
	case !errors.As(err, &untrusted):
		return err
	case errors.As(err, &name):
		return fmt.Errorf("%w; name it by --url as its certificate does", err)
	case r.ca != "":
		return fmt.Errorf("%w; %s (--ca, %s) does not speak for it", err, r.ca, envCA)
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

// token is where the token comes from, nil if there is none: the flag's file,
// the variable, or the variable's file.
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
