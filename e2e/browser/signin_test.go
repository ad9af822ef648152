//go:build real

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
)

const dashboardClient = "tidemill-dashboard"

// issuer is an OpenID Connect issuer that knows one person, ana. It gives a token only to who proves to have begun the
// sign-in, as PKCE wants.
type issuer struct {
	*httptest.Server
	key        *ecdsa.PrivateKey
	challenges chan string // of the sign-in under way
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &issuer{key: key, challenges: make(chan string, 1)}
	known := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: crypto.PublicKey(&key.PublicKey), KeyID: "one", Algorithm: oidc.ES256}}, Algorithms: []string{oidc.ES256}}
	routes := http.NewServeMux()
	routes.HandleFunc("/auth", is.askPerson)
	routes.HandleFunc("/token", is.exchange)
	routes.Handle("/", known)
	is.Server = httptest.NewServer(routes)
	t.Cleanup(is.Close)
	known.SetIssuer(is.URL)
	return is
}

// askPerson is the page of the issuer on which ana agrees.
func (is *issuer) askPerson(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != dashboardClient || q.Get("code_challenge_method") != "S256" || q.Get("state") == "" {
		http.Error(w, "this is no code flow with PKCE: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	is.challenges <- q.Get("code_challenge")
	back := q.Get("redirect_uri") + "?" + url.Values{"code": {"the-code"}, "state": {q.Get("state")}}.Encode()
	w.Header().Set("Content-Type", "text/html")
	fmt.Fprintf(w, `<title>Issuer</title><link rel="icon" href="data:,"><button autofocus onclick='location.assign(%q)'>I am ana</button>`, back)
}

// exchange gives the token for the code to who has the verifier of the challenge.
func (is *issuer) exchange(w http.ResponseWriter, r *http.Request) {
	hash := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if r.FormValue("code") != "the-code" || base64.RawURLEncoding.EncodeToString(hash[:]) != <-is.challenges {
		http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		return
	}
	claims, _ := json.Marshal(map[string]any{"iss": is.URL, "aud": dashboardClient, "sub": "ana", "groups": "research", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()})
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"token_type": "Bearer", "id_token": oidctest.SignIDToken(is.key, "one", oidc.ES256, string(claims))})
}

// A person signs in with an issuer, by keyboard alone, and comes back to the page of before with the rights that the
// access file gives to her group. No code stays in the history.
func TestRealIssuer(t *testing.T) {
	const model = "intent/bot-00012"
	is := newIssuer(t)
	i := newInstall(t, func(i *install) {
		i.flags = []string{"--access", "access.yaml"}
		i.token = i.newToken(t, "test", "approve")
		i.allow(t, "oidc: {issuer: "+quoted(is.URL)+", audience: "+dashboardClient+", client: "+dashboardClient+", roles: [{claim: groups, value: research, role: read}]}\n")
	})
	p := newPage(t)
	p.open(i.url + "/ui/model?name=" + model + "&version=1")
	p.until("document.querySelector('dialog.sign-in[open] button.primary')")
	eval[bool](p, "document.querySelector('dialog.sign-in button.primary').focus(); true")
	p.press(kb.Enter)
	p.arrives("document.title === 'Issuer' && document.activeElement.tagName === 'BUTTON'")
	p.press(kb.Enter)
	p.arrives("location.pathname === '/ui/model' && document.readyState === 'complete'")
	p.until(says("is the champion") + " && " + live)
	if at := eval[string](p, "location.search"); at != "?name="+model+"&version=1" {
		t.Errorf("she comes back to %s", at)
	}
	i.pin(t, model, "ana sees it")
	p.until(says(": ana sees it"))
	if text := eval[string](p, "document.querySelector('main').textContent"); text == "" || eval[bool](p, "document.querySelector('main a[href*=\"/ui/act/\"]:not([aria-disabled])') !== null") {
		t.Error("who may only read can press a button")
	}
	if faults := p.faultsOf(); len(faults) > 0 {
		t.Errorf("console: %q", faults)
	}
	if others := p.strangers(); len(others) != 1 || !strings.HasPrefix(others[0], is.URL+"/auth?") { // the page of the issuer, to which she goes
		t.Errorf("requests to other origins: %q", others)
	}
}

// arrives waits until a condition holds on the page to which the tab goes.
func (p *page) arrives(condition string) {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	for {
		if there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition)); err == nil && there {
			eval[float64](p, "__rig.until(() => document.readyState === 'complete')")
			return
		}
		select {
		case <-ctx.Done():
			p.shot("stuck")
			p.Fatalf("the tab has not arrived where %s; it is at %q", condition, eval[string](p, "location.href"))
		case <-time.After(20 * time.Millisecond): // an evaluation fails while the tab changes its page
		}
	}
}

// allow adds lines to the access file.
func (i *install) allow(t *testing.T, lines string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(i.dir, "access.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(lines)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
