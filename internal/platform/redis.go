package platform

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev/config"
)

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
