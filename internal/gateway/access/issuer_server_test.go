package access

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
)

// issuerServer is an OpenID Connect issuer on loopback.
type issuerServer struct {
	*httptest.Server

	mu    sync.Mutex
	keys  []oidctest.PublicKey
	sign  map[string]crypto.PrivateKey // private keys by key id
	asked map[string]int               // number of requests by path
	fault http.HandlerFunc             // replaces all answers
	plain http.HandlerFunc             // replaces the answer with the keys
	code  http.HandlerFunc             // answers at the token endpoint
}

func newIssuerServer(t testing.TB) *issuerServer {
	s := &issuerServer{asked: map[string]int{}, sign: map[string]crypto.PrivateKey{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	s.addKey(t, "one")
	return s
}

func (s *issuerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked[r.URL.Path]++
	fake := &oidctest.Server{PublicKeys: append([]oidctest.PublicKey(nil), s.keys...), Algorithms: []string{oidc.RS256, oidc.ES256, "none", "HS256"}}
	fault := s.fault
	if r.URL.Path == "/keys" && fault == nil {
		fault = s.plain
	}
	if r.URL.Path == "/token" && fault == nil {
		fault = s.code
	}
	s.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	fake.SetIssuer(s.URL)
	fake.ServeHTTP(w, r)
}

// change changes the server while it is running.
func (s *issuerServer) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *issuerServer) times(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// addKey adds a key that is fast to generate.
func (s *issuerServer) addKey(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.take(id, key, key.Public())
}

// addRSA adds an RSA key, as most issuers have, and returns its public key.
func (s *issuerServer) addRSA(t testing.TB, id string) *rsa.PublicKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s.take(id, key, key.Public())
	return &key.PublicKey
}

func (s *issuerServer) take(id string, private crypto.PrivateKey, public crypto.PublicKey) {
	s.change(func() {
		s.sign[id] = private
		s.keys = append(s.keys, oidctest.PublicKey{PublicKey: public, KeyID: id, Algorithm: algorithmOf(private)})
	})
}

func algorithmOf(key crypto.PrivateKey) string {
	if _, ok := key.(*rsa.PrivateKey); ok {
		return oidc.RS256
	}
	return oidc.ES256
}

// rotateKeys replaces all keys by a new one.
func (s *issuerServer) rotateKeys(t testing.TB, id string) {
	t.Helper()
	s.change(func() { s.keys = nil })
	s.addKey(t, id)
}

// oidcSection returns the oidc section of an access file that trusts the server.
func (s *issuerServer) oidcSection(more string) string {
	return fmt.Sprintf(`oidc:
  issuer: %s
  audience: tidemill
  roles:
    - {claim: groups, value: ml-ops, role: operate}
    - {claim: groups, value: shop, role: publish, keys: ["shop-*"]}
    - {claim: team, value: audit, role: read}
%s`, s.URL, more)
}

type claims map[string]any

// makeJWT returns a JWT of ana for an hour. The claims in but override its own; nil removes one.
func (s *issuerServer) makeJWT(t testing.TB, at *clock, but claims) string {
	t.Helper()
	return s.signed(t, "one", at, but)
}

func (s *issuerServer) signed(t testing.TB, keyID string, at *clock, but claims) string {
	t.Helper()
	return oidctest.SignIDToken(s.sign[keyID], keyID, algorithmOf(s.sign[keyID]), s.claims(t, at, but))
}

func (s *issuerServer) claims(t testing.TB, at *clock, but claims) string {
	t.Helper()
	all := claims{"iss": s.URL, "aud": "tidemill", "sub": "ana", "exp": at.now().Add(time.Hour).Unix(), "groups": []string{"ml-ops"}}
	maps.Copy(all, but)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
