package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"syscall"

	"tidemill.dev/config"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/remote"
)

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
	for _, long := range r.set.order {
		if r.set.given[long] && idle(long) {
			return usagef("%s %s", dashed(long), why)
		}
	}
	return nil
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
func (r *reach) knock(ctx context.Context, s *session, w way, log *slog.Logger) (*remote.Gateway, error) {
	g, err := r.dial(ctx, s, w, log)
	if w.running != nil && errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; that address is from %s, written by tidemill up as process %d: does it still run? Start it again, or remove the file",
			err, platform.AddressFile(r.data), w.running.PID)
	}
	return g, err
}

// dial tells the token to a gateway that was named, or that runs on this
// machine. The folder's addresses may come with anybody's files.
func (r *reach) dial(ctx context.Context, s *session, w way, log *slog.Logger) (*remote.Gateway, error) {
	token, err := r.token(s.getenv)
	if err != nil {
		return nil, err
	}
	if token != nil && w.running != nil && !onThisMachine(w.url) {
		return nil, fmt.Errorf("%s says that tidemill up is at %s, which is not this machine, and whoever wrote that file would get the token: if it is yours, name it with --url",
			platform.AddressFile(r.data), w.url)
	}
	g, err := remote.Dial(ctx, remote.Options{URL: w.url, Token: token, CAFile: r.ca, Logger: log})
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
