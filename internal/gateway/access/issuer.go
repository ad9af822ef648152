package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// leeway is the allowed difference between our clock and the issuer's.
	leeway = time.Minute
	// renewEvery is how long keys are valid without a new request, so that a withdrawn key does not
	// count for ever.
	renewEvery = time.Hour
	// maxWhy limits the library's error message about a token.
	maxWhy = 200
)

// issuer checks the JWTs of one OpenID Connect issuer. It sends its first request for the first
// JWT, so that the gateway can start while the issuer is down.
type issuer struct {
	url     string
	courier *courier
	now     func() time.Time

	turn chan struct{} // held during a request to the issuer
	away pause         // pause between failed requests
	keys atomic.Pointer[keys]
}

// keys holds the keys and algorithms of an issuer.
type keys struct {
	set        *oidc.RemoteKeySet
	ring       *keyring
	algorithms []string
	since      time.Time
}

func newIssuer(url string, c *courier, now func() time.Time) *issuer {
	return &issuer{url: url, courier: c, now: now, turn: make(chan struct{}, 1)}
}

// verify checks a JWT's signature, issuer, audience and times.
func (i *issuer) verify(ctx context.Context, jwt, audience string) (*oidc.IDToken, error) {
	k, err := i.current(ctx)
	if err != nil {
		return nil, err
	}
	asked := &asking{set: k.set}
	token, err := oidc.NewVerifier(i.url, asked, &oidc.Config{
		ClientID:             audience,
		SupportedSigningAlgs: k.algorithms,
		Now:                  func() time.Time { return i.now().Add(-leeway) },
	}).Verify(ctx, jwt)
	return token, verdict(err, asked.err)
}

// asking is a key set for one verification. It keeps the error, because the library turns it into a
// text, and we must know if the issuer was down.
type asking struct {
	set oidc.KeySet
	err error
}

func (a *asking) VerifySignature(ctx context.Context, jwt string) (payload []byte, err error) {
	payload, a.err = a.set.VerifySignature(ctx, jwt)
	return payload, a.err
}

// verdict turns the error of a verification into one of ours.
func verdict(err, keys error) error {
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
	why := strings.ReplaceAll(err.Error(), "oidc: ", "") // it quotes parts of the token
	return fmt.Errorf("%w: %.*s", ErrBadToken, maxWhy, why)
}

// current returns the issuer's keys, and requests them if they are unknown or old. If there are old
// keys, only one caller requests new ones, and the others use the old. Old keys stay in use while
// the issuer is down.
func (i *issuer) current(ctx context.Context) (*keys, error) {
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

func (i *issuer) fresh(k *keys) bool { return k != nil && i.now().Sub(k.since) < renewEvery }

func (i *issuer) renew(ctx context.Context) (*keys, error) {
	old := i.keys.Load()
	if i.fresh(old) {
		return old, nil
	}
	err := i.away.fault(i.now())
	if err == nil {
		var k *keys
		if k, err = i.discover(ctx); err == nil {
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

// discover requests the address of the issuer's keys, and then the keys, so that its result can be
// used.
func (i *issuer) discover(ctx context.Context) (*keys, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, &http.Client{Transport: i.courier}), i.url)
	if err != nil {
		return nil, err
	}
	var about struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&about); err != nil {
		return nil, err
	}
	if strings.HasPrefix(i.url, "https://") && !strings.HasPrefix(about.Keys, "https://") {
		return nil, fmt.Errorf("%s says that its keys are at %s, which is not https", i.url, clip(about.Keys))
	}
	ring := &keyring{next: i.courier, now: i.now}
	client := &http.Client{Transport: ring}
	if err := ask(ctx, client, about.Keys); err != nil {
		return nil, err
	}
	// The set keeps its context, so it must not be the context of a request.
	set := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), about.Keys)
	return &keys{set: set, ring: ring, algorithms: asymmetric(about.Algorithms), since: i.now()}, nil
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

// asymmetric returns the announced algorithms that need the issuer's private key to sign. With a
// symmetric algorithm, everyone could sign with the public key, and "none" has no signature. If
// nothing is announced it returns RS256, which every issuer must support.
func asymmetric(announced []string) []string {
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

// fault returns the error of a recent failed request to the issuer; else nil.
func (i *issuer) fault() error {
	now := i.now()
	err := i.away.recent(now)
	if k := i.keys.Load(); k != nil {
		return cmp.Or(err, k.ring.away.recent(now))
	}
	return err
}

const (
	// maxSeen limits one generation of cached JWTs.
	maxSeen = 10_000
	// seenFor is how long a JWT is cached, so that a withdrawn key does not count much longer.
	seenFor = 5 * time.Minute
)

// seen caches valid JWTs by their hashes, in two generations. When the younger is full, it becomes
// the older, and the older is dropped. A used entry moves to the younger.
type seen struct {
	limit int

	mu         sync.Mutex
	young, old map[hash]visit
}

type visit struct {
	caller *Caller
	until  time.Time
}

func newSeen(limit int) *seen { return &seen{limit: limit, young: map[hash]visit{}} }

// get returns the caller of a cached JWT that is still valid; else nil.
func (s *seen) get(jwt hash, now time.Time) *Caller {
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

func (s *seen) put(jwt hash, c *Caller, now, expires time.Time) {
	until := now.Add(seenFor)
	if expires.Before(until) {
		until = expires
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(jwt, visit{c, until})
}

func (s *seen) add(jwt hash, v visit) {
	if len(s.young) >= s.limit {
		s.young, s.old = map[hash]visit{}, s.young
	}
	s.young[jwt] = v
}

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// pause is a backoff: after a failed attempt the next must wait, twice as long each time.
type pause struct {
	mu    sync.Mutex
	err   error // error of the last attempt
	at    time.Time
	until time.Time
	wait  time.Duration
}

// fault returns the last error if no attempt may be made now; else nil.
func (p *pause) fault(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.err
	}
	return nil
}

// recent returns the error of the last attempt if that was recent. An older error may no longer be
// true.
func (p *pause) recent(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.at) > 2*maxPause {
		return nil
	}
	return p.err
}

func (p *pause) note(now time.Time, err error) {
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
