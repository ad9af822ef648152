package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/internal/cli/show"
)

func TestPublishFileReportsEachBadLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	file := leave(t, strings.Join([]string{
		`{"specversion":"1.0","id":"1","source":"/x","type":"a","subject":"k","data":{"n":1}}`,
		`garbage`,
		``,
		`{"specversion":"1.0","id":"2","source":"/x","type":"tidemill.scored"}`,
		`{"specversion":"1.0","source":"/x","type":"a"}`,
		`{"specversion":"1.0","id":"3","source":"/x","type":"a","data":"` + strings.Repeat("x", 2<<20) + `"}`,
		`{"specversion":"1.0","id":"4","source":"/x","type":"a"}`, // the last line without a newline
	}, "\n"), dir, "e.ndjson")
	o := call(t, "", "publish", "--data", dir, "--file", file)
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "stderr", o.err, file+":2: ", file+":4: type", file+":5: ", file+":6: ", "put large data into a store", "4 lines of "+file+" were not published")
	mention(t, "stdout", o.out, "published 2 events")
	mention(t, "tail", ok(t, "tail", "events", "--data", dir, "--from", "beginning", "--no-follow"), "  1  ", "  4  ")
}

func TestPublishFromStandardInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir, "-f", leave(t, "version: 1\nstreams: {copies: {}}\n", dir, "c.yaml"))
	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, "{\"specversion\":\"1.0\",\"id\":\"%d\",\"source\":\"/x\",\"type\":\"a\",\"subject\":\"bot-%d\"}\n", i, i%7)
	}
	o := call(t, lines.String(), "publish", "--data", dir, "--file", "-")
	mention(t, "stdout", o.out, "published 5,000 events in ", "/s")
	out := ok(t, "tail", "events", "--data", dir, "--from", "beginning", "--no-follow", "-o", "json")
	if n := strings.Count(out, "\n"); n != 5000 || o.code != 0 {
		t.Errorf("%d of 5000 events are there, exit %d: %s", n, o.code, o.err)
	}
	again := call(t, out, "publish", "--data", dir, "--file", "-", "--stream", "copies", "-o", "json")
	if n := strings.Count(again.out, `"stream":"copies"`); n != 5000 || again.code != 0 {
		t.Errorf("what tail prints cannot be published: %d receipts, exit %d: %s", n, again.code, again.err)
	}
}

func TestPublishSlips(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	missing := filepath.Join(dir, "none")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"publish", exitUsage, "TYPE is missing"},
		{"publish a b", exitUsage, `"b" is one argument too many`},
		{"publish a -d {", exitFailed, "is not JSON"},
		{"publish a -d @" + missing, exitFailed, missing},
		{"publish a --ext Big=1", exitFailed, "Big"},
		{"publish a --ext big", exitUsage, "name=value"},
		{"publish a --time noon", exitFailed, "time"},
		{"publish a --source /tidemill/x", exitFailed, "reserved"},
		{"publish tidemill.scored", exitFailed, "reserved"},
		{"publish a --stream none", exitFailed, `stream "none" is not in the config: use one of those listed, or add it there (events)`},
		{"publish a --stream facts", exitFailed, `stream "facts" is reserved`},
		{"publish --file x --stream events.parked", exitFailed, `stream "events.parked" is reserved`},
		{"publish a -o yaml", exitUsage, "text or json"},
		{"publish --file x -d 1", exitUsage, "leave out TYPE"},
		{"publish --file " + missing, exitFailed, missing},
		{"publish --file " + dir, exitFailed, "is a folder"},
		{"publish a -d @-", exitFailed, "standard input is empty"},
	} {
		o := call(t, "", append(strings.Fields(c.args), "--data", dir)...)
		if o.code != c.code || !strings.Contains(o.err, c.says) || !strings.HasPrefix(o.err, "tidemill: ") {
			t.Errorf("%s: exit %d, %q; want %d, %q", c.args, o.code, o.err, c.code, c.says)
		}
	}
}

// Standard input may stay silent for ever. Ctrl-C ends the wait for it.
func TestInterruptedBeforeASilentInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	for args, says := range map[string]string{
		"publish --file - -o json": "interrupted before line 2 of standard input",
		"publish a -d @-":          "read the data: interrupted",
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		stdin, typed := io.Pipe()
		printed, ended := newFirstLine(), make(chan error, 1)
		go func() {
			ended <- run(ctx, append(strings.Fields(args), "--data", dir), stdin, printed, io.Discard)
		}()
		fmt.Fprintln(typed, `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`)
		if strings.Contains(args, "--file") {
			<-printed.written // wait for the receipt
		}
		interrupt()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// A failure that concerns all events ends the wait for a silent input too, such as a tail of a quiet stream.
func TestPublishFailsBeforeASilentInput(t *testing.T) {
	t.Parallel()
	url, _ := refuseAll(t, http.StatusForbidden, problemType, "forbidden", "you may not publish")
	stdin, typed := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"publish", "--file", "-", "--url", url}, stdin, io.Discard, io.Discard)
	}()
	fmt.Fprintln(typed, `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "standard input:1: publish event 1: you may not publish; 1 event not published") {
		t.Error(err)
	}
}

func TestProgressWorries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out syncBuffer
		var met error
		p := show.StartProgress(&out, show.Worry{Who: "Kafka", Trouble: func() error { return met }}, 0)
		defer p.Stop()
		time.Sleep(time.Minute) // no event is open, so no answer is missing
		for range 2 {
			p.Sent()
			time.Sleep(time.Minute)
			p.Answered(true)
		}
		met = errors.New("503")
		p.Sent()
		time.Sleep(time.Minute)
		p.Answered(true)
		if want := "No answer for 5s; sending 1 event; retrying for up to 2 minutes. Last error: 503\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("got %s, want %s", &out, want)
		}
		if n := strings.Count(out.String(), "No answer from Kafka for 5s; sending 1 event"); n != 2 {
			t.Errorf("two silences were told of %d times:\n%s", n, &out)
		}
	})
}

// firstLine signals the first write to it.
type firstLine struct{ written chan struct{} }

func newFirstLine() *firstLine { return &firstLine{make(chan struct{}, 1)} }

func (f *firstLine) Write(p []byte) (int, error) {
	select {
	case f.written <- struct{}{}:
	default:
	}
	return len(p), nil
}
