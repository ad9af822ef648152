//go:build real

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// badPage has one of each fault that the other tests look for.
const badPage = `<!doctype html><html><head><title>bad</title></head><body>
<img src="/missing.png"><p style="color: #eee; background: #fff">pale</p>
<input id="search"><div id="out"></div>
<script>
console.error("a fault");
fetch("%s/").catch(() => 0);
document.querySelector("#search").addEventListener("input", (e) => { document.querySelector("#out").textContent = e.target.value; });
setTimeout(() => { const end = performance.now() + 120; while (performance.now() < end); document.body.dataset.slow = "1"; }, 0);
</script></body></html>`

// goodPage has none.
const goodPage = `<!doctype html><html lang="en"><head><title>good</title><link rel="icon" href="data:,"></head><body><main><h1>Good</h1><p>Well.</p></main></body></html>`

func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// The rig finds each fault of a bad page, so the other tests can rely on it.
func TestRealRigSeesFaults(t *testing.T) {
	other := serve(t, nil)
	at := serve(t, map[string]string{"/": fmt.Sprintf(badPage, other)})
	p := newPage(t)
	p.open(at + "/")
	p.until("document.body.dataset.slow")
	for _, wanted := range []string{"a fault", "missing.png"} {
		if !slices.ContainsFunc(p.faultsOf(), func(f string) bool { return strings.Contains(f, wanted) }) {
			t.Errorf("no fault says %s: %q", wanted, p.faultsOf())
		}
	}
	if len(p.strangers()) != 1 {
		t.Errorf("requests to other origins: %q", p.strangers())
	}
	p.until("__rig.longTasks.length > 0")
	for _, rule := range []string{"color-contrast", "image-alt", "html-has-lang", "label"} {
		if !slices.ContainsFunc(p.violations(), func(v violation) bool { return v.ID == rule }) {
			t.Errorf("axe has not found %s: %v", rule, p.violations())
		}
	}
	eval[bool](p, "document.querySelector('#search').focus(); true")
	p.press("abc")
	if took := p.until("document.querySelector('#out').textContent === 'abc'"); took <= 0 {
		t.Errorf("from a key to its paint it took %s", took)
	}
	p.press(kb.Tab)
	p.until("document.activeElement === document.body")
}

// A good page has no fault.
func TestRealRigIsQuiet(t *testing.T) {
	p := newPage(t)
	p.open(serve(t, map[string]string{"/": goodPage}) + "/")
	p.checkQuiet()
	if v := p.violations(); len(v) > 0 {
		t.Errorf("axe has found %v", v)
	}
	if n := p.nodes(); n < 10 || n > 40 {
		t.Errorf("the page has %d nodes", n)
	}
	if first, _ := p.paints(); first <= 0 || p.heap() <= 0 {
		t.Errorf("first paint after %s, %d bytes of heap", first, p.heap())
	}
	p.scheme("dark")
	if !eval[bool](p, "matchMedia('(prefers-color-scheme: dark)').matches") {
		t.Error("it is not dark")
	}
	p.shot("rig")
}
