//go:build real

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience ends a test that hangs; it measures nothing.
const patience = 2 * time.Minute

// The size of each page. Screenshots have this width.
const (
	pageWidth  = 1280
	pageHeight = 800
)

//go:embed js/rig.js
var rigScript string // read only

// page is a tab. It notes errors of the console and all requests.
type page struct {
	*testing.T
	ctx  context.Context
	keys int // number of times that Tab was pressed

	mu     sync.Mutex
	faults []string
	urls   []string
}

// newPage opens an empty tab, which is closed with the test.
func newPage(t *testing.T) *page {
	t.Helper()
	p := &page{T: t}
	var cancel context.CancelFunc
	p.ctx, cancel = chromedp.NewContext(theBrowser)
	t.Cleanup(cancel)
	p.must(chromedp.Do(p.ctx))
	p.must(chromedp.Listen(p.ctx, p.note))
	command(p, log.Enable, cdp.Empty{})
	command(p, network.Enable, network.EnableParams{})
	command(p, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: rigScript})
	p.do(chromedp.EmulateViewport(pageWidth, pageHeight))
	return p
}

func (p *page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.urls = append(p.urls, e.Request.URL)
	case *runtime.EventExceptionThrown:
		p.faults = append(p.faults, "exception: "+e.ExceptionDetails.Text+" "+describe(e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			var texts []string
			for _, arg := range e.Args {
				texts = append(texts, describe(arg))
			}
			p.faults = append(p.faults, string(e.Type)+": "+strings.Join(texts, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.faults = append(p.faults, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	}
}

func describe(o *runtime.RemoteObject) string {
	if o == nil {
		return ""
	}
	return strings.TrimSpace(o.Description + " " + string(o.Value))
}

func (p *page) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *page) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.ctx, patience)
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	p.must(chromedp.Do(ctx, steps...))
}

// command sends a command of the browser's protocol.
func command[P, R any](p *page, c cdp.Command[P, R], params P) R {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	r, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, c, params) })
	p.must(err)
	return r
}

// eval evaluates JavaScript, and waits if it is a promise.
func eval[T any](p *page, script string) T {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("evaluate %s: %v", short(script), err)
	}
	return v
}

func short(text string) string {
	if len(text) > 300 {
		return text[:300] + "…"
	}
	return text
}

// open navigates to a path of the gateway, or to a whole URL.
func (p *page) open(path string) {
	p.Helper()
	if strings.HasPrefix(path, "/") {
		path = theInstall.url + path
	}
	p.do(chromedp.Navigate(path))
	eval[float64](p, "__rig.until(() => document.readyState === 'complete')")
}

// until waits until a JavaScript condition holds. It returns the time from the last key or click until
// the result is on the screen.
func (p *page) until(condition string) time.Duration {
	p.Helper()
	ctx, cancel := p.within()
	defer cancel()
	ms, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("__rig.until(() => "+condition+")", chromedp.EvalAwaitPromise))
	if err != nil {
		p.shot("stuck")
		p.Fatalf("wait until %s: %v; the page says %q", condition, err, short(eval[string](p, "document.querySelector('main')?.innerText ?? ''")))
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(100 * time.Microsecond)
}

// press sends keys to the focused element.
func (p *page) press(keys string) {
	p.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// scheme shows the page in light or dark.
func (p *page) scheme(scheme string) {
	p.Helper()
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// nodes counts the nodes of the document, also those of custom elements.
func (p *page) nodes() int { p.Helper(); return eval[int](p, "__rig.nodes()") }

// heap returns the bytes of JavaScript that are in use after a collection of garbage.
func (p *page) heap() int64 {
	p.Helper()
	command(p, heapprofiler.CollectGarbage, cdp.Empty{})
	return int64(command(p, runtime.GetHeapUsage, cdp.Empty{}).UsedSize)
}

// longTasks returns the tasks of more than 50 ms since the page was opened.
func (p *page) longTasks() []string {
	p.Helper()
	var all []struct{ At, Ms int }
	p.must(json.Unmarshal([]byte(eval[string](p, "JSON.stringify(__rig.longTasks.map((t) => ({At: t.at, Ms: t.ms})))")), &all))
	var texts []string
	for _, t := range all {
		texts = append(texts, fmt.Sprintf("%d ms at %d ms", t.Ms, t.At))
	}
	return texts
}

// paints returns the first and the largest paint of content since the navigation.
func (p *page) paints() (first, largest time.Duration) {
	p.Helper()
	p.until("__rig.lcp > 0")
	all := eval[[]float64](p, "[__rig.paints['first-contentful-paint'] ?? 0, __rig.lcp]")
	return time.Duration(all[0] * float64(time.Millisecond)), time.Duration(all[1] * float64(time.Millisecond))
}

// faultsOf returns what the console has complained about, and violations of the page's policy.
func (p *page) faultsOf() []string {
	p.Helper()
	violations := eval[[]string](p, "__rig.faults")
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(slices.Clone(p.faults), violations...)
}

// strangers returns the requests to other origins.
func (p *page) strangers() (all []string) {
	p.Helper()
	home := eval[string](p, "location.origin")
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.urls {
		if u, err := url.Parse(text); err != nil || u.Scheme != "data" && u.Scheme+"://"+u.Host != home && text != "about:blank" {
			all = append(all, text)
		}
	}
	return all
}

// checkQuiet fails the test if the console has errors or another origin was asked.
func (p *page) checkQuiet() {
	p.Helper()
	for _, f := range p.faultsOf() {
		p.Errorf("console: %s", f)
	}
	for _, s := range p.strangers() {
		p.Errorf("request to another origin: %s", s)
	}
}
