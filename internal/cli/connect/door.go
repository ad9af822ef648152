package connect

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
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// EnvAccess replaces --access.
const EnvAccess = "TIDEMILL_ACCESS"

const grace = 25 * time.Second // less than the 30 s that Kubernetes gives a pod; internal/platform divides it

const (
	ListenAt     = "127.0.0.1:8080"
	LongestDrain = 15 * time.Second // a part of the grace; internal/platform has the sum of the stop order
)

// DoorFlags configure the HTTP server of a gateway.
type DoorFlags struct {
	Listen, grpc      string
	Access, Cert, Key string
	insecure          bool
	maxEvent          string
	Drain             time.Duration
}

// Flags adds the flags of the server.
func (d *DoorFlags) Flags(f *command.FlagSet) {
	f.Text(&d.Listen, "listen", "", "HOST:PORT", "address to serve HTTP at; port 0 is a free one")
	f.Text(&d.grpc, "listen-grpc", "", "HOST:PORT", "address to serve the Open Inference Protocol at over gRPC; port 0 is a free one (default none)")
	f.Text(&d.Access, "access", "", "FILE", "file with the rights of the callers, by token; without it every caller has all rights, on loopback only")
	f.Text(&d.Cert, "tls-cert", "", "FILE", "PEM with the certificate for HTTPS, read again when it changes")
	f.Text(&d.Key, "tls-key", "", "FILE", "PEM with the certificate's key")
	f.Yes(&d.insecure, "insecure-http", "plain HTTP beyond this machine is intended, because a proxy ends TLS; without it a start warns")
	f.Text(&d.maxEvent, "max-event", "", "SIZE", "size of the largest event to accept, such as 512KiB (default 1MiB)")
	f.Span(&d.Drain, "drain-delay", "DURATION", "time to keep answering at shutdown while /readyz fails, so that load balancers switch first")
	for flag, variable := range map[string]string{
		"listen": "TIDEMILL_LISTEN", "listen-grpc": "TIDEMILL_LISTEN_GRPC", "access": EnvAccess, "tls-cert": "TIDEMILL_TLS_CERT",
		"tls-key": "TIDEMILL_TLS_KEY", "insecure-http": "TIDEMILL_INSECURE_HTTP", "max-event": "TIDEMILL_MAX_EVENT", "drain-delay": "TIDEMILL_DRAIN_DELAY",
	} {
		f.FromEnv(flag, variable)
	}
}

// CheckListen refuses a value of a flag that is not an address to listen at.
func CheckListen(flag, at string) error {
	_, port, err := net.SplitHostPort(at)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return command.Usagef("--%s %q: write it like %s; a port is 0, which is a free one, to 65535", flag, at, ListenAt)
	}
	return nil
}

// Accept checks the flags without reading files.
func (d *DoorFlags) Accept() error {
	if err := CheckListen("listen", d.Listen); err != nil {
		return err
	}
	if d.grpc != "" {
		if err := CheckListen("listen-grpc", d.grpc); err != nil {
			return err
		}
	}
	if (d.Cert == "") != (d.Key == "") {
		return command.Usagef("only one of --tls-cert and --tls-key is given: HTTPS needs both")
	}
	if d.Drain < 0 || d.Drain > LongestDrain {
		return command.Usagef("--drain-delay %s: give 0s to %s, so that the rest of the shutdown fits into the 30 s that a pod has", d.Drain, LongestDrain)
	}
	if _, err := ParseSize(d.maxEvent); err != nil {
		return command.Usagef("--max-event %q: %v", d.maxEvent, err)
	}
	return nil
}

// Check runs before anything is opened, so that a refused start creates no folder and no streams.
func (d *DoorFlags) Check() error {
	if d.Access != "" {
		if _, err := config.LoadAccess(d.Access); err != nil {
			return fmt.Errorf("read the access file: %w", err)
		}
	}
	return gateway.Check(d.Listen, d.grpc, d.Cert, d.Key, d.Access != "")
}

// WarnOfPlainHTTP warns if tokens cross the network unencrypted and no flag says that this is intended.
func (d *DoorFlags) WarnOfPlainHTTP(log *slog.Logger) {
	at, err := net.ResolveTCPAddr("tcp", d.Listen)
	if err != nil || at.IP.IsLoopback() || d.Cert != "" || d.insecure {
		return
	}
	log.Warn("gateway: tokens and events cross the network by plain HTTP; a machine on the way can read a token and use it: give --tls-cert and --tls-key, "+
		"listen on 127.0.0.1, or give --insecure-http if a proxy ends TLS", "address", d.Listen)
}

// Open opens a gateway that listens; Serve answers requests.
func (d *DoorFlags) Open(ctx context.Context, p *platform.Platform) (*gateway.Gateway, error) {
	limit, err := ParseSize(d.maxEvent)
	if err != nil {
		return nil, err
	}
	return p.Gateway(ctx, platform.GatewayOptions{
		Listen: d.Listen, ListenGRPC: d.grpc, CertFile: d.Cert, KeyFile: d.Key, AccessFile: d.Access,
		Limits: gateway.Limits{Event: limit, DrainDelay: d.Drain},
	})
}

// URL returns the gateway's address for clients on this machine. If it listens on all addresses, it
// is the loopback address.
func (d *DoorFlags) URL(g *gateway.Gateway) string {
	scheme := "http"
	if d.Cert != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(g.Addr()) // a listener's address is valid
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// GRPCLine shows the address for gRPC, if there is one.
func GRPCLine(g *gateway.Gateway) string {
	if g.AddrGRPC() == "" {
		return ""
	}
	return "  grpc    " + g.AddrGRPC() + "\n"
}

// otherCA is printed for a file that only the user knows.
const otherCA = "FILE"

// Trust returns the gateway's address as its certificate names it, and the CA file that clients
// need. The file is empty if the system trusts the certificate, and the certificate itself if it is
// self-signed.
func (d *DoorFlags) Trust(door string) (named, ca string) {
	pair, err := tls.LoadX509KeyPair(d.Cert, d.Key)
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
	text, _ := os.ReadFile(d.Cert) // an unreadable file adds no certificate
	own.AppendCertsFromPEM(text)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: own, Intermediates: between}); err == nil {
		return at.String(), d.Cert
	}
	return at.String(), otherCA
}

// Serve serves until the context ends or the server fails. Open requests continue after that; the
// stop order waits for them.
func Serve(ctx context.Context, g *gateway.Gateway) error {
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(context.WithoutCancel(ctx)) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// TelemetryOf returns the telemetry of a process; an empty service has the usual name.
func TelemetryOf(s *command.Session, service string) *telemetry.Options {
	return &telemetry.Options{Version: command.ThisBuild().Version, Getenv: s.Getenv, Name: service}
}

// ClosePlatform runs the stop order, even though the context has ended, with a time limit.
func ClosePlatform(ctx context.Context, p *platform.Platform) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return p.Close(ctx)
}

// ParseSize parses a number of bytes, with the units of size. Empty is 0.
func ParseSize(text string) (int, error) {
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
