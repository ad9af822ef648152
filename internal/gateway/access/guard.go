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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/config"
)

// Options configure a Guard. All are optional.
type Options struct {
	Logger *slog.Logger
	// HTTPClient sends requests to the issuer. Its transport has the trusted CAs.
	HTTPClient *http.Client
	Now        func() time.Time
}

// Guard authenticates callers by an access file, and applies changes of the file. A Guard is safe
// for concurrent use.
type Guard struct {
	path    string
	log     *slog.Logger
	now     func() time.Time
	courier *documentFetcher

	book      atomic.Pointer[fileContent]
	stop      context.CancelFunc
	following sync.WaitGroup

	mu      sync.Mutex
	refused error // reason why the present file is not applied
}

// Open reads an access file and applies its changes until Close. The context ends only Open itself.
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
	g.applyFile(access)
	g.following.Go(func() { g.followFile(ctx, seen.print) })
	return g, nil
}

// Close stops following the file. Later calls of Caller use its last content.
func (g *Guard) Close(context.Context) error {
	g.stop()
	g.following.Wait() // the goroutine ends soon
	g.courier.client.CloseIdleConnections()
	return nil
}

// Caller returns the caller of a request by its Authorization header. The error is [ErrNoToken],
// [ErrBadToken] or [ErrIssuerAway]. No error contains a part of the token.
func (g *Guard) Caller(ctx context.Context, authorization string) (*Caller, error) {
	token, err := bearerToken(authorization)
	if err != nil {
		return nil, err
	}
	return g.book.Load().caller(ctx, token, g.now())
}

// Check reports whether the file is applied and the issuer answers. Known callers are served even
// if neither is true.
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
		if err := b.issuer.recentFault(); err != nil {
			return api.Check{Name: "access", Status: api.Degraded,
				Detail: fmt.Sprintf("%v; tokens of %s still work", err, g.path)}
		}
	}
	return api.Check{Name: "access", Status: api.OK, Detail: fmt.Sprintf("%s, tokens: %d", g.path, len(b.holders))}
}

// applyFile puts a file's content in force. The issuer's keys are kept if the issuer is the same.
func (g *Guard) applyFile(a *config.Access) {
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
	// maxToken is enough for a JWT that lists many groups.
	maxToken = 16 << 10
)

// bearerToken returns the token of an Authorization header, as RFC 6750 defines it.
func bearerToken(header string) (string, error) {
	if header == "" {
		return "", ErrNoToken
	}
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) || header[len(scheme)] != ' ' {
		return "", fmt.Errorf("%w: give it as `Authorization: Bearer TOKEN`", ErrMalformed)
	}
	token := strings.TrimLeft(header[len(scheme):], " ")
	switch {
	case token == "":
		return "", fmt.Errorf("%w: there is no token after Bearer", ErrMalformed)
	case len(token) > maxToken:
		return "", fmt.Errorf("%w: it is longer than %d KiB", ErrMalformed, maxToken>>10)
	case !isToken(token):
		return "", fmt.Errorf("%w: it has characters that a token cannot have", ErrMalformed)
	}
	return token, nil
}

// isToken reports whether a text follows the grammar of a bearer token: letters, digits and some
// signs, then perhaps =.
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

// The errors of Caller. None contains a secret of a token.
var (
	// ErrNoToken is the error for a request without an Authorization header.
	ErrNoToken = errors.New("no token was given: send the header Authorization: Bearer TOKEN")
	// ErrBadToken is wrapped by every error about a token, except ErrIssuerAway.
	ErrBadToken = errors.New("the token is refused")
	// ErrMalformed is the error for a header without a valid token.
	ErrMalformed = fmt.Errorf("%w: it is malformed", ErrBadToken)
	// ErrUnknown is the error for a token that is not in the access file.
	ErrUnknown = fmt.Errorf("%w: it is unknown", ErrBadToken)
	// ErrExpired is the error for an expired token.
	ErrExpired = fmt.Errorf("%w: it has expired", ErrBadToken)
	// ErrIssuerAway is the error for a JWT that could not be checked because the issuer did not
	// return its keys. The same request may succeed later.
	ErrIssuerAway = errors.New("the keys of the token's issuer cannot be read")
)

const (
	// tokenPrefix separates our tokens from JWTs, and lets scanners find leaked tokens.
	tokenPrefix = "tm_"
	tokenBytes  = 32
)

// tokenHash is the SHA-256 of a token or JWT. A fast hash would be wrong for passwords. But our
// tokens are 256 random bits, which cannot be guessed at any speed. A slow hash would add no
// security and cost every request milliseconds.
type tokenHash = [sha256.Size]byte

func hashOf(token string) tokenHash { return sha256.Sum256([]byte(token)) }

// NewToken makes a token and its hash. The token is not stored.
func NewToken() (token config.Secret, sum [sha256.Size]byte) {
	var secret [tokenBytes]byte
	rand.Read(secret[:]) // never fails: the program ends if the system has no randomness
	text := tokenPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(secret[:]))
	return config.NewSecret(text), hashOf(text)
}

// tokenHolder is the caller to whom a token belongs.
type tokenHolder struct {
	caller  *Caller
	expires time.Time // time of expiry; zero for never
}

func holders(a *config.Access) map[tokenHash]tokenHolder {
	all := make(map[tokenHash]tokenHolder, len(a.Tokens))
	for _, t := range a.Tokens {
		c := &Caller{name: t.Name, grants: []grant{newGrant(t.Rights)}}
		for _, team := range a.Teams {
			if slices.Contains(team.Tokens, t.Name) {
				c.join(team)
			}
		}
		all[t.Hash] = tokenHolder{c, t.Expires}
	}
	return all
}

// holderOf returns the caller with a token. The time of a lookup may depend on how much of a hash
// matches. But a client cannot choose the hash of a token. So the lookup may reveal a hash, but
// never a token.
func (b *fileContent) holderOf(token string, now time.Time) (*Caller, error) {
	h, ok := b.holders[hashOf(token)]
	if !ok {
		return nil, fmt.Errorf("%w: it may have been removed from the access file; ask for a new one", ErrUnknown)
	}
	if !h.expires.IsZero() && !now.Before(h.expires) {
		return nil, fmt.Errorf("%w at %s; ask for a new one", ErrExpired, h.expires.Format(time.RFC3339))
	}
	return h.caller, nil
}
