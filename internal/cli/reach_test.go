package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/platform"
)

// Flags come before variables, and a gateway before Kafka.
func TestWhereACommandGoes(t *testing.T) {
	t.Parallel()
	up, none := t.TempDir(), t.TempDir()
	if err := (platform.Running{PID: 1, HTTP: "h:1", URL: "http://up"}).Write(up); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, env string
		want      string // a URL, kafka, or a part of the error
	}{
		{"--kafka k:1", "", "kafka"},
		{"--kafka k:1", "TIDEMILL_URL=http://env", "kafka"},
		{"--kafka k:1 --data " + up, "TIDEMILL_URL=http://env TIDEMILL_KAFKA=k:2", "kafka"},
		{"--url http://flag", "TIDEMILL_URL=http://env", "http://flag"},
		{"--url http://flag --data " + up, "TIDEMILL_KAFKA=k:1", "http://flag"},
		{"", "TIDEMILL_URL=http://env", "http://env"},
		{"--data " + up, "TIDEMILL_URL=http://env TIDEMILL_KAFKA=k:1", "http://env"},
		{"", "TIDEMILL_KAFKA=k:1", "kafka"},
		{"--data " + up, "TIDEMILL_KAFKA=k:1", "kafka"},
		{"--data " + up, "", "http://up"},
		{"--data " + none, "", "neither a gateway (--url, TIDEMILL_URL) nor Kafka (--kafka, TIDEMILL_KAFKA)"},
		{"--url http://x --kafka k:1", "", "--url and --kafka are both given"},
		// A flag without an effect is refused. A variable is not, because it may be for other
		// commands.
		{"--kafka k:1 --token-file f", "", "--token-file is for a gateway"},
		{"--ca f", "TIDEMILL_KAFKA=k:1", "--ca is for a gateway, and only TIDEMILL_KAFKA is set"},
		{"--url http://x --name prod", "", "--name is for Kafka"},
		{"-f c.yaml --data " + up, "", "--config is for Kafka"},
		{"--kafka-tls --data " + up, "", "--kafka-tls is for Kafka"},
		{"--data " + up, "TIDEMILL_NAME=prod TIDEMILL_KAFKA_TLS=true", "http://up"},
	} {
		env := map[string]string{}
		for _, v := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		getenv := func(name string) string { return env[name] }
		called, err := parse(append([]string{"streams"}, strings.Fields(c.args)...), getenv)
		if err != nil {
			t.Fatal(err)
		}
		w, err := reachOf(called.program).Choose(getenv)
		got := w.URL
		if err != nil {
			got = err.Error()
		} else if w.URL == "" {
			got = "kafka"
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s with %s: %s, want %s", c.args, c.env, got, c.want)
		}
	}
}

// An address file that came with another person's folder must not make a command send the token
// there.
func TestATokenIsNotToldToWhomAFolderNames(t *testing.T) {
	t.Parallel()
	for address, told := range map[string]bool{"https://evil.example": false, "https://192.0.2.1": false, "https://localhost.evil.example": false, "http://127.0.0.1:1": true} {
		dir := t.TempDir()
		if err := (platform.Running{PID: 1, URL: address}).Write(dir); err != nil {
			t.Fatal(err)
		}
		leave(t, "tm_secret", dir, "token")
		o := call(t, "", "streams", "--data", dir, "--token-file", filepath.Join(dir, "token"))
		if refused := strings.Contains(o.err, "would get the token"); o.code == 0 || refused == told {
			t.Errorf("%s: exit %d, %s", address, o.code, o.err)
		}
	}
}

// The help says where each command goes.
func TestHelpSaysWhereACommandGoes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"publish", "tail", "streams"} {
		mention(t, name, ok(t, "help", name), connect.WhereTo, "[TIDEMILL_URL]", "[TIDEMILL_TOKEN_FILE]", "TIDEMILL_TOKEN", "[TIDEMILL_CA]")
	}
}

// The commands give the same answers through a gateway and on Kafka.
func TestGatewayAndKafkaAreOneForTheCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\nstreams: {messages: {types: [message]}}\n", dir, "c.yaml")
	s := startUp(t, dir, "-f", file)
	for way, flags := range map[string][]string{
		"gateway": {"--url", s.URL},
		"Kafka":   {"--kafka", s.Kafka, "-f", file, "--data", dir},
	} {
		run := func(stdin string, args ...string) outcome { return call(t, stdin, append(args, flags...)...) }
		says := func(what string, o outcome, code int, wanted ...string) {
			t.Helper()
			if o.code != code {
				t.Errorf("%s, %s: exit %d", way, what, o.code)
			}
			mention(t, way+", "+what, o.out+o.err, wanted...)
		}
		says("publish", run("", "publish", "message", "-s", "k", "-d", `{"by":"`+way+`"}`, "--id", way), 0, "published message "+way+" to messages, partition ")
		says("publish --stream", run("", "publish", "message", "-s", "k", "--id", way, "--stream", "events", "-o", "json"), 0, `"stream":"events"`, `"offset":`)
		says("publish --file", run(strings.Join([]string{
			`{"specversion":"1.0","id":"f1-` + way + `","source":"/x","type":"message"}`,
			`no event`,
			`{"specversion":"1.0","id":"f2-` + way + `","source":"/x","type":"tidemill.scored"}`,
			`{"specversion":"1.0","id":"f3-` + way + `","source":"/x","type":"message"}`,
		}, "\n"), "publish", "--file", "-"), exitFailed, "published 2 events", "standard input:2: ", "standard input:3: type", "2 lines of standard input were not published")
		says("tail", run("", "tail", "messages", "--from", "beginning", "--no-follow", "-w", "id LIKE '%"+way+"'"), 0, `{"by":"`+way+`"}`, "f1-"+way, "f3-"+way)
		says("tail -n", run("", "tail", "messages", "--from", "0", "-n", "1", "-o", "json"), 0, `"specversion":"1.0"`)
		says("tail of nothing", run("", "tail", "facts", "--from", "beginning", "--no-follow"), 0, "There are no events on facts.")
		says("tail of no stream", run("", "tail", "none"), exitFailed, "none")
		says("streams", run("", "streams"), 0, "messages", "dead-letters", "forever", "     7d")
		says("streams -o json", run("", "streams", "-o", "json"), 0, `"name": "messages"`, `"retentionSeconds": 604800`, `"groups": []`)
		for _, args := range []string{"publish a --stream facts", "publish tidemill.scored", "publish a --source /tidemill/x", "publish a --stream messages.parked"} {
			says(args, run("", strings.Fields(args)...), exitFailed, "reserved")
		}
		says("publish to no stream", run("", "publish", "a", "--stream", "none"), exitFailed, "none")
	}
}

// If a busy Redis does not answer in time, a repeated event is stored again. So each call is
// repeated until the event is recognised.
func TestPublishedTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	line := `{"specversion":"1.0","id":"once","source":"/cli","type":"a"}`
	for _, c := range []struct{ args, stdin, says string }{
		{"publish a --id once", "", "a once exists already: nothing was stored\n"},
		{"publish a --id once -o json", "", `{"id":"once","source":"/cli","type":"a","repeated":true}` + "\n"},
		{"publish --file -", line, "published 1 event; 1 of them existed already and is not stored again\n"},
		{"publish --file -", line + "\n" + line, "; 2 of them existed already and are not stored again\n"},
	} {
		eventually(t, func() bool {
			o := call(t, c.stdin, append(strings.Fields(c.args), "--data", dir)...)
			return o.code == 0 && strings.HasSuffix(o.out, c.says)
		})
	}
}

// A server that is not a gateway has stored nothing, even if it answers every path.
func TestPublishToAStranger(t *testing.T) {
	t.Parallel()
	url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<html>It works!") })
	for _, args := range []string{"publish a", "publish --file -", "tail events", "streams"} {
		o := call(t, `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`, append(strings.Fields(args), "--url", url)...)
		if o.code != exitFailed || !strings.Contains(o.err, "<html>It works!") && !strings.Contains(o.err, "is it a gateway of Tidemill?") {
			t.Errorf("%s: exit %d, %s%s", args, o.code, o.out, o.err)
		}
	}
}

func TestATokenNeverGoesOverPlainHTTP(t *testing.T) {
	t.Parallel()
	file := leave(t, "hush", t.TempDir(), "token")
	o := call(t, "", "streams", "--url", "http://tidemill.example", "--token-file", file)
	if o.code != exitFailed || strings.Contains(o.err, "hush") {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, "https://")
}

// A refusal that all events would get is printed once, and ends the run.
func TestAFileEndsAtWhatAllWouldMeet(t *testing.T) {
	t.Parallel()
	url, posts := refuseAll(t, http.StatusUnauthorized, problemType, "unauthenticated", "give a token")
	lines := strings.Repeat(`{"specversion":"1.0","id":"1","source":"/x","type":"a"}`+"\n", 20_000)
	o := call(t, lines, "publish", "--file", "-", "--url", url)
	if o.code != exitFailed || posts.Load() > 10 || strings.Count(o.err, "give a token") != 1 {
		t.Errorf("exit %d after %d requests: %s", o.code, posts.Load(), o.err)
	}
	// How many lines were read before the refusal depends on the speed: at least the first.
	mention(t, "the error", o.err, "standard input:1: ", " not published; give a valid one by TIDEMILL_TOKEN")
	if !regexp.MustCompile(`\b(1 event|\d+ events) not published;`).MatchString(o.err) {
		t.Errorf("the error does not count what was not published: %s", o.err)
	}
}

// For a lasting error the command suggests how to correct it, not to publish the file again.
func TestAFileIsNotToBePublishedAgainInVain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status      int
		media, kind string
		says        string
	}{
		{401, problemType, "unauthenticated", "; give a valid one by TIDEMILL_TOKEN or --token-file"},
		{403, problemType, "forbidden", "; give a token with this right by TIDEMILL_TOKEN or --token-file"},
		{404, problemType, "unknown-stream", "; give another --stream, or add it to the gateway's config"},
		{404, problemType, "not-found", "; give the gateway's own --url"},
		{415, problemType, "unsupported-media-type", "give the gateway's own --url"},
		{404, "text/html", "", "; give the gateway's own --url"},
		{500, problemType, "internal", "1 event not acknowledged; publish the file again"},
	} {
		url, _ := refuseAll(t, c.status, c.media, c.kind, "so it is")
		o := call(t, `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`, "publish", "--file", "-", "--stream", "s", "--url", url)
		if o.code != exitFailed || !strings.Contains(o.err, c.says) || strings.Contains(o.err, "again") != (c.status == 500) {
			t.Errorf("%d %s: exit %d, %s", c.status, c.kind, o.code, o.err)
		}
	}
}

// A command reports a full disk after one request, and does not retry.
func TestCommandsSayThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	const words = "disk full: 3 KiB are left in /data"
	url, posts := refuseAll(t, http.StatusInsufficientStorage, problemType, "disk-full", words)
	file := leave(t, "x", t.TempDir(), "file")
	for _, args := range []string{"publish a", "publish --file -", "runs start intent --key a", "runs retry abc", "data put d " + file} {
		posts.Store(0)
		o := call(t, `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`, append(strings.Fields(args), "--url", url)...)
		if o.code != exitFailed || posts.Load() != 1 || strings.Count(o.err, words) != 1 {
			t.Errorf("%s: exit %d after %d requests: %s", args, o.code, posts.Load(), o.err)
		}
	}
}

const problemType = "application/problem+json"

// refuseAll serves a gateway that refuses every request, and counts the posts.
func refuseAll(t *testing.T, status int, media, kind, detail string) (url string, posts *atomic.Int32) {
	t.Helper()
	posts = new(atomic.Int32)
	return serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"type":"https://tidemill.dev/problems/%s","status":%d,"detail":%q}`, kind, status, detail)
	}), posts
}

func serveHTTP(t *testing.T, answer http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// reachOf returns the flags of a parsed command that say where it goes.
func reachOf(p command.Program) *connect.Reach {
	return reflect.ValueOf(p).Elem().FieldByName("Reach").Addr().Interface().(*connect.Reach)
}

func TestTheTokensFileMustExist(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if o := call(t, "", "streams", "--url", "http://127.0.0.1:1", "--token-file", filepath.Join(dir, "none")); o.code != exitFailed || !strings.Contains(o.err, "read the token: ") {
		t.Errorf("exit %d, %s", o.code, o.err)
	}
}
