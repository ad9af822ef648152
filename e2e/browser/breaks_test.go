//go:build real

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/e2e/browser/seed"
)

// proxy forwards connections to the gateway until it is cut.
type proxy struct {
	net.Listener
	to string

	mu    sync.Mutex
	isCut bool
	open  map[net.Conn]bool
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &proxy{Listener: l, to: strings.TrimPrefix(to, "http://"), open: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { x.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		x.cut()
		running.Wait()
	})
	return x
}

func (x *proxy) url() string { return "http://" + x.Addr().String() }

// keep notes a connection, so that cut closes it. It reports whether the connection may be used.
func (x *proxy) keep(c net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.open[c] = true
	return !x.isCut
}

func (x *proxy) serve(from net.Conn) {
	defer from.Close()
	if !x.keep(from) {
		return
	}
	to, err := net.Dial("tcp", x.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !x.keep(to) {
		return
	}
	go func() {
		_, _ = io.Copy(to, from) // ends when one of both is closed
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// cut closes all connections, and lets no new one through.
func (x *proxy) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isCut = true
	for c := range x.open {
		c.Close()
	}
	clear(x.open)
}

// mend lets new connections through.
func (x *proxy) mend() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isCut = false
}

// pin pins the champion of a model, or removes its pin if there is no reason.
func (i *install) pin(t *testing.T, model, reason string) {
	t.Helper()
	act := "unpin"
	if reason != "" {
		act = "pin"
	}
	status, text, err := i.ask(t.Context(), http.MethodPost, "/api/v1/model/"+act, fmt.Sprintf(`{"model":%q,"reason":%q}`, model, reason))
	if err != nil || status >= 300 {
		t.Fatalf("%s %s: %v, %d %s", act, model, err, status, text)
	}
}

const (
	live         = "document.getElementById('live-state').textContent === 'live'"
	reconnecting = "document.getElementById('live-state').textContent === 'reconnecting'"
)

func says(text string) string {
	return "document.querySelector('[data-region=model]').textContent.includes(" + quoted(text) + ")"
}

// A page whose connection was cut shows all changes that were made meanwhile.
func TestRealCutConnection(t *testing.T) {
	const model = "intent/bot-00060"
	x := newProxy(t, theInstall.url)
	p := newPage(t)
	p.open(x.url() + "/ui/model?name=" + model)
	p.until(live)
	for round := range 4 {
		x.cut()
		if round%2 == 0 { // the others change it before the page knows that the connection is cut
			p.until(reconnecting)
		}
		reason := fmt.Sprintf("reason %d", round)
		theInstall.pin(t, model, "an earlier "+reason)
		theInstall.pin(t, model, "")
		theInstall.pin(t, model, reason)
		x.mend()
		p.until(says(": "+reason) + " && " + live)
	}
	theInstall.pin(t, model, "")
	p.until("!" + says("pinned"))
	if s := p.strangers(); len(s) > 0 {
		t.Errorf("requests to other origins: %q", s)
	}
}

// A tail whose connection was cut before its first event shows the events that came meanwhile, and does not say that it is
// live.
func TestRealCutTail(t *testing.T) {
	x := newProxy(t, theInstall.url)
	p := newPage(t)
	p.open(x.url() + "/ui/streams/events")
	const state = "document.querySelector('tm-tail [role=status]').textContent"
	p.until("document.querySelector('tm-tail button')")
	eval[bool](p, "document.querySelector('tm-tail button').click(); true")
	p.until(state + " === 'live'")
	for round := range 2 {
		x.cut()
		p.until(state + " === 'reconnecting'")
		id := fmt.Sprintf("cut-%d", round)
		status, text, err := theInstall.ask(t.Context(), http.MethodPost, "/events", fmt.Sprintf(`[{"specversion":"1.0","id":%q,"source":"/browser","type":"cut-tail"}]`, id))
		if err != nil || status >= 300 {
			t.Fatalf("publish: %v, %d %s", err, status, text)
		}
		x.mend()
		p.until("document.querySelector('tm-tail ol').textContent.includes(" + quoted(id) + ") && " + state + ".startsWith('live')")
	}
}

// Two lines of a time line may have the same key, such as two swaps in the same millisecond. Both stay when a line comes.
func TestRealLinesWithTheSameKey(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	text := eval[string](p, `(async () => {
		const { morph } = await import(document.querySelector("script[type=module]").src.replace(/app\.js/, "morph.js"));
		const list = (...lines) => new DOMParser().parseFromString("<ul>" + lines.map(([key, text]) => "<li data-key=" + key + ">" + text + "</li>").join("") + "</ul>", "text/html").body.firstElementChild;
		const now = list(["same", "a"], ["same", "b"], ["other", "c"]);
		morph(now, list(["new", "d"], ["same", "a"], ["same", "b"], ["other", "c"]));
		return now.textContent;
	})()`)
	if text != "dabc" {
		t.Errorf("the lines are %s, want dabc", text)
	}
}

// newInstall starts a small tidemill of the test's own.
func newInstall(t *testing.T, prepare func(*install)) *install {
	t.Helper()
	i := &install{dir: filepath.Join(t.TempDir(), "install"), binary: theInstall.binary}
	if err := i.copy(t.Context(), seed.Small); err != nil {
		t.Fatal(err)
	}
	prepare(i)
	if err := i.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.stop)
	return i
}

// Before the ledger has read all facts, pages say so. Then they show their content by themselves.
func TestRealFilling(t *testing.T) {
	i := &install{dir: filepath.Join(t.TempDir(), "install"), binary: theInstall.binary}
	if err := i.copy(t.Context(), seed.Small); err != nil {
		t.Fatal(err)
	}
	servers, err := embedded.Start(t.Context(), embedded.Options{Dir: filepath.Join(i.dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Close() })
	redis := newProxy(t, servers.Redis())
	redis.cut()
	i.flags = []string{"--data", "other", "--kafka", servers.Kafka(), "--redis", redis.Addr().String()}
	t.Cleanup(i.stop)
	if err := i.listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, all := newPage(t), newPage(t)
	one.open(i.url + "/ui/model?name=intent/bot-00012")
	all.open(i.url + "/ui/models")
	const filling = "document.querySelector('main .problem').textContent.includes('atching up with the facts')"
	one.until(filling)
	all.until(filling)
	redis.mend()
	one.until(says("is the champion"))
	all.until("document.querySelector('main .problem') === null && document.querySelector('main tbody tr') !== null")
}

// The gateway is killed and started again while a page is open.
func TestRealKilledGateway(t *testing.T) {
	const model = "intent/bot-00012"
	i := newInstall(t, func(*install) {})
	p := newPage(t)
	p.open(i.url + "/ui/model?name=" + model)
	p.until(live)
	i.pin(t, model, "before the kill")
	p.until(says(": before the kill"))
	if err := i.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = i.cmd.Wait() // it was killed
	p.until(reconnecting + " && " + says(": before the kill"))
	if err := i.up(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.pin(t, model, "")
	p.until("!" + says("pinned") + " && " + live)
	i.pin(t, model, "after the kill")
	p.until(says(": after the kill"))
}

// A person signs in and sees changes. The token is revoked while the page is open: the page asks for another one, and goes
// on where it was.
func TestRealRevokedToken(t *testing.T) {
	const model = "intent/bot-00012"
	revoked := ""
	i := newInstall(t, func(i *install) {
		i.flags = []string{"--access", "access.yaml"}
		i.token = i.newToken(t, "test", "approve")
		revoked = i.newToken(t, "ana", "read")
	})
	p := newPage(t)
	p.open(i.url + "/ui/model?name=" + model + "&version=1")
	p.until("document.querySelector('dialog.sign-in[open]') && document.activeElement.name === 'token'")
	if text := eval[string](p, "document.documentElement.textContent"); strings.Contains(text, "champion") {
		t.Errorf("a page without a token has data: %s", text)
	}
	p.press("tm_wrong" + kb.Enter)
	p.until("document.querySelector('dialog.sign-in .problem:not([hidden])')")
	p.press(revoked + kb.Enter)
	p.until("document.activeElement.tagName === 'H1' && " + says("is the champion") + " && " + live)
	i.pin(t, model, "ana sees it")
	p.until(says(": ana sees it"))
	kept := "document.querySelector('[data-region=model] tbody a')"
	eval[bool](p, kept+".focus(); window.kept = document.activeElement; true")

	if _, err := i.run(t.Context(), "token", "remove", "ana", "--file", "access.yaml"); err != nil {
		t.Fatal(err)
	}
	p.until("document.querySelector('dialog.sign-in[open] .problem:not([hidden])')")
	next := i.newToken(t, "ben", "read")
	i.pin(t, model, "")
	i.pin(t, model, "ben sees it")
	p.press(next + kb.Enter)
	p.until(says(": ben sees it") + " && document.querySelector('dialog') === null && " + live)
	if !eval[bool](p, "location.search.endsWith('version=1') && window.kept.isConnected && document.activeElement === window.kept") {
		t.Error("the page is another one, or has lost the focus")
	}
}

// newToken adds a token to the access file.
func (i *install) newToken(t *testing.T, name, role string) string {
	t.Helper()
	token, err := i.run(t.Context(), "token", "new", name, "--role", role, "--file", "access.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if i.url != "" { // the gateway runs, and has to read the file again
		other := install{url: i.url, token: token}
		if err := other.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return token
}
