package access

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"

	"tidemill.dev/config"
)

// maxSubject bounds the name that a JWT gives.
const maxSubject = 256

// claimGrant is what those may do whose claim is, or holds, a value.
type claimGrant struct {
	claim, value string
	grant        grant
}

func claimGrants(o *config.OIDC) []claimGrant {
	var all []claimGrant
	for _, r := range o.Roles {
		all = append(all, claimGrant{r.Claim, r.Value, newGrant(r.Rights)})
	}
	return all
}

// identify makes a caller of a verified JWT's claims. One whom no claim gives a
// role is known and may do nothing.
func (b *book) identify(token *oidc.IDToken) (*Caller, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return nil, fmt.Errorf("%w: its claims cannot be read: %w", ErrBadToken, err)
	}
	name, err := nameIn(claims, b.oidc.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadToken, err)
	}
	if b.tokens[name] {
		// Else whoever may choose their name at the issuer could act in another's.
		return nil, fmt.Errorf("%w: its claim %s is %s, which is the name of a token in the access file", ErrBadToken, b.oidc.Name, clip(name))
	}
	c := &Caller{name: name}
	for _, g := range b.claims {
		if holds(claims[g.claim], g.value) {
			c.grants = append(c.grants, g.grant)
		}
	}
	return c, nil
}

// nameIn is the claim that becomes authid.
func nameIn(claims map[string]any, claim string) (string, error) {
	name, ok := claims[claim].(string)
	switch {
	case !ok || name == "":
		return "", fmt.Errorf("it has no claim %s that is a text; have the issuer add it, or choose another under oidc.name in the access file", claim)
	case len(name) > maxSubject:
		return "", fmt.Errorf("its claim %s is longer than %d bytes", claim, maxSubject)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return "", fmt.Errorf("its claim %s has letters that cannot be printed", claim)
	case claim == "email" && unverified(claims["email_verified"]):
		return "", fmt.Errorf("its email is not verified, so it may be another's")
	}
	return name, nil
}

// unverified is an issuer that says so; many say nothing. Some write booleans
// as texts.
func unverified(claim any) bool { return claim == false || claim == "false" }

// holds reports whether a claim is a text or a list that holds it.
func holds(claim any, value string) bool {
	if list, ok := claim.([]any); ok {
		for _, item := range list {
			if item == value {
				return true
			}
		}
		return false
	}
	return claim == value
}
