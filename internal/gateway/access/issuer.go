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
	// leeway is how far our clock and the issuer's may be apart.
	leeway = time.Minute
	// renewEvery is how long keys count without being asked for again, so that
	// one which the issuer has withdrawn does not count for ever.
	renewEvery = time.Hour
	// maxWhy bounds what the library may say of a token.
	maxWhy = 200
)

// issuer checks the JWTs of one OpenID Connect issuer. It asks the issuer when
// it first must, not when it is made: the door opens while the issuer is away.
type issuer struct {
	url     string
	courier *courier
	now     func() time.Time

	turn chan struct{} // held by the one who finds out about the issuer
	away pause         // between attempts to
	keys atomic.Pointer[keys]
}

// keys are what was found out about an issuer.
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

// asking is a key set for one verification. The library makes a text of a key
// set's error, and it matters whether the token is at fault or the issuer away.
type asking struct {
	set oidc.KeySet
	err error
}

func (a *asking) VerifySignature(ctx context.Context, jwt string) (payload []byte, err error) {
	payload, a.err = a.set.VerifySignature(ctx, jwt)
	return payload, a.err
}

// verdict says what a failed verification means.
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
	why := strings.ReplaceAll(err.Error(), "oidc: ", "") // it quotes what the token says
	return fmt.Errorf("%w: %.*s", ErrBadToken, maxWhy, why)
}

// current gives the issuer's keys, and finds out where they are if that is not
// known or was long ago. With old keys at hand nobody waits for new ones but
// the one whose turn it is, and old keys outlive an issuer that is away.
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
	return i.renew(context.WithoutCancel(ctx)) // others want to know too; the courier bounds it
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

// discover asks the issuer where its keys are, and for the keys, so that what
// it gives can be used.
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
	// The set keeps its context, so not the one of the request that happens to be first.
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

// asymmetric leaves of the algorithms that an issuer announces those that need
// its private key to sign. With any other, whoever knows the public key, which
// is everyone, could sign; and none signs nothing. RS256 is what an issuer that
// announces nothing must have.
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

// fault is why the issuer could not be asked of late; nil if it could or nobody
// had to.
func (i *issuer) fault() error {
	now := i.now()
	err := i.away.recent(now)
	if k := i.keys.Load(); k != nil {
		return cmp.Or(err, k.ring.away.recent(now))
	}
	return err
}

const (
	// maxSeen bounds one generation of JWTs that are remembered.
	maxSeen = 10_000
	// seenFor bounds how long one is, so that a key which its issuer has
	// withdrawn does not count much longer.
	seenFor = 5 * time.Minute
)

// seen remembers good JWTs by their hashes: two generations, of which the older
// is forgotten when the younger is full. What is used moves to the younger.
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

// get is the caller of a JWT that still counts, else nil.
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

// pause keeps attempts apart: after one that failed, the next must wait, twice
// as long each time.
type pause struct {
	mu    sync.Mutex
	err   error // why the last attempt failed; nil if it did not
	at    time.Time
	until time.Time
	wait  time.Duration
}

// fault is why no attempt may be made now; nil if one may.
func (p *pause) fault(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.err
	}
	return nil
}

// recent is why the last attempt failed, if it was of late: who has not tried
// again cannot say that it would fail still.
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
