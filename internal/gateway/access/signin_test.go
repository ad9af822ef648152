package access

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/config"
)

// codeIssuer adds the addresses of the code flow to an issuer. It knows one code, whose verifier must
// fit the challenge.
func codeIssuer(t *testing.T, is *issuerServer, tokens func() string) {
	t.Helper()
	sum := sha256.Sum256([]byte("the verifier"))
	challenge := base64.RawURLEncoding.EncodeToString(sum[:])
	is.change(func() {
		is.code = func(w http.ResponseWriter, r *http.Request) {
			given := sha256.Sum256([]byte(r.FormValue("code_verifier")))
			if r.FormValue("code") != "the code" || base64.RawURLEncoding.EncodeToString(given[:]) != challenge ||
				r.FormValue("client_id") != "dash" || r.FormValue("grant_type") != "authorization_code" || r.FormValue("redirect_uri") == "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, tokens())
		}
	})
}

// The code of a person becomes the token that the gateway accepts, wherever the issuer puts it.
func TestExchange(t *testing.T) {
	t.Parallel()
	is, at := newIssuerServer(t), newClock()
	guard := open(t, writeAccess(t, is.oidcSection("  client: dash\n")), Options{Now: at.now})
	to, err := guard.SignIn(t.Context())
	if err != nil || to.Client != "dash" || !strings.HasPrefix(to.Authorize, is.URL) {
		t.Fatalf("%+v, %v", to, err)
	}
	good, other := is.makeJWT(t, at, nil), is.makeJWT(t, at, claims{"aud": "another"})
	for name, answer := range map[string]map[string]string{
		"access token": {"access_token": good, "id_token": other},
		"id token":     {"access_token": "opaque", "id_token": good},
		"none":         {"access_token": other},
		"nothing":      {},
	} {
		codeIssuer(t, is, func() string { text, _ := json.Marshal(answer); return string(text) })
		token, err := guard.Exchange(t.Context(), "the code", "the verifier", "https://here/ui/auth/callback")
		if want := answer["access_token"] == good || answer["id_token"] == good; want != (err == nil && token == good) {
			t.Errorf("%s: %q, %v", name, token, err)
		}
	}
	if _, err := guard.Exchange(t.Context(), "the code", "another verifier", "https://here/"); err == nil {
		t.Error("a code is exchanged without its verifier")
	}
}

// While a person signs in, the access file may lose its issuer.
func TestExchangeWhileTheIssuerIsRemoved(t *testing.T) {
	t.Parallel()
	is, at := newIssuerServer(t), newClock()
	guard := open(t, writeAccess(t, is.oidcSection("  client: dash\n")), Options{Now: at.now})
	codeIssuer(t, is, func() string { return "{}" })
	is.change(func() {
		is.plain = func(w http.ResponseWriter, _ *http.Request) {
			guard.applyFile(&config.Access{})
			fmt.Fprint(w, `{"keys": []}`)
		}
	})
	if _, err := guard.Exchange(t.Context(), "the code", "the verifier", "https://here/"); err == nil {
		t.Error("an answer without a token is one")
	}
	if _, err := guard.SignIn(t.Context()); !errors.Is(err, ErrNoSignIn) {
		t.Errorf("after the removal: %v", err)
	}
}

func TestNoSignIn(t *testing.T) {
	t.Parallel()
	is, at := newIssuerServer(t), newClock()
	guard := open(t, writeAccess(t, is.oidcSection("")), Options{Now: at.now})
	if _, err := guard.SignIn(t.Context()); !errors.Is(err, ErrNoSignIn) {
		t.Errorf("without a client: %v", err)
	}
	is.change(func() {
		is.fault = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
	})
	guard = open(t, writeAccess(t, is.oidcSection("  client: dash\n")), Options{Now: at.now})
	if _, err := guard.SignIn(t.Context()); !errors.Is(err, ErrIssuerAway) {
		t.Errorf("without the issuer: %v", err)
	}
}
