package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/telemetry"
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
