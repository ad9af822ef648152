package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"tidemill.dev/internal/gateway/access"
)

// fixedSignIn is a sign-in whose issuer knows one code.
type fixedSignIn struct{ err error }

func (f fixedSignIn) SignIn(context.Context) (access.SignIn, error) {
	return access.SignIn{Authorize: "https://id.example/authorize", Client: "dash"}, f.err
}

func (fixedSignIn) Exchange(_ context.Context, code, verifier, redirect string) (string, error) {
	if code != "good" || verifier != "v" || redirect != "https://here/ui/auth/callback" {
		return "", errors.New("a secret reason")
	}
	return "a.b.c", nil
}

func TestKindsOfSignIn(t *testing.T) {
	t.Parallel()
	for want, sign := range map[string]SignIn{
		`{"token":false,"oidc":null}`: nil,
		`{"token":true,"oidc":{"authorize":"https://id.example/authorize","client":"dash"}}`: fixedSignIn{},
		`{"token":true,"oidc":null}`: fixedSignIn{access.ErrNoSignIn},
		`{"token":true,"oidc":null,"fault":"the keys of the token's issuer cannot be read"}`: fixedSignIn{access.ErrIssuerAway},
	} {
		d := New(Options{API: fakeAPI{}, Install: func() string { return "" }, SignIn: sign})
		if got := strings.TrimSpace(fetch(d, "/ui/auth").Body.String()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestCodeBecomesAToken(t *testing.T) {
	t.Parallel()
	d := New(Options{API: fakeAPI{}, Install: func() string { return "" }, SignIn: fixedSignIn{}})
	for code, status := range map[string]int{"good": http.StatusOK, "bad": http.StatusForbidden} {
		form := url.Values{"code": {code}, "verifier": {"v"}, "redirect": {"https://here/ui/auth/callback"}}
		r := httptest.NewRequest(http.MethodPost, "/ui/auth/token", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if w.Code != status || strings.Contains(w.Body.String(), "secret reason") || (status == http.StatusOK) != strings.Contains(w.Body.String(), "a.b.c") {
			t.Errorf("%s: %d %s", code, w.Code, w.Body)
		}
	}
}
