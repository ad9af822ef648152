package access

import (
	"errors"
	"strings"
	"testing"
)

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer abc":                            "abc",
		"bearer abc":                            "abc",
		"BEARER   abc":                          "abc",
		"Bearer a-._~+/Z9==":                    "a-._~+/Z9==",
		"Bearer " + strings.Repeat("a", 16<<10): strings.Repeat("a", 16<<10),
	} {
		if got, err := bearerToken(header); got != want || err != nil {
			t.Errorf("%.40q: %.40q, %v", header, got, err)
		}
	}
	if _, err := bearerToken(""); err != ErrNoToken {
		t.Errorf("no header: %v", err)
	}
	for _, header := range []string{
		"Bearer", "Bearer ", "Bearer    ", "Bearerabc", "Bearer\tabc", " Bearer abc", "Bearer abc ", "Bearer a b",
		"Basic YTpi", "abc", "Bearer =", "Bearer a=b", "Bearer a,b", "Bearer \"abc\"", "Bearer ä", "Bearer a\x00", "Bearer {}",
		"Bearer abc, Bearer def", "Token abc", "Bearer " + strings.Repeat("a", 16<<10+1),
	} {
		if got, err := bearerToken(header); !errors.Is(err, ErrMalformed) || !errors.Is(err, ErrBadToken) || got != "" {
			t.Errorf("%.40q: %.40q, %v", header, got, err)
		}
	}
}

// FuzzAuthorization checks that only the header with the token is accepted, no error repeats a
// header, and only a JWT causes a request to the issuer.
func FuzzAuthorization(f *testing.F) {
	token, sum := newToken()
	is := newIssuerServer(f)
	at := newClock()
	g := open(f, writeAccess(f, "tokens:\n"+yamlToken("crm", sum, "role: publish")+is.oidcSection("")), Options{Now: at.now})
	for _, s := range []string{"", "Bearer", "Bearer x", "bearer tm_", "Basic YTpi", "Bearer a.b.c", "Bearer eyJhbGciOiJub25lIn0.e30.",
		"Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA", bearerOf(token), bearerOf(is.makeJWT(f, at, nil)), "Bearer .." + strings.Repeat("=", 9)} {
		f.Add(s)
	}
	good := is.makeJWT(f, at, nil)
	f.Fuzz(func(t *testing.T, header string) {
		c, err := g.Caller(t.Context(), header)
		sent := strings.TrimLeft(header[min(len(header), len("Bearer ")):], " ")
		switch {
		case err == nil:
			if sent != token && sent != good {
				// A JWT has several equivalent spellings, but all must be signed.
				if strings.Count(sent, ".") != 2 || c.Name() != "ana" {
					t.Errorf("%q opens the door to %s", header, c.Name())
				}
			}
		case c != nil:
			t.Errorf("%q: both %v and %v", header, c, err)
		case !errors.Is(err, ErrNoToken) && !errors.Is(err, ErrBadToken) && !errors.Is(err, ErrIssuerAway):
			t.Errorf("%q: %v", header, err)
		case len(sent) >= 16 && strings.Contains(err.Error(), sent):
			t.Errorf("%q is told again: %v", header, err)
		case len(err.Error()) > 500:
			t.Errorf("an error of %d letters: %v", len(err.Error()), err)
		}
	})
}
