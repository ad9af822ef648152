// Package client is the gateway's client for our commands. The client publishes, follows and lists
// over HTTP. Like a Kafka producer, it retries without storing an event twice. Like a Kafka
// consumer, it continues at its last position.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"tidemill.dev/broker/network"
	"tidemill.dev/config"
)

const (
	defaultTimeout = 2 * time.Minute // same as a producer's timeout for an event
	knockWithin    = 10 * time.Second
	connectWithin  = 10 * time.Second
	idleConns      = 8 // idle connections, for callers with parallel requests
	agent          = "tidemill"
)

// Options configure a Gateway.
type Options struct {
	URL string // URL such as https://tidemill.example, perhaps with a path prefix
	// Token is called before each request, so that a replaced token file applies at once. If nil,
	// no token is sent.
	Token   func() (config.Secret, error)
	CAFile  string        // PEM file of trusted CAs, instead of the system's
	Timeout time.Duration // time for which an event is sent again; 0 for 2 minutes
	Network network.Network
	Logger  *slog.Logger
}

// Gateway is a client of a gateway that has answered once. A Gateway is safe for concurrent use.
type Gateway struct {
	base    *url.URL
	token   func() (config.Secret, error)
	client  *http.Client
	timeout time.Duration
	log     *slog.Logger
	trouble atomic.Pointer[error]
}

// Dial connects to the gateway and sends one request, so that a wrong address is reported at once
// and not after two minutes of retries.
func Dial(ctx context.Context, o Options) (*Gateway, error) {
	g, err := open(o)
	if err != nil {
		return nil, err
	}
	if err := g.ping(ctx); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func open(o Options) (*Gateway, error) {
	base, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	g := &Gateway{base: base, token: o.Token, timeout: o.Timeout, log: o.Logger}
	if g.timeout == 0 {
		g.timeout = defaultTimeout
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	transport, err := newTransport(o.CAFile, o.Network)
	if err != nil {
		return nil, err
	}
	g.client = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	return g, g.checkTransport()
}

// noRedirect follows no redirect, because a POST would become a GET, and the token would go to an
// address that the user did not name.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// URL returns the URL of the gateway.
func (g *Gateway) URL() string { return g.base.String() }

// Trouble returns the error of the last attempt while the request is being retried; else nil.
func (g *Gateway) Trouble() error {
	if err := g.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Close closes the idle connections.
func (g *Gateway) Close() { g.client.CloseIdleConnections() }

// ping accepts any answer, because a proxy before the gateway may hide /healthz.
func (g *Gateway) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, knockWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base.JoinPath("healthz").String(), nil)
	if err != nil {
		return fmt.Errorf("reach the gateway: %w", err)
	}
	req.Header.Set("User-Agent", agent)
	res, err := g.client.Do(req)
	if err != nil {
		return fmt.Errorf("reach the gateway: %w", withoutURL(err))
	}
	drainBody(res.Body)
	return nil
}

// parseURL reads the gateway's URL. Its errors do not contain a URL that has a password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case strings.Contains(text, "@"):
		return nil, errors.New("the gateway's URL has a user or a password; give only the URL, and a token by TIDEMILL_TOKEN or in a file")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("the gateway's URL %q is not valid; write it like https://tidemill.example or http://127.0.0.1:8080", text)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the gateway's URL %q has a query or a fragment; leave it out", text)
	case isOurs(u.Path):
		return nil, fmt.Errorf("the gateway's URL %q has the path of a request; leave out the path: %s", text, u.Scheme+"://"+u.Host)
	}
	return u, nil
}

// isOurs reports whether a path is a route of the gateway. Such a path cannot be a proxy's prefix.
func isOurs(path string) bool {
	path = strings.TrimRight(path, "/")
	return path == "/events" || path == "/streams" || strings.HasPrefix(path, "/streams/") || strings.HasPrefix(path+"/", "/api/v1/")
}

// withoutURL removes the method and the URL from a transport's error.
func withoutURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

func newTransport(caFile string, over network.Network) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         over.Dialer(net.Dialer{Timeout: connectWithin}),
		TLSHandshakeTimeout: connectWithin,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     time.Minute, // shorter than the idle timeouts of servers and load balancers
		DisableCompression:  true,        // compressed events of a tail would be delayed until a block is full
		ForceAttemptHTTP2:   true,
	}
	if caFile == "" {
		return t, nil
	}
	text, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the CAs to trust: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read the CAs to trust: %s has no certificate in PEM", caFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool}
	return t, nil
}

// checkTransport returns an error if a token would be sent unencrypted to another machine. No flag
// disables this check, because a token that was read on the way is no longer secret.
func (g *Gateway) checkTransport() error {
	if g.token == nil || g.base.Scheme == "https" || loopback(g.base.Hostname()) {
		return nil
	}
	return fmt.Errorf("a token is not sent to %s in clear text: give an https:// URL, or call without a token", g.base)
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

var errToken = errors.New("read the token")

// addToken adds the token to a request. If the token file cannot be read, the last token is used,
// because the file may just be being replaced.
func (g *Gateway) addToken(h http.Header) error {
	if g.token == nil {
		return nil
	}
	token, err := g.token()
	if token.IsZero() {
		if err == nil {
			err = errors.New("it is empty")
		}
		return fmt.Errorf("%w: %w", errToken, err)
	}
	if err != nil {
		g.log.Warn("client: reading the token again failed; the previous one is used", "reason", err)
	}
	if !isValidToken(token) {
		return fmt.Errorf("%w: it has spaces or line breaks inside; is it only one token?", errToken)
	}
	h.Set("Authorization", "Bearer "+token.Reveal())
	return nil
}

// isValidToken reports whether a token is valid in a header. net/http's error for an invalid header
// would contain the token.
func isValidToken(token config.Secret) bool {
	return !strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
