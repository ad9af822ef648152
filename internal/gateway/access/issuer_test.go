package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/api"
)

// jwtWorld is a guard that trusts an issuer, with a clock for both.
type jwtWorld struct {
	*issuerServer
	guard *Guard
	at    *clock
	token string // our own token of crm
	log   guardLog
}

func newJWTWorld(t testing.TB, more string) *jwtWorld {
	w := &jwtWorld{issuerServer: newIssuerServer(t), at: newClock()}
	var sum string
	w.token, sum = newToken()
	w.guard = open(t, writeAccess(t, "tokens:\n"+yamlToken("crm", sum, "role: publish")+w.oidcSection(more)), Options{Now: w.at.now, Logger: w.log.logger()})
	return w
}

// sendJWT sends a JWT and checks that no error or log contains it.
func (w *jwtWorld) sendJWT(t testing.TB, jwt string) (*Caller, error) {
	t.Helper()
	c, err := w.guard.Caller(t.Context(), bearerOf(jwt))
	if err != nil {
		for _, part := range strings.Split(jwt, ".") {
			if len(part) > 8 && strings.Contains(err.Error(), part) {
				t.Errorf("the error tells of the JWT: %v", err)
			}
		}
	}
	if strings.Contains(w.log.String(), jwt) {
		t.Error("the log tells of the JWT")
	}
	return c, err
}

// waitForAccepted asks until the JWT is accepted. For a moment after each fetch, the library
// answers a second request for the keys with the result of the first.
func (w *jwtWorld) waitForAccepted(t *testing.T, jwt string) *Caller {
	t.Helper()
	for tick := time.Tick(time.Millisecond); ; {
		c, err := w.sendJWT(t, jwt)
		if err == nil {
			return c
		}
		select {
		case <-tick:
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
}

// waitForForgotten waits until a JWT's key no longer counts, because the library returns new keys a
// moment before it drops the old ones.
func (w *jwtWorld) waitForForgotten(t *testing.T, jwt string) {
	t.Helper()
	for tick := time.Tick(time.Millisecond); ; {
		_, err := w.guard.book.Load().issuer.verifyJWT(t.Context(), jwt, "tidemill")
		if errors.Is(err, ErrBadToken) {
			return
		}
		select {
		case <-tick:
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
}

func TestJWT(t *testing.T) {
	w := newJWTWorld(t, "")
	c, err := w.sendJWT(t, w.makeJWT(t, w.at, nil))
	if err != nil || c.Name() != "ana" || !c.Has(Operate) || c.Has(Approve) || !c.AllKeys(Operate) {
		t.Fatalf("%+v, %v", c, err)
	}
	if c := w.guard.Check(); c.Status != api.OK {
		t.Errorf("check %+v", c)
	}
}

func TestClaimsMakeMembersOfTeams(t *testing.T) {
	w := newJWTWorld(t, "")
	w.guard = open(t, writeAccess(t, w.oidcSection("")+"teams:\n  interns: {keys: [lab-1], recipes: [intent], priority: -5, members: [{claim: groups, value: interns}]}\n"),
		Options{Now: w.at.now, Logger: w.log.logger()})
	for group, member := range map[string]bool{"interns": true, "guests": false} {
		c, err := w.sendJWT(t, w.makeJWT(t, w.at, claims{"groups": []string{group}}))
		if err != nil {
			t.Fatal(err)
		}
		if most, err := c.MayRun("intent", "lab-1"); (err == nil) != member || member && most != -5 {
			t.Errorf("%s: %d, %v", group, most, err)
		}
		if c.MayPublish(event("new-data", "/shop/eu", "lab-1", ""), nil) == nil {
			t.Errorf("%s: it publishes without a role", group)
		}
	}
}

func TestClaimsGiveRoles(t *testing.T) {
	w := newJWTWorld(t, "")
	for _, c := range []struct {
		name string
		but  claims
		may  func(*Caller) bool
	}{
		{"one of a list", claims{"groups": []string{"x", "ml-ops"}}, func(c *Caller) bool { return c.Has(Operate) }},
		{"a text", claims{"groups": "ml-ops"}, func(c *Caller) bool { return c.Has(Operate) }},
		{"two that match", claims{"groups": []string{"shop"}, "team": "audit"}, func(c *Caller) bool {
			return c.MayTouch(Publish, "shop-7") && !c.MayTouch(Publish, "bot-1") && c.MayTouch(Read, "bot-1") && !c.Has(Operate)
		}},
		{"none", claims{"groups": []string{}}, func(c *Caller) bool { return !c.Has(Read) && !c.Has(Publish) }},
		{"no claim", claims{"groups": nil}, func(c *Caller) bool { return !c.Has(Read) && !c.Has(Publish) }},
		{"part of a text", claims{"groups": "ml-ops-interns"}, func(c *Caller) bool { return !c.Has(Operate) }},
		{"other shapes", claims{"groups": map[string]any{"ml-ops": true}, "team": 7}, func(c *Caller) bool { return !c.Has(Operate) }},
		{"texts beside others", claims{"groups": []any{1, nil, []string{"ml-ops"}, "shop"}}, func(c *Caller) bool { return !c.Has(Operate) && c.Has(Publish) }},
	} {
		if got, err := w.sendJWT(t, w.makeJWT(t, w.at, c.but)); err != nil || !c.may(got) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func TestJWTsThatAreRefused(t *testing.T) {
	w := newJWTWorld(t, "")
	hour := func(n time.Duration) int64 { return w.at.now().Add(n * time.Hour).Unix() }
	foreign := newIssuerServer(t)
	for _, c := range []struct {
		name, jwt string
		is        error
		says      string
	}{
		{"expired", w.makeJWT(t, w.at, claims{"exp": hour(-1)}), ErrExpired, "get a new one"},
		{"never expiring", w.makeJWT(t, w.at, claims{"exp": nil}), ErrExpired, ""},
		{"of tomorrow", w.makeJWT(t, w.at, claims{"nbf": hour(24), "exp": hour(25)}), ErrBadToken, "nbf"},
		{"for another program", w.makeJWT(t, w.at, claims{"aud": "crm"}), ErrBadToken, "audience"},
		{"for several others", w.makeJWT(t, w.at, claims{"aud": []string{"crm", "tidemill2"}}), ErrBadToken, "audience"},
		{"for nobody", w.makeJWT(t, w.at, claims{"aud": nil}), ErrBadToken, "audience"},
		{"of another issuer", w.makeJWT(t, w.at, claims{"iss": "https://id.example"}), ErrBadToken, "issued by a different provider"},
		{"of another's key", foreign.makeJWT(t, w.at, claims{"iss": w.URL}), ErrBadToken, "verify"},
		{"without a name", w.makeJWT(t, w.at, claims{"sub": nil}), ErrBadToken, "no text claim sub"},
		{"with a name that is no text", w.makeJWT(t, w.at, claims{"sub": 7}), ErrBadToken, "unmarshal"},
		{"with a name of a token", w.makeJWT(t, w.at, claims{"sub": "crm"}), ErrBadToken, "name of a token"},
		{"with a name that harms", w.makeJWT(t, w.at, claims{"sub": "ana\n\x1b[2J"}), ErrBadToken, "cannot be printed"},
		{"with a name too long", w.makeJWT(t, w.at, claims{"sub": strings.Repeat("a", 300)}), ErrBadToken, "longer than 256"},
		{"no JWT", "abc", ErrMalformed, "not a JWT"},
		{"two parts", "abc.def", ErrMalformed, "not a JWT"},
		{"an encrypted one", "a.b.c.d.e", ErrMalformed, "not a JWT"},
		{"nonsense", "a.b.c", ErrBadToken, ""},
	} {
		if got, err := w.sendJWT(t, c.jwt); got != nil || !errors.Is(err, c.is) || !errors.Is(err, ErrBadToken) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func segment(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// It must not be possible to sign a JWT with the public key, even if the issuer announces none and
// HS256.
func TestForgedAlgorithms(t *testing.T) {
	w := newJWTWorld(t, "")
	public := w.addRSA(t, "rsa")
	if _, err := w.sendJWT(t, w.signed(t, "rsa", w.at, nil)); err != nil {
		t.Fatal(err)
	}
	pkix, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	body := segment(w.claims(t, w.at, nil))
	for _, header := range []string{`{"alg":"none"}`, `{"alg":"None","kid":"rsa"}`, `{"kid":"rsa"}`, `{"alg":"","kid":"rsa"}`, `{"alg":"RS256","kid":"rsa"}`} {
		for _, signature := range []string{"", "AAAA", "="} {
			if c, err := w.sendJWT(t, segment(header)+"."+body+"."+signature); err == nil || errors.Is(err, ErrIssuerAway) {
				t.Errorf("%s opens the door to %+v, %v", header, c, err)
			}
		}
	}
	for name, secret := range map[string][]byte{
		"DER": pkix, "PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pkix}),
		"modulus": public.N.Bytes(), "nothing": nil,
	} {
		for _, header := range []string{`{"alg":"HS256","kid":"rsa"}`, `{"alg":"HS256"}`} {
			signed := segment(header) + "." + body
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(signed))
			if c, err := w.sendJWT(t, signed+"."+base64.RawURLEncoding.EncodeToString(mac.Sum(nil))); err == nil || !errors.Is(err, ErrBadToken) {
				t.Errorf("HS256 with the public key's %s opens the door to %+v, %v", name, c, err)
			}
		}
	}
	// A key in the token itself does not count.
	if _, err := w.sendJWT(t, segment(`{"alg":"RS256","jwk":{"kty":"oct","k":"AAAA"}}`)+"."+body+".AAAA"); err == nil {
		t.Error("a key of the token's own counts")
	}
}

func TestClocksMayBeApart(t *testing.T) {
	w := newJWTWorld(t, "")
	jwt := w.makeJWT(t, w.at, claims{"nbf": w.at.now().Add(30 * time.Second).Unix(), "exp": w.at.now().Add(10 * time.Minute).Unix()})
	if _, err := w.sendJWT(t, jwt); err != nil {
		t.Errorf("half a minute too early: %v", err)
	}
	w.at.add(10*time.Minute + leeway - time.Second)
	if _, err := w.sendJWT(t, jwt); err != nil {
		t.Errorf("a little too late: %v", err)
	}
	w.at.add(2 * time.Second)
	if _, err := w.sendJWT(t, jwt); !errors.Is(err, ErrExpired) {
		t.Errorf("too late: %v", err)
	}
}

// A cached JWT must still expire.
func TestRememberedJWTsExpire(t *testing.T) {
	w := newJWTWorld(t, "")
	jwt := w.makeJWT(t, w.at, claims{"exp": w.at.now().Add(time.Minute).Unix()})
	for range 3 {
		if _, err := w.sendJWT(t, jwt); err != nil {
			t.Fatal(err)
		}
	}
	w.at.add(time.Minute + leeway + time.Second)
	if _, err := w.sendJWT(t, jwt); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v", err)
	}
}

func TestKeysRotate(t *testing.T) {
	w := newJWTWorld(t, "")
	old := w.makeJWT(t, w.at, nil)
	if _, err := w.sendJWT(t, old); err != nil {
		t.Fatal(err)
	}
	w.at.add(keysRest)
	w.rotateKeys(t, "two")
	if c := w.waitForAccepted(t, w.signed(t, "two", w.at, nil)); c.Name() != "ana" {
		t.Errorf("%s has the new key", c.Name())
	}
	w.waitForForgotten(t, old)
	w.at.add(seenFor + time.Second)
	if _, err := w.sendJWT(t, old); !errors.Is(err, ErrBadToken) {
		t.Errorf("of the withdrawn key: %v", err)
	}
}

// If no unknown key causes a request, a withdrawn key is dropped within the hour.
func TestWithdrawnKeysAreForgotten(t *testing.T) {
	w := newJWTWorld(t, "")
	jwt := w.makeJWT(t, w.at, claims{"exp": w.at.now().Add(24 * time.Hour).Unix()})
	if _, err := w.sendJWT(t, jwt); err != nil {
		t.Fatal(err)
	}
	w.rotateKeys(t, "two")
	w.at.add(renewEvery + time.Second)
	if c, err := w.sendJWT(t, jwt); !errors.Is(err, ErrBadToken) {
		t.Errorf("%+v, %v", c, err)
	}
}

// If the issuer is down when its keys are old, they stay in use.
func TestOldKeysOutliveAnIssuer(t *testing.T) {
	w := newJWTWorld(t, "")
	day := claims{"exp": w.at.now().Add(24 * time.Hour).Unix()}
	jwt := w.makeJWT(t, w.at, day)
	if _, err := w.sendJWT(t, jwt); err != nil {
		t.Fatal(err)
	}
	w.change(func() { w.fault = away })
	for range 5 {
		w.at.add(renewEvery + time.Second)
		if _, err := w.sendJWT(t, jwt); err != nil {
			t.Errorf("of a known key: %v", err)
		}
	}
	if c := w.guard.Check(); c.Status != api.Degraded {
		t.Errorf("check %+v", c)
	}
	w.addKey(t, "two")
	if _, err := w.sendJWT(t, w.signed(t, "two", w.at, day)); !errors.Is(err, ErrIssuerAway) || errors.Is(err, ErrBadToken) {
		t.Errorf("of a key that nobody could ask for: %v", err)
	}
	w.change(func() { w.fault = nil })
	w.at.add(maxPause)
	w.waitForAccepted(t, w.signed(t, "two", w.at, day))
	if c := w.guard.Check(); c.Status != api.OK {
		t.Errorf("check %+v", c)
	}
}

func away(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusBadGateway) }

func TestIssuerAwayAtFirst(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"502":        away,
		"a web page": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"a text":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `"sorry"`) },
		"another":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"issuer": "https://id.example"}`) },
		"a hang-up":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"too much":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "["+strings.Repeat("0,", maxAnswer)+"0]") },
		"a carousel": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"half of it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{}")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newJWTWorld(t, "")
			w.change(func() { w.fault = fault })
			jwt := w.makeJWT(t, w.at, nil)
			const times = 20
			for range times {
				if _, err := w.sendJWT(t, jwt); !errors.Is(err, ErrIssuerAway) || errors.Is(err, ErrBadToken) || len(err.Error()) > 1000 {
					t.Fatalf("got %v", err)
				}
			}
			if n := w.times("/.well-known/openid-configuration"); n > 5 { // more than one request, because some faults are redirects
				t.Errorf("the issuer was asked %d times", n)
			}
			if _, err := w.guard.Caller(t.Context(), bearerOf(w.token)); err != nil {
				t.Errorf("a token of ours: %v", err)
			}
			if c := w.guard.Check(); c.Status != api.Degraded || !strings.Contains(c.Detail, "still work") {
				t.Errorf("check %+v", c)
			}
			w.change(func() { w.fault = nil })
			w.at.add(2*maxPause + 1)
			if c := w.guard.Check(); c.Status != api.OK {
				t.Errorf("check %+v of what was long ago", c)
			}
			if c, err := w.sendJWT(t, jwt); err != nil || c.Name() != "ana" {
				t.Errorf("when it is back: %v", err)
			}
			if c := w.guard.Check(); c.Status != api.OK {
				t.Errorf("check %+v", c)
			}
		})
	}
}

// No server listens at the issuer's address.
func TestNoIssuerAtAll(t *testing.T) {
	w := newJWTWorld(t, "")
	jwt := w.makeJWT(t, w.at, nil)
	w.Server.Close()
	if _, err := w.sendJWT(t, jwt); !errors.Is(err, ErrIssuerAway) {
		t.Errorf("got %v", err)
	}
}

// The pauses grow, so that a starting issuer is not overloaded.
func TestPausesGrow(t *testing.T) {
	w := newJWTWorld(t, "")
	w.change(func() { w.fault = away })
	jwt := w.makeJWT(t, w.at, nil)
	for range 600 {
		if _, err := w.sendJWT(t, jwt); err == nil {
			t.Fatal("an issuer that is away answers")
		}
		w.at.add(time.Second)
	}
	// Pauses of 1, 2, 4, 8, 16 and then 30 seconds.
	if n := w.times("/.well-known/openid-configuration"); n < 15 || n > 30 {
		t.Errorf("asked %d times in ten minutes", n)
	}
}

// Forged tokens must not cause a request to the issuer each.
func TestForgedKeysDoNotReachTheIssuer(t *testing.T) {
	w := newJWTWorld(t, "")
	foreign := newIssuerServer(t)
	if _, err := w.sendJWT(t, w.makeJWT(t, w.at, nil)); err != nil {
		t.Fatal(err)
	}
	before := w.times("/keys")
	for i := range 50 {
		id := fmt.Sprint("forged-", i)
		foreign.sign[id] = foreign.sign["one"]
		if _, err := w.sendJWT(t, foreign.signed(t, id, w.at, claims{"iss": w.URL})); !errors.Is(err, ErrBadToken) {
			t.Fatalf("got %v", err)
		}
		w.at.add(100 * time.Millisecond)
	}
	if n := w.times("/keys") - before; n > 1 {
		t.Errorf("the issuer was asked %d times in five seconds", n)
	}
}

// Many concurrent calls cause one request to the issuer.
func TestManyComeAtOnce(t *testing.T) {
	w := newJWTWorld(t, "")
	jwt := w.makeJWT(t, w.at, nil)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := w.sendJWT(t, jwt); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if a, b := w.times("/.well-known/openid-configuration"), w.times("/keys"); a != 1 || b != 1 {
		t.Errorf("asked %d and %d times", a, b)
	}
}

// A call returns at once when its context ends, even if the issuer is slow.
func TestSlowIssuer(t *testing.T) {
	w := newJWTWorld(t, "")
	asked, stop := make(chan struct{}, 10), make(chan struct{})
	w.change(func() {
		w.fault = func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-stop:
			}
		}
	})
	jwt := w.makeJWT(t, w.at, nil)
	first := make(chan error, 1)
	go func() { _, err := w.sendJWT(t, jwt); first <- err }()
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.guard.Caller(ctx, bearerOf(jwt)); !errors.Is(err, ErrIssuerAway) {
		t.Errorf("who gave up: %v", err)
	}
	close(stop)
	if err := <-first; !errors.Is(err, ErrIssuerAway) {
		t.Errorf("who waited: %v", err)
	}
}

// Close does not wait for an issuer that never answers, and ends the calls that wait for it.
func TestCloseEndsQuestions(t *testing.T) {
	is := newIssuerServer(t)
	at := newClock()
	asked := make(chan struct{}, 1)
	is.change(func() {
		is.fault = func(_ http.ResponseWriter, r *http.Request) { asked <- struct{}{}; <-r.Context().Done() }
	})
	g, err := Open(t.Context(), writeAccess(t, is.oidcSection("")), Options{Now: at.now})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	jwt := is.makeJWT(t, at, nil)
	go func() { _, err := g.Caller(context.Background(), bearerOf(jwt)); ended <- err }()
	<-asked
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrIssuerAway) {
		t.Errorf("got %v", err)
	}
}

// Keys over plain HTTP are refused, because anyone on the way may change them.
func TestKeysOverPlainHTTP(t *testing.T) {
	for name, path := range map[string]string{"redirect": "/elsewhere", "keys": "/.well-known/openid-configuration"} {
		t.Run(name, func(t *testing.T) {
			plain := newIssuerServer(t)
			var tls *httptest.Server
			tls = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == path {
					fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, tls.URL, plain.URL+"/keys")
					return
				}
				http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
			}))
			t.Cleanup(tls.Close)
			at := newClock()
			g := open(t, writeAccess(t, strings.ReplaceAll(plain.oidcSection(""), plain.URL, tls.URL)), Options{Now: at.now, HTTPClient: tls.Client()})
			_, err := g.Caller(t.Context(), bearerOf(plain.makeJWT(t, at, claims{"iss": tls.URL})))
			if !errors.Is(err, ErrIssuerAway) || !strings.Contains(err.Error(), "http") || plain.times("/keys") != 0 {
				t.Errorf("got %v, and its keys were asked for %d times", err, plain.times("/keys"))
			}
		})
	}
}

// An invalid key set must not make a valid token count as bad.
func TestKeysThatAreNone(t *testing.T) {
	w := newJWTWorld(t, "")
	w.change(func() { w.plain = away })
	jwt := w.makeJWT(t, w.at, nil)
	if _, err := w.sendJWT(t, jwt); !errors.Is(err, ErrIssuerAway) {
		t.Errorf("no keys: %v", err)
	}
	w.change(func() { w.plain = nil })
	w.at.add(firstPause)
	if _, err := w.sendJWT(t, jwt); err != nil {
		t.Error(err)
	}
}

func TestNamesByEmail(t *testing.T) {
	w := newJWTWorld(t, "  name: email\n")
	for _, c := range []struct {
		but  claims
		name string
		says string
	}{
		{claims{"email": "ana@shop.example", "email_verified": true}, "ana@shop.example", ""},
		{claims{"email": "ana@shop.example"}, "ana@shop.example", ""},
		{claims{"email": "ana@shop.example", "email_verified": false}, "", "not verified"},
		{claims{"email": []string{"ana@shop.example"}}, "", "no text claim email"},
		{claims{"email": "ana@shop.example", "email_verified": "false"}, "", "not verified"},
		{nil, "", "no text claim email"},
	} {
		got, err := w.sendJWT(t, w.makeJWT(t, w.at, c.but))
		if c.says == "" && (err != nil || got.Name() != c.name) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v: %+v, %v", c.but, got, err)
		}
	}
}

// At many issuers a person can set any email, so an unverified one gives no role either.
func TestRolesByEmail(t *testing.T) {
	is, at := newIssuerServer(t), newClock()
	guard := open(t, writeAccess(t, fmt.Sprintf("oidc:\n  issuer: %s\n  audience: tidemill\n  roles:\n    - {claim: email, value: boss@corp.example, role: approve}\n    - {claim: groups, value: team, role: read}\n", is.URL)), Options{Now: at.now})
	for _, c := range []struct {
		but     claims
		approve bool
		read    bool
		says    string
	}{
		{claims{"email": "boss@corp.example", "email_verified": true}, true, true, ""},
		{claims{"email": "boss@corp.example"}, true, true, ""},
		{claims{"email": "boss@corp.example", "email_verified": false}, false, false, "role by its email: its email is not verified"},
		{claims{"email": "boss@corp.example", "email_verified": "no"}, false, false, "not verified"},
		{claims{"email": "boss@corp.example", "email_verified": false, "groups": "team"}, false, true, ""},
		{claims{"email": "other@corp.example", "email_verified": false}, false, false, ""},
	} {
		got, err := guard.Caller(t.Context(), bearerOf(is.makeJWT(t, at, c.but)))
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %v", c.but, err)
			}
		case err != nil || got.Has(Approve) != c.approve || got.Has(Read) != c.read:
			t.Errorf("%v: %+v, %v", c.but, got, err)
		}
	}
}

// Without oidc in the file, no JWT is read.
func TestNoIssuerInTheFile(t *testing.T) {
	is := newIssuerServer(t)
	at := newClock()
	g := open(t, writeAccess(t, ""), Options{Now: at.now})
	if _, err := g.Caller(t.Context(), bearerOf(is.makeJWT(t, at, nil))); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "tm_") {
		t.Errorf("got %v", err)
	}
	if is.times("/keys") != 0 {
		t.Error("the issuer was asked")
	}
}

// Algorithms other than RS256 count if the issuer announces them.
func TestAlgorithms(t *testing.T) {
	for announced, want := range map[string]string{
		"":                   "RS256",
		"none HS256":         "RS256",
		"ES256 HS512 PS256":  "ES256 PS256",
		"RS256 EdDSA ML-DSA": "RS256 EdDSA",
	} {
		if got := strings.Join(asymmetricAlgorithms(strings.Fields(announced)), " "); got != want {
			t.Errorf("%s: %s", announced, got)
		}
	}
}

func BenchmarkCallerJWT(b *testing.B) {
	w := newJWTWorld(b, "")
	w.addRSA(b, "rsa")
	header := bearerOf(w.signed(b, "rsa", w.at, nil))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.guard.Caller(b.Context(), header); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify measures the check of a JWT that is not cached.
func BenchmarkVerify(b *testing.B) {
	w := newJWTWorld(b, "")
	w.addRSA(b, "rsa")
	jwt := w.signed(b, "rsa", w.at, nil)
	book := w.guard.book.Load()
	for b.Loop() {
		if _, err := book.issuer.verifyJWT(b.Context(), jwt, "tidemill"); err != nil {
			b.Fatal(err)
		}
	}
}
