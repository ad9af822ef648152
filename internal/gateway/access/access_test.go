package access

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// clockStart is the start of the tests' clock.
var clockStart = time.Date(2026, 6, 1, 8, 0, 0, 0, time.UTC)

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: clockStart} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// newToken returns a token, and its hash as in the file.
func newToken() (token, sum string) {
	secret, hash := NewToken()
	return secret.Reveal(), "sha256:" + hex.EncodeToString(hash[:])
}

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// writeAccess writes an access file.
func writeAccess(t testing.TB, text string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "access.yaml"), "version: 1\n"+text)
}

func open(t testing.TB, path string, o Options) *Guard {
	t.Helper()
	g, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// guardLog collects the log of a guard.
type guardLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *guardLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *guardLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *guardLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// mustNotContain fails if a text contains eight or more consecutive characters of a token.
func mustNotContain(t testing.TB, what, text, token string) {
	t.Helper()
	const part = 8
	for i := len(tokenPrefix); i+part <= len(token); i++ {
		if strings.Contains(text, token[i:i+part]) {
			t.Fatalf("%s tells of the token: %s", what, text)
		}
	}
}

func bearerOf(token string) string { return "Bearer " + token }

func yamlToken(name, sum, rights string) string {
	return fmt.Sprintf("  %s: {hash: %q, %s}\n", name, sum, rights)
}
