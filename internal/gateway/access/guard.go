package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/config"
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
			Detail: fmt.Sprintf("%s is not applied, and its last valid version stays in force: %v", g.path, refused)}
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

const (
	scheme = "Bearer"
	// maxToken is more than a JWT of an issuer that lists every group has.
	maxToken = 16 << 10
)

// bearer takes the token out of an Authorization header, as RFC 6750 has it.
func bearer(header string) (string, error) {
	if header == "" {
		return "", ErrNoToken
	}
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) || header[len(scheme)] != ' ' {
		return "", fmt.Errorf("%w: give it as `Authorization: Bearer TOKEN`", ErrMalformed)
	}
	token := strings.TrimLeft(header[len(scheme):], " ")
	switch {
	case token == "":
		return "", fmt.Errorf("%w: nothing stands behind Bearer", ErrMalformed)
	case len(token) > maxToken:
		return "", fmt.Errorf("%w: it is longer than %d KiB", ErrMalformed, maxToken>>10)
	case !isToken(token):
		return "", fmt.Errorf("%w: it has other letters than a token may", ErrMalformed)
	}
	return token, nil
}

// isToken holds a text to the grammar of a bearer token: letters, digits and
// some signs, then perhaps =.
func isToken(s string) bool {
	s = strings.TrimRight(s, "=")
	for i := range len(s) {
		c := s[i]
		switch c {
		case '-', '.', '_', '~', '+', '/':
			continue
		}
		if c|0x20-'a' >= 26 && c-'0' >= 10 {
			return false
		}
	}
	return s != ""
}

// Why there is no caller. None of them tells anything of a token that is not
// its bearer's to know.
var (
	// ErrNoToken is a request without an Authorization header.
	ErrNoToken = errors.New("no token was given: send the header Authorization: Bearer TOKEN")
	// ErrBadToken is all of the following but ErrIssuerAway, and every other
	// fault of a token.
	ErrBadToken = errors.New("the token is refused")
	// ErrMalformed is a header that holds no token.
	ErrMalformed = fmt.Errorf("%w: it is malformed", ErrBadToken)
	// ErrUnknown is a token that the access file does not list, or no longer.
	ErrUnknown = fmt.Errorf("%w: it is not known here", ErrBadToken)
	// ErrExpired is a token whose time is over.
	ErrExpired = fmt.Errorf("%w: it has expired", ErrBadToken)
	// ErrIssuerAway is a JWT that may be good: its issuer could not be asked
	// for its keys. The same request may succeed later.
	ErrIssuerAway = errors.New("the issuer of the token cannot be asked for its keys")
)

const (
	// tokenPrefix tells our tokens from JWTs, and lets those who look for
	// leaked secrets find ours.
	tokenPrefix = "tm_"
	tokenBytes  = 32
)

// hash is of a whole token or JWT.
//
// A plain SHA-256 would be too fast for a password. Our tokens are 256 random
// bits, which nobody finds by trying, however fast; so a slow hash would buy
// nothing and cost every request milliseconds.
type hash = [sha256.Size]byte

func hashOf(token string) hash { return sha256.Sum256([]byte(token)) }

// NewToken makes a token and its hash. Nothing keeps the token.
func NewToken() (token config.Secret, sum [sha256.Size]byte) {
	var secret [tokenBytes]byte
	rand.Read(secret[:]) // never fails: the program ends if the system has no randomness
	text := tokenPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(secret[:]))
	return config.NewSecret(text), hashOf(text)
}

// holder is who has a token.
type holder struct {
	caller  *Caller
	expires time.Time // zero is never
}

func holders(tokens []config.Token) map[hash]holder {
	all := make(map[hash]holder, len(tokens))
	for _, t := range tokens {
		all[t.Hash] = holder{&Caller{name: t.Name, grants: []grant{newGrant(t.Rights)}}, t.Expires}
	}
	return all
}

// holderOf finds who has a token. How long a look-up takes may depend on how
// much of a hash fits, but who sends a token cannot choose its hash: what could
// be learned from the clock is at most a hash, and a hash is no token. So a
// look-up by hash leaks nothing, whatever the map does.
func (b *book) holderOf(token string, now time.Time) (*Caller, error) {
	h, ok := b.holders[hashOf(token)]
	if !ok {
		return nil, fmt.Errorf("%w: it may have been removed from the access file; ask for a new one", ErrUnknown)
	}
	if !h.expires.IsZero() && !now.Before(h.expires) {
		return nil, fmt.Errorf("%w at %s; ask for a new one", ErrExpired, h.expires.Format(time.RFC3339))
	}
	return h.caller, nil
}
