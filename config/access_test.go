package config

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func mustParseAccess(t *testing.T, text string) *Access {
	t.Helper()
	a, err := ParseAccess("access.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAccess(t *testing.T) {
	text, err := Examples().(interface {
		ReadFile(string) ([]byte, error)
	}).ReadFile("access.yaml")
	if err != nil {
		t.Fatal(err)
	}
	a := mustParseAccess(t, string(text))
	crm, ok := a.Token("crm")
	if !ok {
		t.Fatalf("no crm in %+v", a.Tokens)
	}
	if crm.Hash == [sha256.Size]byte{} || crm.Line != 10 {
		t.Errorf("hash %x, line %d", crm.Hash, crm.Line)
	}
	want := Token{Name: "crm", Line: crm.Line, Hash: crm.Hash,
		Expires: time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC),
		Rights:  Rights{Roles: []string{"publish"}, Types: []string{"order-*"}, Sources: []string{"/shop/*"}, Keys: []string{"bot-42", "shop-*"}}}
	if !reflect.DeepEqual(crm, want) {
		t.Errorf("got %+v\nwant %+v", crm, want)
	}
	wantOIDC := &OIDC{Issuer: "https://id.example", Audience: "tidemill", Name: "email", Roles: []ClaimRights{
		{Claim: "groups", Value: "ml-ops", Rights: Rights{Roles: []string{"operate"}}},
		{Claim: "groups", Value: "chat", Rights: Rights{Roles: []string{"publish", "read"}, Keys: []string{"bot-*"}}},
	}}
	if !reflect.DeepEqual(a.OIDC, wantOIDC) {
		t.Errorf("got %+v\nwant %+v", a.OIDC, wantOIDC)
	}
	wantTeams := []Team{
		{Name: "interns", Keys: []string{"lab-*"}, Recipes: []string{"intent"}, Priority: -100, Tokens: []string{"ana"}, Claims: []Claim{{"groups", "interns"}}},
		{Name: "researchers", Keys: []string{"lab-*", "bot-42"}, Recipes: []string{"intent", "vision-*"}, Priority: 500, Claims: []Claim{{"groups", "researchers"}}},
	}
	if !reflect.DeepEqual(a.Teams, wantTeams) {
		t.Errorf("got %+v\nwant %+v", a.Teams, wantTeams)
	}
	if _, ok := a.Token("nobody"); ok || len(a.Tokens) != 3 || a.Tokens[2].Name != "dashboard" {
		t.Errorf("tokens %+v", a.Tokens)
	}
}

func TestAccessMayBeBare(t *testing.T) {
	for _, text := range []string{"version: 1", "version: 1\ntokens:\noidc:\n", "version: 1\ntokens: {}"} {
		if a := mustParseAccess(t, text); len(a.Tokens) != 0 || a.OIDC != nil {
			t.Errorf("%q means %+v", text, a)
		}
	}
	a := mustParseAccess(t, "version: 1\noidc: {issuer: 'http://127.0.0.1:5556/dex', audience: a, roles: [{claim: c, value: v, role: read}]}")
	if a.OIDC.Name != "sub" || a.OIDC.Issuer != "http://127.0.0.1:5556/dex" {
		t.Errorf("got %+v", a.OIDC)
	}
}

func TestAccessTimes(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2027-01-31":                  time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC),
		"\"2027-01-31\"":              time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC),
		"2027-01-31T18:00:00Z":        time.Date(2027, 1, 31, 18, 0, 0, 0, time.UTC),
		"'2027-01-31T18:00:00+02:00'": time.Date(2027, 1, 31, 16, 0, 0, 0, time.UTC),
		"2020-01-01":                  time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), // a past date is not an error, because a file must not become invalid by itself
	} {
		a := mustParseAccess(t, "version: 1\ntokens: {a: {role: read, hash: 'sha256:"+strings.Repeat("ab", 32)+"', expires: "+text+"}}")
		if got := a.Tokens[0].Expires; got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
}

func TestLoadAccess(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "access.yaml")
	if _, err := LoadAccess(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := LoadAccess(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a folder: %v", err)
	}
	write(t, file, "version: 1")
	if _, err := LoadAccess(file); err != nil {
		t.Error(err)
	}
}

// The config must not hold a token either.
func TestTokensAreSecretsEverywhere(t *testing.T) {
	for _, token := range []string{"tm_" + strings.Repeat("hunter2", 6) + "h", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2"} {
		_, err := Parse("f", []byte("version: 1\nname: "+token))
		if err == nil || !strings.Contains(err.Error(), "holds a token") || strings.Contains(err.Error(), token[3:]) {
			t.Errorf("got %v", err)
		}
	}
	for _, word := range []string{"atm_machine-of-the-north-side", "tm_short", "eyJ.a.b"} {
		if why := secretIn(word); why != "" {
			t.Errorf("%s %s", word, why)
		}
	}
}

// FuzzParseAccess checks the reader of access files as FuzzParse checks the reader of configs.
func FuzzParseAccess(f *testing.F) {
	seed(f, Examples(), "*.yaml")
	seed(f, os.DirFS("testdata"), "bad-access-*.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ParseAccess("f", data)
		if err == nil {
			checkAccessSound(t, a)
			return
		}
		var all *Error
		if a != nil || !errors.As(err, &all) || len(all.Problems) == 0 || len(all.Problems) > maxProblems+1 {
			t.Fatalf("%+v and %v", a, err)
		}
		for _, p := range all.Problems {
			checkProblem(t, p)
		}
	})
}

func checkAccessSound(t *testing.T, a *Access) {
	t.Helper()
	hashes := map[[sha256.Size]byte]bool{}
	for _, token := range a.Tokens {
		if !callerName.fits(token.Name) || hashes[token.Hash] {
			t.Errorf("token %+v", token)
		}
		hashes[token.Hash] = true
		checkRights(t, token.Rights)
	}
	if a.OIDC == nil {
		return
	}
	if a.OIDC.Issuer == "" || a.OIDC.Audience == "" || a.OIDC.Name == "" || len(a.OIDC.Roles) == 0 {
		t.Errorf("oidc %+v", a.OIDC)
	}
	for _, c := range a.OIDC.Roles {
		if c.Claim == "" || c.Value == "" {
			t.Errorf("a role without a claim: %+v", c)
		}
		checkRights(t, c.Rights)
	}
}

// checkRights also refuses an empty list that is not nil, because one reader would take it for
// everything and another for nothing.
func checkRights(t *testing.T, r Rights) {
	t.Helper()
	if len(r.Roles) == 0 {
		t.Error("no role")
	}
	for _, patterns := range [][]string{r.Types, r.Sources, r.Keys} {
		if patterns != nil && len(patterns) == 0 {
			t.Errorf("rights %+v", r)
		}
		for _, p := range patterns {
			if p == "" || strings.Contains(p[:len(p)-1], "*") {
				t.Errorf("pattern %q", p)
			}
		}
	}
}
