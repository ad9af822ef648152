package access

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tidemill.dev/config"
)

// book is one access file as requests are held against it. It never changes but
// for what it remembers of JWTs, so that a changed file is a new book and
// forgets nothing by half.
type book struct {
	holders map[hash]holder
	tokens  map[string]bool // names that tokens have
	oidc    *config.OIDC    // nil: JWTs open nothing
	claims  []claimGrant
	issuer  *issuer
	seen    *seen
}

func newBook(a *config.Access, issuerOf func(url string) *issuer) *book {
	b := &book{holders: holders(a.Tokens), tokens: map[string]bool{}, oidc: a.OIDC, seen: newSeen(maxSeen)}
	for _, t := range a.Tokens {
		b.tokens[t.Name] = true
	}
	if a.OIDC != nil {
		b.issuer, b.claims = issuerOf(a.OIDC.Issuer), claimGrants(a.OIDC)
	}
	return b
}

func (b *book) caller(ctx context.Context, token string, now time.Time) (*Caller, error) {
	if strings.HasPrefix(token, tokenPrefix) {
		return b.holderOf(token, now)
	}
	if b.oidc == nil {
		return nil, fmt.Errorf("%w: tokens of this door begin with %s, and it takes no others", ErrUnknown, tokenPrefix)
	}
	return b.subjectOf(ctx, token, now)
}

// subjectOf finds who a JWT speaks of. One that was found good is remembered
// for a while, because checking a signature costs a hundred times what finding
// it again does.
func (b *book) subjectOf(ctx context.Context, jwt string, now time.Time) (*Caller, error) {
	if strings.Count(jwt, ".") != 2 {
		return nil, fmt.Errorf("%w: it neither begins with %s nor is a JWT", ErrMalformed, tokenPrefix)
	}
	sum := hashOf(jwt)
	if c := b.seen.get(sum, now); c != nil {
		return c, nil
	}
	token, err := b.issuer.verify(ctx, jwt, b.oidc.Audience)
	if err != nil {
		return nil, err
	}
	c, err := b.identify(token)
	if err != nil {
		return nil, err
	}
	b.seen.put(sum, c, now, token.Expiry.Add(leeway))
	return c, nil
}
