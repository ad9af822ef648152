package cli

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
)

// lateServer is an address at which a server can be reached once it is open.
type lateServer struct {
	net.Listener
	to   string
	open atomic.Bool
}

// newLateServer closes all connections that come before it is open.
func newLateServer(t *testing.T, to string) *lateServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &lateServer{Listener: l, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				running.Go(func() { g.pass(c) })
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return g
}

func (g *lateServer) pass(c net.Conn) {
	defer c.Close()
	if !g.open.Load() {
		return
	}
	server, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, c) // ends with either connection
		_ = server.Close()
	}()
	_, _ = io.Copy(c, server)
}

const fillingConfig = `version: 1
streams: {messages: {types: [message]}, scored: }
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", noModel: pass}
`

// While the ledger is filled, up takes events, and says why it answers nothing about runs and models.
// Then the scorers score what was published meanwhile.
func TestUpListensBeforeTheLedgerIsFilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, fillingConfig, dir, "tidemill.yaml")
	flags := servers(t, embedded.Options{})
	redis := newLateServer(t, flags[3])
	data := filepath.Join(dir, "data")
	up := startUp(t, data, "-f", file, "--kafka", flags[1], "--redis", redis.Addr().String())
	mention(t, "publish", ok(t, "publish", "message", "--subject", "k", "--id", "early", "-d", "{}", "--data", data), "published message early")
	code, body := up.get(t, "/api/v1/runs")
	if code != http.StatusServiceUnavailable {
		t.Errorf("runs answer %d: %s", code, body)
	}
	mention(t, "runs", body, ledger.ErrCatchingUp.Error())
	if code, body = up.get(t, "/readyz"); code != http.StatusOK {
		t.Errorf("it is not ready for events: %d, %s", code, body)
	}
	mention(t, "readyz", body, `"runs"`, `"degraded"`)
	if code, body = up.get(t, "/ui/models"); code != http.StatusServiceUnavailable {
		t.Errorf("the page of models answers %d: %s", code, body)
	}
	mention(t, "the page", body, "atching up with the facts", `data-status="503"`)
	if code, body = up.ask(t, http.MethodPost, "/api/v1/scorers/intents/score", "application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/t","type":"message","subject":"k"}`); code != http.StatusServiceUnavailable {
		t.Errorf("score answers %d: %s", code, body)
	}
	mention(t, "score", body, ledger.ErrCatchingUp.Error())
	if out := up.stdout.String(); strings.Contains(out, "the ledger is filled") {
		t.Errorf("it was filled without Redis:\n%s", out)
	}

	redis.open.Store(true)
	eventually(t, func() bool {
		return strings.Contains(up.stdout.String(), "the ledger is filled: runs, models and scorers are ready")
	})
	if code, body = up.get(t, "/api/v1/runs"); code != http.StatusOK {
		t.Errorf("runs answer %d: %s", code, body)
	}
	eventually(t, func() bool {
		return strings.Contains(ok(t, "tail", "scored", "--from", "beginning", "--no-follow", "--data", data), "early")
	})
}

func TestFillLine(t *testing.T) {
	t.Parallel()
	const rest = "; events can be published, but runs, models and scorers wait"
	for want, s := range map[string]ledger.Status{
		"the ledger is filling: 12 % of 700,000 facts, about 41 s left" + rest: {Behind: 616_000, Total: 700_000, Left: 40100 * time.Millisecond},
		"the ledger is filling: 0 % of 700,000 facts" + rest:                   {Behind: 700_000, Total: 700_000},
	} {
		if got := fillLine(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for what, s := range map[string]ledger.Status{"an error, which is logged": {Behind: 1, Total: 2, Err: io.EOF}, "a session that has not begun": {Behind: 1}, "a full ledger": {Total: 2}} {
		if got := fillLine(s); got != "" {
			t.Errorf("%s: %q", what, got)
		}
	}
}
