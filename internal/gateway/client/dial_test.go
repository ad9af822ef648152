package client

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"tidemill.dev/config"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"http://127.0.0.1:8080": "", "https://tidemill.example/door/": "", " http://localhost ": "",
		"": "write it like", "127.0.0.1:8080": "write it like", "kafka://x": "write it like", "http://": "write it like",
		"http://h/events": "leave out the path: http://h", "https://h:1/streams/events/": "leave out the path: https://h:1",
		"http://h/api/v1/streams": "leave out the path", "http://h/eventual": "", "http://h/door/streams-of-ours": "",
		"http://h/?a=b": "query", "http://h/#x": "fragment",
	} {
		_, err := open(Options{URL: text})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	if _, err := open(Options{URL: "https://ada:lovelace@h"}); err == nil || strings.Contains(err.Error(), "lovelace") {
		t.Errorf("a URL with a password: %v", err)
	}
}

func given(text string) func() (config.Secret, error) {
	return func() (config.Secret, error) { return config.NewSecret(text), nil }
}

func TestATokenIsNotToldInClearText(t *testing.T) {
	t.Parallel()
	for url, may := range map[string]bool{
		"http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost:1": true, "https://tidemill.example": true,
		"http://tidemill.example": false, "http://10.0.0.7:8080": false, "http://localhost.example": false,
	} {
		if _, err := open(Options{URL: url, Token: given("hush")}); (err == nil) != may || err != nil && (!strings.Contains(err.Error(), "https://") || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTheTokenIsReadAgainAndNeverPrinted(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"))
		stored("events/0/0")(w, r)
	}))
	defer server.Close()
	secret, failed := config.NewSecret("first"), error(nil)
	g, err := dialTwice(t, Options{URL: server.URL, Token: func() (config.Secret, error) { return secret, failed }})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if seen.Load() != "" {
		t.Errorf("a knock tells %q", seen.Load())
	}
	for _, c := range []struct {
		text   string
		failed error
		want   string
	}{{"first", nil, "Bearer first"}, {"second", nil, "Bearer second"}, {"second", errors.New("the file is away"), "Bearer second"}} {
		secret, failed = config.NewSecret(c.text), c.failed
		if _, err := g.Publish(t.Context(), "", event("1")); err != nil || seen.Load() != c.want {
			t.Errorf("%q, %v", seen.Load(), err)
		}
	}
	for _, bad := range []string{"", "two words", "line\nbreak"} {
		secret = config.NewSecret(bad)
		_, err := g.Publish(t.Context(), "", event("1"))
		if err == nil || !strings.Contains(err.Error(), "read the token") || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestDialTellsThatNobodyIsThere(t *testing.T) {
	t.Parallel()
	if _, err := dialTwice(t, Options{URL: "http://" + unusedAddress(t)}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "reach the gateway: dial tcp") {
		t.Errorf("%v", err)
	}
}

// unusedAddress returns an address without a listener; a connection occupies it.
func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}

// dialTwice repeats Dial if a busy machine was too slow for a handshake.
func dialTwice(t *testing.T, o Options) (*Gateway, error) {
	t.Helper()
	for {
		g, err := Dial(t.Context(), o)
		if !errors.Is(err, context.DeadlineExceeded) {
			return g, err
		}
	}
}

func TestDialTrustsWhomItIsTold(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(stored("events/0/0"))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // no log of the failing handshake
	server.StartTLS()
	defer server.Close()
	if _, err := dialTwice(t, Options{URL: server.URL}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a stranger is trusted: %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := dialTwice(t, Options{URL: server.URL, CAFile: file, Token: given("hush")})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Publish(t.Context(), "", event("1")); err != nil {
		t.Error(err)
	}
	if _, err := open(Options{URL: server.URL, CAFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a missing CA file is no error")
	}
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(Options{URL: server.URL, CAFile: file}); err == nil || !strings.Contains(err.Error(), "PEM") {
		t.Errorf("%v", err)
	}
}

func TestRetryAfterInBothForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "soon": false, "-3": false, "7": true, "Wed, 21 Oct 2015 07:28:00 GMT": false, "Wed, 21 Oct 2099 07:28:00 GMT": true} {
		if got := retryAfter(text); (got > 0) != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}
