package deliver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
)

// age makes a file old enough that it is not read on every use.
func age(t testing.TB, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

func secretIn(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCredentialsAreSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		of           config.Credentials
		header, want string
	}{
		"bearer": {config.Credentials{BearerFile: secretIn(t, dir, "token", "hunter2\n")}, "Authorization", "Bearer hunter2"},
		"basic":  {config.Credentials{BasicFile: secretIn(t, dir, "basic", "user:hunter2\r\n")}, "Authorization", "Basic dXNlcjpodW50ZXIy"},
		"header": {config.Credentials{Header: "x-api-key", HeaderFile: secretIn(t, dir, "key", "hunter 2")}, "X-Api-Key", "hunter 2"},
		"none":   {config.Credentials{}, "Authorization", ""},
	} {
		var got string
		trigger := triggerTo(answering(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get(c.header) }))
		trigger.To.Credentials = c.of
		expect(t, newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1), delivered)
		if got != c.want {
			t.Errorf("%s: %s is %q, want %q", name, c.header, got, c.want)
		}
	}
}

func TestCredentialsFollowTheirFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	var got string
	trigger := triggerTo(answering(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	trigger.To.Credentials.BearerFile = path
	s := newPoster(t, trigger, subscriberOptions{})
	o := s.post(t.Context(), posted(), 1)
	expect(t, o, again, "bearerFile", "no such file")
	if strings.Contains(o.attempt.Error, path) {
		t.Errorf("the path is shown, and may be the secret: %s", o.attempt.Error)
	}
	for _, token := range []string{"one", "two"} {
		secretIn(t, filepath.Dir(path), "token", token)
		age(t, path)
		expect(t, s.post(t.Context(), posted(), 1), delivered)
		if got != "Bearer "+token {
			t.Errorf("%q is sent, want %q", got, token)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect(t, s.post(t.Context(), posted(), 1), delivered)
	if got != "Bearer two" {
		t.Errorf("without its file %q is sent", got)
	}
}

func TestCredentialsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	asked := false
	url := answering(t, func(http.ResponseWriter, *http.Request) { asked = true })
	for name, c := range map[string]struct {
		of   config.Credentials
		says string
	}{
		"empty":        {config.Credentials{BearerFile: secretIn(t, dir, "empty", "\n")}, "is empty"},
		"with Bearer":  {config.Credentials{BearerFile: secretIn(t, dir, "bearer", "Bearer hunter2")}, "without Bearer"},
		"two lines":    {config.Credentials{BearerFile: secretIn(t, dir, "lines", "hunter2\r\nX-Forged: 1")}, "more than one line"},
		"no user":      {config.Credentials{BasicFile: secretIn(t, dir, "nouser", "hunter2")}, "no colon"},
		"header lines": {config.Credentials{Header: "x-key", HeaderFile: secretIn(t, dir, "header", "hunter2\nhunter2")}, "more than one line"},
		"a folder":     {config.Credentials{BearerFile: dir}, "is not a file"},
		"itself":       {config.Credentials{BearerFile: "hunter2"}, "no such file"},
		"no CA":        {config.Credentials{CAFile: secretIn(t, dir, "ca", "hunter2")}, "no certificate in PEM"},
		"no key":       {config.Credentials{CertFile: secretIn(t, dir, "cert", "hunter2"), KeyFile: secretIn(t, dir, "pem", "hunter2")}, "certFile and keyFile"},
	} {
		trigger := triggerTo(url)
		trigger.To.Credentials = c.of
		o := newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1)
		if o.kind != again || !strings.Contains(o.attempt.Error, c.says) {
			t.Errorf("%s: %s, %q, want %q", name, o.kind, o.attempt.Error, c.says)
		}
		if strings.Contains(o.attempt.Error, "hunter2") || strings.Contains(o.attempt.Error, dir) {
			t.Errorf("%s is shown: %s", name, o.attempt.Error)
		}
	}
	if asked {
		t.Error("a request went out without its credentials")
	}
}

// No attempt shows our secret, whatever the subscriber answers.
func TestEchoesAreBlottedOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const secret = "hunter2-hunter2-hunter2"
	for name, of := range map[string]config.Credentials{
		"bearer": {BearerFile: secretIn(t, dir, "token", secret)},
		"header": {Header: "x-api-key", HeaderFile: secretIn(t, dir, "key", secret)},
		"basic":  {BasicFile: secretIn(t, dir, "basic", "user:"+secret)},
	} {
		for pad := maxAnswer - 60; pad <= maxAnswer+1; pad++ {
			echo := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "https://x.example/"+r.Header.Get("X-Api-Key"))
				w.WriteHeader(400 - pad%2*92) // status 400 or 308
				_, _ = fmt.Fprint(w, strings.Repeat("-", pad), r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), password(r))
			}
			if !echoIsClean(t, name, of, echo) {
				break
			}
		}
	}
}

func echoIsClean(t *testing.T, name string, of config.Credentials, echo http.HandlerFunc) bool {
	trigger := triggerTo("http://subscriber.example")
	trigger.To.Credentials = of
	s := newPoster(t, trigger, subscriberOptions{})
	known := []string{"hunter2", "dXNlcjpodW50"}
	req, hidden, err := s.request(t.Context(), posted())
	if err != nil {
		t.Fatal(err)
	}
	w := newRecorded(req, echo)
	var o attemptResult
	a := readAnswer(w, maxAnswer)
	s.conclude(t.Context(), posted(), &a, hidden, &o)
	for _, shown := range known {
		if text := fmt.Sprintf("%+v", o.attempt); strings.Contains(text, shown) || len(o.attempt.Answer) > maxAnswer {
			t.Errorf("%s: %s", name, text)
			return false
		}
	}
	return true
}

func password(r *http.Request) string {
	_, p, _ := r.BasicAuth()
	return p
}
