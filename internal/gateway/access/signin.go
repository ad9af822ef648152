package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

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
	if b.oidc == nil || b.oidc.Client == "" {
		return SignIn{}, ErrNoSignIn
	}
	k, err := b.issuer.currentKeys(ctx)
	if err != nil {
		return SignIn{}, err
	}
	if !b.issuer.trusts(k.authorize) || !b.issuer.trusts(k.token) {
		return SignIn{}, fmt.Errorf("%w: %s announces no address of its own scheme for people or for tokens", ErrIssuerAway, b.issuer.url)
	}
	return SignIn{Authorize: k.authorize, Client: b.oidc.Client}, nil
}

// trusts reports whether an address is as safe as that of the issuer itself.
func (i *issuer) trusts(address string) bool {
	scheme, _, _ := strings.Cut(i.url, "://")
	return strings.HasPrefix(address, scheme+"://") || strings.HasPrefix(address, "https://")
}

// Exchange gets the tokens for a code of the issuer, and returns the one that this gateway accepts.
// The gateway calls the issuer itself, so that pages need no right to call other origins.
func (g *Guard) Exchange(ctx context.Context, code, verifier, redirect string) (token string, err error) {
	to, err := g.SignIn(ctx)
	if err != nil {
		return "", err
	}
	b := g.book.Load()
	k, err := b.issuer.currentKeys(ctx)
	if err != nil {
		return "", err
	}
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}, "redirect_uri": {redirect}, "client_id": {to.Client}}
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
