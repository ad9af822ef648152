package connect

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
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

const (
	DataFolder = ".tidemill"
	ConfigFile = "tidemill.yaml"
)

// Connection has the flags of all commands that connect to Kafka.
type Connection struct {
	Config, Data, Name string
	Addresses          config.Addresses
	Security           broker.Security
	Redis              platform.RedisSecurity
	Log                string
	Place              config.Place // limits of the cluster on the config
}

// Flags adds the flags of the connection.
func (c *Connection) Flags(f *command.FlagSet) {
	f.Text(&c.Config, "config", "f", "FILE", "the config, a file or a folder (default "+ConfigFile+", if there is one)")
	c.Data = DataFolder
	f.Text(&c.Data, "data", "", "FOLDER", "data folder of tidemill up, which also has its addresses")
	f.Text(&c.Name, "name", "", "NAME", "the install's name, instead of the config's")
	f.Text(&c.Addresses.Kafka, "kafka", "", "HOST:PORT", "address of Kafka; several with commas")
	f.Text(&c.Addresses.Redis, "redis", "", "HOST:PORT", "address of Redis")
	f.Text(&c.Addresses.Store, "store", "", "URL", "URL of the object store, such as s3://bucket or file:///folder")
	f.Yes(&c.Security.TLS, "kafka-tls", "use TLS with Kafka")
	f.Text(&c.Security.CAFile, "kafka-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.Text(&c.Security.CertFile, "kafka-cert", "", "FILE", "PEM with the client certificate")
	f.Text(&c.Security.KeyFile, "kafka-key", "", "FILE", "PEM with the key of the client certificate")
	f.Text(&c.Security.ServerName, "kafka-server-name", "", "NAME", "name in Kafka's certificate, if it is not the host")
	f.Text(&c.Security.Mechanism, "kafka-sasl", "", "MECHANISM", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	f.Text(&c.Security.User, "kafka-user", "", "USER", "user for SASL")
	f.Text(&c.Security.PasswordFile, "kafka-password-file", "", "FILE", "file with the password for SASL, read again when it changes")
	f.Yes(&c.Redis.TLS, "redis-tls", "use TLS with Redis")
	f.Text(&c.Redis.CAFile, "redis-ca", "", "FILE", "PEM with the CAs to trust, instead of the system's")
	f.Text(&c.Redis.User, "redis-user", "", "USER", "user of Redis, if it is not the default one")
	f.Text(&c.Redis.PasswordFile, "redis-password-file", "", "FILE", "file with Redis's password, read again when it changes")
	f.Text(&c.Log, "log", "", "LEVEL", "debug, info, warn or error")
	f.ShownEnv("kafka", "TIDEMILL_KAFKA")
	f.ShownEnv("redis", "TIDEMILL_REDIS")
	for flag, variable := range connectionEnv() {
		f.FromEnv(flag, variable)
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
func (c *Connection) open(ctx context.Context, s *command.Session, log *slog.Logger) (*platform.Platform, error) {
	addresses, err := config.ReadAddresses(c.Addresses, s.Getenv)
	if err != nil {
		return nil, err
	}
	conf, err := c.Source().Load()
	if err != nil {
		return nil, err
	}
	c.UseLaptop(addresses)
	return platform.Open(ctx, platform.Options{Config: conf, Addresses: addresses, Security: c.Security, RedisSecurity: c.Redis, Logger: log})
}

// UseLaptop sets the credentials of the embedded servers of the tidemill up of the data folder, for
// those addresses that are its own. Credentials that the user gave are kept.
func (c *Connection) UseLaptop(a config.Addresses) {
	running, found, err := platform.Find(c.Data)
	if err != nil || !found || !running.Embedded {
		return // other servers, which may need no credentials
	}
	kafka, redis := platform.EmbeddedSecurity(c.Data)
	if c.Security == (broker.Security{}) && onLoopback(a.Kafka) == running.Kafka {
		c.Security = kafka
	}
	if c.Redis == (platform.RedisSecurity{}) && onLoopback(a.Redis) == running.Redis {
		c.Redis = redis
	}
}

// onLoopback returns an address as tidemill up writes it.
func onLoopback(address string) string {
	if port, ok := strings.CutPrefix(address, "localhost:"); ok {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// Source returns the source of the config: --config, else tidemill.yaml in the current folder.
func (c *Connection) Source() *ConfigSource {
	source := &ConfigSource{Path: c.Config, name: c.Name}
	if source.Path == "" {
		source.Path, source.optional = ConfigFile, true
	}
	source.reader = config.NewReader(source.Path, c.Place)
	return source
}

// Logger returns a logger of the level --log, else of the given one.
func (c *Connection) Logger(w io.Writer, level slog.Level) (*slog.Logger, error) {
	if c.Log != "" {
		if err := level.UnmarshalText([]byte(c.Log)); err != nil {
			return nil, command.Usagef("--log %q: give debug, info, warn or error", c.Log)
		}
	}
	return telemetry.Logger(w, level), nil
}

// ConfigSource reads the config, again at each change.
type ConfigSource struct {
	Path     string
	name     string // name of the install, instead of the config's
	optional bool   // whether the file may be missing, for the default config
	reader   *config.Reader
	found    atomic.Bool // whether the file has ever existed; atomic, because the watcher may set it while the start reads it

	plain, named *config.Config // newest config as it was read, and with s.name
}

// Shown returns the source as users see it.
func (s *ConfigSource) Shown() string {
	if s.missing() {
		return "the defaults; " + ConfigFile + " is read as soon as it exists"
	}
	return s.Path
}

// Folder returns the folder of the config. Recipes' folders are relative to it. It is absolute,
// because plans are kept, and because a relative path of a program is looked up in the folder in
// which it runs.
func (s *ConfigSource) Folder() string {
	folder := filepath.Dir(s.Path)
	if info, err := os.Stat(s.Path); err == nil && info.IsDir() {
		folder = s.Path
	}
	if absolute, err := filepath.Abs(folder); err == nil {
		return absolute
	}
	return folder // the current folder is gone, which the runs report
}

// Load reads the config. It returns the same pointer while the config does not change. A file that
// existed once and is missing now is an error, because its streams must not get the default's
// retention.
func (s *ConfigSource) Load() (*config.Config, error) {
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
		return nil, command.Usagef("--name: %v", err)
	}
	s.plain, s.named = c, &named
	return s.named, nil
}

func (s *ConfigSource) read() (*config.Config, error) {
	if s.missing() {
		if _, err := os.Stat(s.Path); os.IsNotExist(err) {
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
func (s *ConfigSource) missing() bool { return s.optional && !s.found.Load() }

// These variables replace the flags of the same meaning.
const (
	EnvURL       = "TIDEMILL_URL"
	EnvToken     = "TIDEMILL_TOKEN"
	envTokenFile = "TIDEMILL_TOKEN_FILE"
	envCA        = "TIDEMILL_CA"
)

// Reach has the flags of the commands that publish and read, through a gateway or directly on
// Kafka.
type Reach struct {
	Connection
	url, tokenFile, ca string

	set *command.FlagSet
}

// Flags adds the flags of a gateway and those of Kafka.
func (r *Reach) Flags(f *command.FlagSet) {
	r.gatewayFlags(f)
	r.Connection.Flags(f)
}

func (r *Reach) gatewayFlags(f *command.FlagSet) {
	r.set = f
	f.Text(&r.url, "url", "", "URL", "the gateway, such as https://tidemill.example")
	f.Text(&r.tokenFile, "token-file", "", "FILE", "file with the token for the gateway, read again when it changes; or set "+EnvToken)
	f.Text(&r.ca, "ca", "", "FILE", "PEM with the CAs to trust at the gateway, instead of the system's")
	f.FromEnv("ca", envCA)
	f.ShownEnv("url", EnvURL)
	f.ShownEnv("token-file", envTokenFile)
}

// Way is the chosen gateway or Kafka.
type Way struct {
	URL     string            // URL of the gateway; empty for Kafka
	running *platform.Running // the tidemill up that wrote the gateway's address; nil if a flag or variable named it
}

// Where explains the choice to users.
func (*Reach) Where() string { return WhereTo }

// WhereTo is the end of the help text of a command that publishes or reads.
const WhereTo = `It calls the gateway of --url, else of TIDEMILL_URL, else of the tidemill up that was
started in the same folder. With --kafka it connects directly to Kafka. If no gateway
is given, TIDEMILL_KAFKA does the same.`

// Choose chooses between gateway and Kafka. Flags come before variables, and a gateway before
// Kafka, because more users can reach a gateway.
func (r *Reach) Choose(getenv func(string) string) (Way, error) {
	byEnv := strings.TrimSpace(getenv(EnvURL))
	switch {
	case r.Addresses.Kafka != "" && r.url != "":
		return Way{}, command.Usagef("--url and --kafka are both given: --url uses a gateway, --kafka does not; leave one out")
	case r.Addresses.Kafka != "":
		return Way{}, r.refuse("is for a gateway, and --kafka uses none", isGatewayFlag)
	case r.url == "" && byEnv == "" && strings.TrimSpace(getenv("TIDEMILL_KAFKA")) != "":
		return Way{}, r.refuse("is for a gateway, and only TIDEMILL_KAFKA is set; give --url too", isGatewayFlag)
	}
	if err := r.refuse("is for Kafka, and this command calls a gateway: leave it out, or give --kafka", isKafkaFlag); err != nil {
		return Way{}, err
	}
	if r.url != "" || byEnv != "" {
		return Way{URL: cmp.Or(r.url, byEnv)}, nil
	}
	running, found, err := platform.Find(r.Data)
	if err == nil && !found {
		err = fmt.Errorf("find Tidemill: no tidemill up runs on the data folder %s (--data, TIDEMILL_DATA), and neither a gateway (--url, %s) nor Kafka (--kafka, TIDEMILL_KAFKA) is given; start it with tidemill up, or give an address", r.Data, EnvURL)
	}
	return Way{URL: running.URL, running: &running}, err
}

// refuse returns an error for a flag that would have no effect.
func (r *Reach) refuse(why string, idle func(long string) bool) error {
	var refused error
	r.set.Visit(func(f *pflag.Flag) {
		if refused == nil && idle(f.Name) {
			refused = command.Usagef("%s %s", command.Dashed(f.Name), why)
		}
	})
	return refused
}

func isGatewayFlag(long string) bool { return long == "token-file" || long == "ca" }

func isKafkaFlag(long string) bool {
	return long == "config" || long == "name" || long == "redis" || strings.HasPrefix(long, "kafka-")
}

// Open connects to the chosen gateway or Kafka.
func (r *Reach) Open(ctx context.Context, s *command.Session) (Target, error) {
	log, err := r.Logger(s.Stderr, slog.LevelWarn)
	if err != nil {
		return nil, err
	}
	w, err := r.Choose(s.Getenv)
	if err != nil {
		return nil, err
	}
	if w.URL == "" {
		p, err := r.Connection.open(ctx, s, log)
		if err != nil {
			return nil, err
		}
		return &kafkaTarget{p: p, out: s.Stderr}, nil
	}
	g, err := r.connect(ctx, s, w, log)
	if err != nil {
		return nil, err
	}
	return &gatewayTarget{g: g, out: s.Stderr}, nil
}

// connect is dial, with a hint if tidemill up left the address and does not run any more.
func (r *Reach) connect(ctx context.Context, s *command.Session, w Way, log *slog.Logger) (*client.Gateway, error) {
	g, err := r.dial(ctx, s, w, log)
	if w.running != nil && errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; that address is from %s, written by tidemill up as process %d: does it still run? Start it again, or remove the file",
			err, platform.AddressFile(r.Data), w.running.PID)
	}
	return g, err
}

// dial connects to a gateway. It sends a token only if the user named the gateway or if the gateway
// is on this machine: the address file may have come with a folder of another person.
func (r *Reach) dial(ctx context.Context, s *command.Session, w Way, log *slog.Logger) (*client.Gateway, error) {
	token, err := r.token(s.Getenv)
	if err != nil {
		return nil, err
	}
	if token != nil && w.running != nil && !onThisMachine(w.URL) {
		return nil, fmt.Errorf("%s has the address %s of tidemill up, which is another machine, and its owner would get the token: if it is yours, give it by --url",
			platform.AddressFile(r.Data), w.URL)
	}
	g, err := client.Dial(ctx, client.Options{URL: w.URL, Token: token, CAFile: r.ca, Network: s.Network, Logger: log})
	return g, r.explainTLS(err)
}

// explainTLS adds to a TLS error how to trust the server.
func (r *Reach) explainTLS(err error) error {
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
func (r *Reach) token(getenv func(string) string) (func() (config.Secret, error), error) {
	file := r.tokenFile
	if file == "" {
		if text := strings.TrimSpace(getenv(EnvToken)); text != "" {
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

// Gate has the flags of the commands that only a gateway can answer.
type Gate struct{ Reach }

// Where explains to users which gateway these commands use.
func (*Gate) Where() string {
	return `It calls the gateway of --url, else of TIDEMILL_URL, else of the tidemill up that was
started in the same folder.`
}

// Flags adds the flags of a gateway.
func (g *Gate) Flags(f *command.FlagSet) {
	g.gatewayFlags(f)
	g.Data = DataFolder
	f.Text(&g.Data, "data", "", "FOLDER", "data folder of tidemill up, which also has its addresses")
	f.Text(&g.Log, "log", "", "LEVEL", "debug, info, warn or error")
	f.FromEnv("data", "TIDEMILL_DATA")
	f.FromEnv("log", "TIDEMILL_LOG")
}

// Enter connects to the gateway, and prints a warning while it does not answer. done closes the
// connection.
func (g *Gate) Enter(ctx context.Context, s *command.Session) (_ *client.Gateway, done func(), err error) {
	at, leave, err := g.EnterQuietly(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	worried := show.Worry{Who: "the gateway", Trouble: at.Trouble}
	stop := worried.Watch(s.Stderr, "retrying for a while")
	return at, func() { stop(); leave() }, nil
}

// EnterQuietly is enter for commands that report delays themselves.
func (g *Gate) EnterQuietly(ctx context.Context, s *command.Session) (_ *client.Gateway, done func(), err error) {
	log, err := g.Logger(s.Stderr, slog.LevelWarn)
	if err != nil {
		return nil, nil, err
	}
	w, err := g.Choose(s.Getenv)
	if err != nil {
		return nil, nil, err
	}
	if running, found, _ := platform.Find(g.Data); w.URL == "" && found { // started with the same TIDEMILL_KAFKA
		w = Way{URL: running.URL, running: &running}
	}
	if w.URL == "" {
		return nil, nil, command.Usagef("only a gateway knows this, and only TIDEMILL_KAFKA is set: give one by --url or %s", EnvURL)
	}
	at, err := g.connect(ctx, s, w, log)
	if err != nil {
		return nil, nil, err
	}
	return at, at.Close, nil
}
