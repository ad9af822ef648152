package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// envAccess replaces --access.
const envAccess = "TIDEMILL_ACCESS"

const grace = 25 * time.Second // less than the 30 s that Kubernetes gives a pod; internal/platform divides it

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

// otherCA is printed for a file that only the user knows.
const otherCA = "FILE"

// trust returns the gateway's address as its certificate names it, and the CA file that clients
// need. The file is empty if the system trusts the certificate, and the certificate itself if it is
// self-signed.
func (d *doorFlags) trust(door string) (named, ca string) {
	pair, err := tls.LoadX509KeyPair(d.cert, d.key)
	at, parseErr := url.Parse(door)
	if err != nil || parseErr != nil { // the files may be being replaced
		return door, otherCA
	}
	if pair.Leaf.VerifyHostname(at.Hostname()) != nil && len(pair.Leaf.DNSNames) > 0 && !strings.HasPrefix(pair.Leaf.DNSNames[0], "*") {
		at.Host = net.JoinHostPort(pair.Leaf.DNSNames[0], at.Port())
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Intermediates: between}); err == nil {
		return at.String(), ""
	}
	own := x509.NewCertPool()
	text, _ := os.ReadFile(d.cert) // an unreadable file adds no certificate
	own.AppendCertsFromPEM(text)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: own, Intermediates: between}); err == nil {
		return at.String(), d.cert
	}
	return at.String(), otherCA
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

func telemetryOf(s *session, service string) *telemetry.Options {
	return &telemetry.Options{Version: thisBuild().Version, Getenv: s.getenv, Name: service}
}

// closePlatform runs the stop order, even though the context has ended, with a time limit.
func closePlatform(ctx context.Context, p *platform.Platform) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return p.Close(ctx)
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
