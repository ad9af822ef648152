package access

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTokens(t *testing.T) {
	token, sum := newToken()
	late, lateSum := newToken()
	other, _ := newToken()
	at := newClock()
	var log guardLog
	g := open(t, writeAccess(t, "tokens:\n"+yamlToken("crm", sum, "role: publish")+
		yamlToken("late", lateSum, "role: read, expires: 2026-06-02")), Options{Now: at.now, Logger: log.logger()})

	c, err := g.Caller(t.Context(), bearerOf(token))
	if err != nil || c.Name() != "crm" || !c.Has(Publish) || c.Has(Read) {
		t.Fatalf("%+v, %v", c, err)
	}
	if c, err := g.Caller(t.Context(), bearerOf(late)); err != nil || c.Name() != "late" {
		t.Errorf("%+v, %v", c, err)
	}
	at.add(16*time.Hour - time.Second) // one second before midnight
	if _, err := g.Caller(t.Context(), bearerOf(late)); err != nil {
		t.Error(err)
	}
	at.add(time.Second)
	if _, err := g.Caller(t.Context(), bearerOf(late)); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrBadToken) || !strings.Contains(err.Error(), "2026-06-02T00:00:00Z") {
		t.Errorf("an expired token: %v", err)
	}
	for _, unknown := range []string{other, token[:len(token)-1], token + "a", strings.ToUpper(token[3:]), "tm_", tokenPrefix + sum[len("sha256:"):]} {
		_, err := g.Caller(t.Context(), bearerOf(unknown))
		if !errors.Is(err, ErrBadToken) || errors.Is(err, ErrExpired) {
			t.Errorf("an unknown token: %v", err)
		}
		mustNotContain(t, "an error", fmt.Sprint(err), unknown)
	}
	mustNotContain(t, "the log", log.String(), token)
}

func TestTokensAreAlikeInNothing(t *testing.T) {
	a, sumA := newToken()
	b, sumB := newToken()
	if a == b || sumA == sumB || len(a) != len("tm_")+52 || !strings.HasPrefix(a, "tm_") {
		t.Errorf("%d letters", len(a))
	}
	if got, err := bearerToken(bearerOf(a)); got != a || err != nil {
		t.Errorf("a token that no header may have: %v", err)
	}
}

func TestNoFileNoDoor(t *testing.T) {
	if _, err := Open(t.Context(), t.TempDir()+"/none.yaml", Options{}); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(t.Context(), writeAccess(t, "tokns: {}"), Options{}); err == nil || !strings.Contains(err.Error(), `did you mean "tokens"`) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(t.Context(), t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkCallerToken(b *testing.B) {
	token, sum := newToken()
	g := open(b, writeAccess(b, "tokens:\n"+yamlToken("crm", sum, "role: publish")), Options{})
	header := bearerOf(token)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Caller(b.Context(), header); err != nil {
			b.Fatal(err)
		}
	}
}
