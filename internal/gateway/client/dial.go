// Package client is the gateway's client for our commands. It publishes, follows and
// lists over HTTP. Like a Kafka producer it retries without storing an event twice, and
// like a Kafka consumer it continues at its last position.
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

	"tidemill.dev/config"
)

const (
	defaultTimeout = 2 * time.Minute // as long as a producer tries an event
	knockWithin    = 10 * time.Second
	connectWithin  = 10 * time.Second
	waysKept       = 8 // connections, for who asks for several things at once
	agent          = "tidemill"
)

// Options say where the gateway is.
type Options struct {
	URL string // such as https://tidemill.example; a path before ours may follow
	// Token is asked for before each request, so that a file that is replaced
	// counts at once. Nil sends none.
	Token   func() (config.Secret, error)
	CAFile  string        // PEM with the CAs to trust, instead of the system's
	Timeout time.Duration // how long an event is tried; 2 minutes
	Logger  *slog.Logger
}

// Gateway is a gateway that has answered once. It is safe for concurrent use.
type Gateway struct {
	base    *url.URL
	token   func() (config.Secret, error)
	client  *http.Client
	timeout time.Duration
	log     *slog.Logger
	trouble atomic.Pointer[error]
}

// Dial finds the gateway and knocks once: an address with a slip in it shall be
// told now, and not after two minutes of retries.
func Dial(ctx context.Context, o Options) (*Gateway, error) {
	g, err := open(o)
	if err != nil {
		return nil, err
	}
	if err := g.knock(ctx); err != nil {
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
	transport, err := newTransport(o.CAFile)
	if err != nil {
		return nil, err
	}
	g.client = &http.Client{Transport: transport, CheckRedirect: stay}
	return g, g.mayTell()
}

// stay follows no redirect: a POST would become a GET on the way, and the token
// would go to whom nobody named.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// URL is where the gateway is.
func (g *Gateway) URL() string { return g.base.String() }

// Trouble is what the last try met, if it is to be tried again; nil if it was
// answered, or if nothing has come yet.
func (g *Gateway) Trouble() error {
	if err := g.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Close lets the connections go.
func (g *Gateway) Close() { g.client.CloseIdleConnections() }

// knock accepts whatever answer comes, as long as one does: what stands in
// front of a gateway may well hide the page that it asks for.
func (g *Gateway) knock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, knockWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base.JoinPath("healthz").String(), nil)
	if err != nil {
		return fmt.Errorf("reach the gateway: %w", err)
	}
	req.Header.Set("User-Agent", agent)
	res, err := g.client.Do(req)
	if err != nil {
		return fmt.Errorf("reach the gateway: %w", plain(err))
	}
	drain(res.Body)
	return nil
}

// parseURL repeats nothing of a URL that holds a password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case strings.Contains(text, "@"):
		return nil, errors.New("the gateway's URL holds a user or a password; give the URL alone, and a token by TIDEMILL_TOKEN or in a file")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("the gateway's URL %q is none; write it like https://tidemill.example or http://127.0.0.1:8080", text)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the gateway's URL %q has a query or a fragment; leave it out", text)
	case isOurs(u.Path):
		return nil, fmt.Errorf("the gateway's URL %q has the path of a request; leave out the path: %s", text, u.Scheme+"://"+u.Host)
	}
	return u, nil
}

// isOurs tells a path that a gateway serves from one that stands before it.
func isOurs(path string) bool {
	path = strings.TrimRight(path, "/")
	return path == "/events" || path == "/streams" || strings.HasPrefix(path, "/streams/") || strings.HasPrefix(path+"/", "/api/v1/")
}

// plain is a transport's error without the method and the URL around it.
func plain(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

func newTransport(caFile string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectWithin}).DialContext,
		TLSHandshakeTimeout: connectWithin,
		MaxIdleConnsPerHost: waysKept,
		IdleConnTimeout:     time.Minute, // shorter than what servers and balancers allow
		DisableCompression:  true,        // a packed tail would wait for its block to fill
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

// mayTell refuses to tell a token to whoever listens on the way. There is no
// flag against it: a token that was overheard once is everybody's.
func (g *Gateway) mayTell() error {
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

// sign puts the token on a request. A file that cannot be read any more leaves
// the token it last held: it may be being replaced in this moment.
func (g *Gateway) sign(h http.Header) error {
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
		g.log.Warn("the token cannot be read again; the one before is used", "reason", err)
	}
	if !sendable(token) {
		return fmt.Errorf("%w: it has spaces or line breaks inside; is it one token alone?", errToken)
	}
	h.Set("Authorization", "Bearer "+token.Reveal())
	return nil
}

// sendable keeps net/http from refusing a header by repeating its value.
func sendable(token config.Secret) bool {
	return !strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
