package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// leeway is the allowed difference between our clock and the issuer's.
	leeway = time.Minute
	// renewEvery is the time after which keys are fetched again, so that a withdrawn key is not
	// accepted for ever.
	renewEvery = time.Hour
	// maxWhy limits the library's error message about a token.
	maxWhy = 200
)

// issuer checks the JWTs of one OpenID Connect issuer. The first request is sent for the first JWT,
// so that the gateway can start while the issuer is down.
type issuer struct {
	url     string
	courier *documentFetcher
	now     func() time.Time

	turn chan struct{}  // full during a request to the issuer
	away requestBackoff // pause between failed requests
	keys atomic.Pointer[issuerKeys]
}

// issuerKeys holds the keys and algorithms of an issuer.
type issuerKeys struct {
	set        *oidc.RemoteKeySet
	ring       *keyring
	algorithms []string
	authorize  string // address at which people sign in
	token      string // address that exchanges a code for tokens
	since      time.Time
}

func newIssuer(url string, c *documentFetcher, now func() time.Time) *issuer {
	return &issuer{url: url, courier: c, now: now, turn: make(chan struct{}, 1)}
}

// verifyJWT checks a JWT's signature, issuer, audience and times.
func (i *issuer) verifyJWT(ctx context.Context, jwt, audience string) (*oidc.IDToken, error) {
	k, err := i.currentKeys(ctx)
	if err != nil {
		return nil, err
	}
	asked := &keyRequest{set: k.set}
	token, err := oidc.NewVerifier(i.url, asked, &oidc.Config{
		ClientID:             audience,
		SupportedSigningAlgs: k.algorithms,
		Now:                  func() time.Time { return i.now().Add(-leeway) },
	}).Verify(ctx, jwt)
	return token, verifyError(err, asked.err)
}

// keyRequest is the key set of one verification. The error is kept here, because the library
// returns only the error's text, and verifyError must know whether the issuer was down.
type keyRequest struct {
	set oidc.KeySet
	err error
}

func (a *keyRequest) VerifySignature(ctx context.Context, jwt string) (payload []byte, err error) {
	payload, a.err = a.set.VerifySignature(ctx, jwt)
	return payload, a.err
}

// verifyError turns the library's error into an error of this package.
func verifyError(err, keys error) error {
	var expired *oidc.TokenExpiredError
	switch {
	case err == nil:
		return nil
	case errors.Is(keys, ErrIssuerAway):
		return fmt.Errorf("%w; try again later", keys)
	case errors.Is(keys, context.Canceled) || errors.Is(keys, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrIssuerAway, keys)
	case errors.As(err, &expired):
		return fmt.Errorf("%w at %s; get a new one from its issuer", ErrExpired, expired.Expiry.UTC().Format(time.RFC3339))
	}
	why := strings.ReplaceAll(err.Error(), "oidc: ", "") // the library's error quotes parts of the token
	return fmt.Errorf("%w: %.*s", ErrBadToken, maxWhy, why)
}

// currentKeys returns the issuer's keys, and requests unknown or old keys. While one caller
// requests new keys, the others use the old keys. Old keys stay in use while the issuer is down.
func (i *issuer) currentKeys(ctx context.Context) (*issuerKeys, error) {
	k := i.keys.Load()
	if i.fresh(k) {
		return k, nil
	}
	if k == nil {
		select {
		case i.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrIssuerAway, ctx.Err())
		}
	} else {
		select {
		case i.turn <- struct{}{}:
		default:
			return k, nil
		}
	}
	defer func() { <-i.turn }()
	return i.renew(context.WithoutCancel(ctx)) // other callers need the result too; the courier has a timeout
}

func (i *issuer) fresh(k *issuerKeys) bool { return k != nil && i.now().Sub(k.since) < renewEvery }

func (i *issuer) renew(ctx context.Context) (*issuerKeys, error) {
	old := i.keys.Load()
	if i.fresh(old) {
		return old, nil
	}
	err := i.away.waitError(i.now())
	if err == nil {
		var k *issuerKeys
		if k, err = i.discoverKeys(ctx); err == nil {
			i.keys.Store(k)
			i.away.note(i.now(), nil)
			return k, nil
		}
		if !errors.Is(err, ErrIssuerAway) {
			err = fmt.Errorf("%w: %w", ErrIssuerAway, err)
		}
		i.away.note(i.now(), err)
	}
	if old != nil {
		return old, nil
	}
	return nil, fmt.Errorf("%w; try again later", err)
}

// discoverKeys requests the address of the issuer's keys. It then also requests the keys, to check
// that the address works.
func (i *issuer) discoverKeys(ctx context.Context) (*issuerKeys, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, &http.Client{Transport: i.courier}), i.url)
	if err != nil {
		return nil, err
	}
	var about struct {
		Keys       string   `json:"jwks_uri"`
		Authorize  string   `json:"authorization_endpoint"`
		Token      string   `json:"token_endpoint"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&about); err != nil {
		return nil, err
	}
	if strings.HasPrefix(i.url, "https://") && !strings.HasPrefix(about.Keys, "https://") {
		return nil, fmt.Errorf("%s says that its keys are at %s, which is not https", i.url, clipText(about.Keys))
	}
	ring := &keyring{next: i.courier, now: i.now}
	client := &http.Client{Transport: ring}
	if err := ask(ctx, client, about.Keys); err != nil {
		return nil, err
	}
	// The set keeps its context, so it must not be the context of a request.
	set := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), about.Keys)
	return &issuerKeys{set: set, ring: ring, algorithms: asymmetricAlgorithms(about.Algorithms),
		authorize: about.Authorize, token: about.Token, since: i.now()}, nil
}

func ask(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// asymmetricAlgorithms returns the announced algorithms that need the issuer's private key to sign.
// With a symmetric algorithm, everyone could sign with the public key, and "none" has no signature.
// If the issuer announces none of them, the result is RS256, which every issuer must support.
func asymmetricAlgorithms(announced []string) []string {
	var all []string
	for _, a := range announced {
		switch a {
		case oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512,
			oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA:
			all = append(all, a)
		}
	}
	if all == nil {
		return []string{oidc.RS256}
	}
	return all
}

// recentFault returns the error of the last request to the issuer if that request was recent; else
// nil.
func (i *issuer) recentFault() error {
	now := i.now()
	err := i.away.recentError(now)
	if k := i.keys.Load(); k != nil {
		return cmp.Or(err, k.ring.away.recentError(now))
	}
	return err
}

const (
	// maxSeen limits one generation of cached JWTs.
	maxSeen = 10_000
	// seenFor is how long a JWT is cached. A withdrawn key is accepted for that time at most.
	seenFor = 5 * time.Minute
)

// jwtCache caches valid JWTs by their hashes, in two generations. When the younger generation is
// full, it becomes the older one, and the previous older one is dropped. A used entry moves to the
// younger generation.
type jwtCache struct {
	limit int

	mu         sync.Mutex
	young, old map[tokenHash]visit
}

type visit struct {
	caller *Caller
	until  time.Time
}

func newSeen(limit int) *jwtCache { return &jwtCache{limit: limit, young: map[tokenHash]visit{}} }

// get returns the caller of a cached JWT that is still valid; else nil.
func (s *jwtCache) get(jwt tokenHash, now time.Time) *Caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.young[jwt]
	if !ok {
		if v, ok = s.old[jwt]; !ok {
			return nil
		}
		s.add(jwt, v)
	}
	if !now.Before(v.until) {
		return nil
	}
	return v.caller
}

func (s *jwtCache) put(jwt tokenHash, c *Caller, now, expires time.Time) {
	until := now.Add(seenFor)
	if expires.Before(until) {
		until = expires
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(jwt, visit{c, until})
}

func (s *jwtCache) add(jwt tokenHash, v visit) {
	if len(s.young) >= s.limit {
		s.young, s.old = map[tokenHash]visit{}, s.young
	}
	s.young[jwt] = v
}

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// requestBackoff delays the next request after a failed one, twice as long after each failure.
type requestBackoff struct {
	mu    sync.Mutex
	err   error // error of the last attempt
	at    time.Time
	until time.Time
	wait  time.Duration
}

// waitError returns the last error while no attempt is allowed; else nil.
func (p *requestBackoff) waitError(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.err
	}
	return nil
}

// recentError returns the error of the last attempt if that attempt was recent. An older error may
// no longer be true.
func (p *requestBackoff) recentError(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.at) > 2*maxPause {
		return nil
	}
	return p.err
}

func (p *requestBackoff) note(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at = err, now
	if err == nil {
		p.until, p.wait = time.Time{}, 0
		return
	}
	p.wait = min(max(2*p.wait, firstPause), maxPause)
	p.until = now.Add(p.wait)
}

// SignIn says how a person gets a JWT of the issuer in a browser: by the code flow of OpenID Connect
// with PKCE.
type SignIn struct {
	Authorize string `json:"authorize"` // address at which the person signs in
	Client    string `json:"client"`    // id of the dashboard at the issuer
}

// ErrNoSignIn is the error if the access file names no client of an issuer.
var ErrNoSignIn = errors.New("people cannot sign in with an issuer here: the access file has no oidc.client")

// SignIn returns how people sign in. The error is [ErrNoSignIn] or [ErrIssuerAway].
func (g *Guard) SignIn(ctx context.Context) (SignIn, error) {
	b := g.book.Load()
	k, err := b.signInKeys(ctx)
	if err != nil {
		return SignIn{}, err
	}
	return SignIn{Authorize: k.authorize, Client: b.oidc.Client}, nil
}

// signInKeys returns the keys of the issuer with which people sign in, and its addresses.
func (b *fileContent) signInKeys(ctx context.Context) (*issuerKeys, error) {
	if b.oidc == nil || b.oidc.Client == "" {
		return nil, ErrNoSignIn
	}
	k, err := b.issuer.currentKeys(ctx)
	if err == nil && (!b.issuer.trusts(k.authorize) || !b.issuer.trusts(k.token)) {
		err = fmt.Errorf("%w: %s announces no address of its own scheme for people or for tokens", ErrIssuerAway, b.issuer.url)
	}
	return k, err
}

// trusts reports whether an address is as safe as that of the issuer itself.
func (i *issuer) trusts(address string) bool {
	scheme, _, _ := strings.Cut(i.url, "://")
	return strings.HasPrefix(address, scheme+"://") || strings.HasPrefix(address, "https://")
}

// Exchange gets the tokens for a code of the issuer, and returns the one that this gateway accepts.
// The gateway calls the issuer itself, so that pages need no right to call other origins.
func (g *Guard) Exchange(ctx context.Context, code, verifier, redirect string) (token string, err error) {
	b := g.book.Load() // the file may change meanwhile
	k, err := b.signInKeys(ctx)
	if err != nil {
		return "", err
	}
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}, "redirect_uri": {redirect}, "client_id": {b.oidc.Client}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.token, strings.NewReader(form.Encode()))
	if err != nil {
		return "", fmt.Errorf("exchange the code of the issuer: %w", err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	body, err := b.issuer.courier.bring(r)
	if err != nil {
		return "", fmt.Errorf("exchange the code of the issuer: %w; sign in again", err)
	}
	return b.acceptedOf(ctx, g, body)
}

// acceptedOf returns the first token of an issuer's answer that the gateway accepts. Some issuers put
// the audience into the access token, and some into the id token.
func (b *fileContent) acceptedOf(ctx context.Context, g *Guard, body []byte) (string, error) {
	var answer struct {
		Access string `json:"access_token"`
		ID     string `json:"id_token"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", fmt.Errorf("read the tokens of the issuer: %w", err)
	}
	err := fmt.Errorf("%w: the issuer sent none", ErrBadToken)
	for _, token := range []string{answer.Access, answer.ID} {
		if token == "" {
			continue
		}
		if _, err = b.caller(ctx, token, g.now()); err == nil {
			return token, nil
		}
	}
	return "", err
}
