package scheduler

import (
	"bytes"
	"strings"
	"testing"

	"tidemill.dev"
)

func TestTokensAreOfOneAttempt(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{7}, SecretSize)
	tokens, err := NewTokens(secret)
	if err != nil {
		t.Fatal(err)
	}
	of := tidemill.Attempt{Number: 2, Offset: 41}
	token := tokens.Of("run", of)
	if !tokens.Counts(token, "run", of) {
		t.Error("a token does not count for its own attempt")
	}
	if token != strings.ToLower(token) || len(token) != 52 {
		t.Errorf("the token is %q", token)
	}
	same, _ := NewTokens(secret)
	if !same.Counts(token, "run", of) {
		t.Error("another gateway with the same secret refuses it")
	}
	secret[0] = 8 // the caller may reuse its buffer
	if !tokens.Counts(token, "run", of) {
		t.Error("the secret is the caller's still")
	}
	other, _ := NewTokens(secret)
	for name, counts := range map[string]bool{
		"another run":     tokens.Counts(token, "ru", tidemill.Attempt{Number: 2, Offset: 41}),
		"another number":  tokens.Counts(token, "run", tidemill.Attempt{Number: 1, Offset: 41}),
		"another offset":  tokens.Counts(token, "run", tidemill.Attempt{Number: 2, Offset: 42}),
		"no token":        tokens.Counts("", "run", of),
		"more":            tokens.Counts(token+"a", "run", of),
		"less":            tokens.Counts(token[:51], "run", of),
		"capitals":        tokens.Counts(strings.ToUpper(token), "run", of),
		"another install": other.Counts(token, "run", of),
	} {
		if counts {
			t.Errorf("it counts for %s", name)
		}
	}
}

func TestAShortSecretIsNone(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 31, 33} {
		if _, err := NewTokens(make([]byte, n)); err == nil {
			t.Errorf("a secret of %d bytes will do", n)
		}
	}
}
