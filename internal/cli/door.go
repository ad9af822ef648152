package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/platform"
)

const (
	listenAt     = "127.0.0.1:8080"
	longestDrain = 15 * time.Second // of grace; the stop order in internal/platform has the arithmetic
)

// doorFlags say how the gateway is opened.
type doorFlags struct {
	listen, access, cert, key string
	maxEvent                  string
	drain                     time.Duration
}

func (d *doorFlags) flags(f *flagSet) {
	f.text(&d.listen, "listen", "", "HOST:PORT", "where to serve HTTP; port 0 is a free one")
	f.text(&d.access, "access", "", "FILE", "who may do what, by their tokens; without it everybody may everything, on loopback alone")
	f.text(&d.cert, "tls-cert", "", "FILE", "PEM with the certificate to serve HTTPS with, read again when it changes")
	f.text(&d.key, "tls-key", "", "FILE", "PEM with the certificate's key")
	f.text(&d.maxEvent, "max-event", "", "SIZE", "the largest event to take, such as 512KiB (default 1MiB)")
	f.span(&d.drain, "drain-delay", "DURATION", "at the stop, answer on for so long while readiness fails, so that balancers turn away first")
	for flag, variable := range map[string]string{
		"listen": "TIDEMILL_LISTEN", "access": envAccess, "tls-cert": "TIDEMILL_TLS_CERT",
		"tls-key": "TIDEMILL_TLS_KEY", "max-event": "TIDEMILL_MAX_EVENT", "drain-delay": "TIDEMILL_DRAIN_DELAY",
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
		return usagef("--drain-delay %s: give 0s to %s, so that the rest of the stop fits into the 30 s that a pod is given", d.drain, longestDrain)
	}
	if _, err := parseSize(d.maxEvent); err != nil {
		return usagef("--max-event %q: %v", d.maxEvent, err)
	}
	return nil
}

// check comes before anything is opened: a start that is refused leaves no
// folder and no streams behind.
func (d *doorFlags) check() error {
	if d.access != "" {
		if _, err := config.LoadAccess(d.access); err != nil {
			return fmt.Errorf("read who has access: %w", err)
		}
	}
	return gateway.Check(d.listen, d.cert, d.key, d.access != "")
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

// url is how a client on this machine calls the door. One that listens on every
// address is not called by that.
func (d *doorFlags) url(g *gateway.Gateway) string {
	scheme := "http"
	if d.cert != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(g.Addr()) // it is a listener's
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// serve answers until the context ends or the server fails. What has begun goes
// on after that: the stop order waits for it.
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

// parseSize reads a number of bytes, with the units that size writes. Nothing
// is 0.
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
