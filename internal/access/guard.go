package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/api"
)

// Options say how to open a Guard. All of them may be left out.
type Options struct {
	Logger *slog.Logger
	// HTTPClient asks the issuer; its transport says which CAs to trust.
	HTTPClient *http.Client
	Now        func() time.Time
}

// Guard knows who asks, by an access file that it follows. It is safe for
// concurrent use.
type Guard struct {
	path    string
	log     *slog.Logger
	now     func() time.Time
	courier *courier

	book      atomic.Pointer[book]
	stop      context.CancelFunc
	following sync.WaitGroup

	mu      sync.Mutex
	refused error // why the file as it is now does not apply
}

// Open reads an access file and follows its changes until Close. The context
// bounds nothing after Open.
func Open(ctx context.Context, path string, o Options) (*Guard, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	seen := look(path)
	access, err := seen.parse(path)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	g := &Guard{path: path, log: o.Logger, now: o.Now, courier: newCourier(o.HTTPClient, ctx.Done()), stop: stop}
	g.apply(access)
	g.following.Go(func() { g.follow(ctx, seen.print) })
	return g, nil
}

// Close ends the following. Who calls after it is judged by the file as it was.
func (g *Guard) Close(context.Context) error {
	g.stop()
	g.following.Wait() // it does nothing that takes time
	g.courier.client.CloseIdleConnections()
	return nil
}

// Caller says who asks, by a request's Authorization header. Its error is
// [ErrNoToken], [ErrBadToken] or [ErrIssuerAway]; none holds any of the token.
func (g *Guard) Caller(ctx context.Context, authorization string) (*Caller, error) {
	token, err := bearer(authorization)
	if err != nil {
		return nil, err
	}
	return g.book.Load().caller(ctx, token, g.now())
}

// Check says whether the file applies and the issuer can be asked. Neither
// fault keeps the door from working for those whom it knows.
func (g *Guard) Check() api.Check {
	b := g.book.Load()
	g.mu.Lock()
	refused := g.refused
	g.mu.Unlock()
	if refused != nil {
		return api.Check{Name: "access", Status: api.Degraded,
			Detail: fmt.Sprintf("%s does not apply and what it said before stays in force: %v", g.path, refused)}
	}
	if b.issuer != nil {
		if err := b.issuer.fault(); err != nil {
			return api.Check{Name: "access", Status: api.Degraded,
				Detail: fmt.Sprintf("%v; tokens of %s are not concerned", err, g.path)}
		}
	}
	return api.Check{Name: "access", Status: api.OK, Detail: fmt.Sprintf("%s, tokens: %d", g.path, len(b.holders))}
}

// apply has a file's content count from now on. The same issuer stays, with the
// keys it has given.
func (g *Guard) apply(a *config.Access) {
	before := g.book.Load()
	g.book.Store(newBook(a, func(url string) *issuer {
		if before != nil && before.issuer != nil && before.issuer.url == url {
			return before.issuer
		}
		return newIssuer(url, g.courier, g.now)
	}))
}
