//go:build real

package main

import (
	"net/url"
	"strings"
	"testing"

	"tidemill.dev/e2e/browser/seed"
)

// maxNodes is the greatest number of nodes of a page.
const maxNodes = 3000

// shown is a page, as all tests of pages open it.
type shown struct {
	name string // name of its screenshots
	path string
	link string // selector of a link on that page, which leads to the page that is shown; empty for the page itself
	then string // selector of a link on the page that link leads to; empty for that page itself
}

// shownPages lists all pages. TestRealEveryPageIsShown finds those that are missing here.
func shownPages() []shown {
	const (
		row    = "main table.rows tbody tr th a"
		newest = "main table.rows tbody tr td a[href*='version=']"
	)
	return []shown{
		{name: "fleet", path: "/"},
		{name: "fleet-recipe", path: "/?recipe=intent"},
		{name: "fleet-age", path: "/?recipe=intent&by=age"},
		{name: "fleet-refused", path: "/?recipe=intent&state=refused"},
		{name: "fleet-hostile", path: "/?recipe=intent&search=" + url.QueryEscape("<")},
		{name: "runs", path: "/ui/runs"},
		{name: "runs-failed", path: "/ui/runs?state=failed"},
		{name: "run", path: "/ui/runs?state=succeeded&recipe=intent", link: row},
		{name: "run-live", path: "/ui/runs?state=running", link: row},
		{name: "streams", path: "/ui/streams"},
		{name: "stream", path: "/ui/streams/events"},
		{name: "triggers", path: "/ui/triggers"},
		{name: "trigger", path: "/ui/triggers/tell-crm"},
		{name: "dead-letters", path: "/ui/dead-letters"},
		{name: "dead-letter", path: "/ui/dead-letters", link: "main a[href^='/ui/dead-letters/']"},
		{name: "models", path: "/ui/models"},
		{name: "models-prefix", path: "/ui/models?prefix=intent/hostile"},
		{name: "model", path: "/?recipe=intent&state=refused&search=bot", link: newest},
		{name: "model-against", path: "/ui/model?name=intent/bot-00042&version=2&against=1"},
		{name: "model-hostile", path: "/ui/model?name=intent/hostile-0"},
		{name: "key", path: "/?recipe=intent&state=refused&search=bot", link: row},
		{name: "key-hostile", path: "/ui/key?key=" + url.QueryEscape(seed.Hostile[0])},
		{name: "key-long", path: "/ui/key?key=" + url.QueryEscape(seed.Hostile[9])},
		{name: "approvals", path: "/ui/approvals"},
		{name: "trials", path: "/ui/trials"},
		{name: "trial", path: "/ui/trials", link: "[data-region=running] tbody th a"},
		{name: "trial-ended", path: "/ui/trials", link: "[data-region=ended] tbody th a"},
		{name: "rollouts", path: "/ui/rollouts"},
		{name: "act-rollout", path: "/ui/act/abort-rollout?recipe=churn&reason=complaints"},
		{name: "act-label", path: "/ui/act/label?scorer=intents&event=messages/0/1"},
		{name: "scorers", path: "/ui/scorers"},
		{name: "scorer", path: "/ui/scorers/intents"},
		{name: "lineage", path: "/ui/lineage"},
		{name: "lineage-run", path: "/ui/runs?state=succeeded&recipe=intent", link: row, then: "main a[href^='/ui/lineage']"},
		{name: "data", path: "/ui/data"},
		{name: "dataset", path: "/ui/data", link: row},
		{name: "commit", path: "/ui/data", link: row, then: "main a[href*='commit=']"},
		{name: "health", path: "/ui/health"},
		{name: "runbook", path: "/ui/health", link: "main a[href^='/ui/health/runbooks/']"},
		{name: "search", path: "/ui/search?q=bot-0004"},
		{name: "search-hostile", path: "/ui/search?q=" + url.QueryEscape("<script")},
		{name: "commands", path: "/ui/act"},
		{name: "act", path: "/ui/act/pause-pool?pool=gpu"},
		{name: "missing", path: "/ui/nowhere"},
	}
}

func (p *page) show(s shown) {
	p.Helper()
	p.open(s.path)
	for _, link := range []string{s.link, s.then} {
		if link != "" {
			p.until("document.querySelector(" + quoted(link) + ")")
			p.open(eval[string](p, "document.querySelector("+quoted(link)+").href"))
		}
	}
	p.until("document.querySelector('main h1')")
}

// Each page in light and dark: no fault of accessibility, no error in the console, no request to another
// origin, few nodes, and nothing beyond the edge of the window.
func TestRealPages(t *testing.T) {
	defer theInstall.chat(t)()
	for _, s := range shownPages() {
		t.Run(s.name, func(t *testing.T) {
			p := newPage(t)
			p.show(s)
			first, largest := p.paints()
			tasks := p.longTasks() // axe has long tasks of its own
			for _, scheme := range []string{"light", "dark"} {
				p.scheme(scheme)
				p.show(s)
				for _, v := range p.violations() {
					t.Errorf("%s: %s", scheme, v)
				}
				p.shot(s.name + "-" + scheme)
			}
			if s.name != "missing" { // its status is 404, which the console reports
				p.checkQuiet()
			}
			n, heap := p.nodes(), p.heap()
			t.Logf("%-12s first paint %4d ms, largest %4d ms, %4d nodes, %4.1f MB of heap, layout shift %.3f, long tasks %q", s.name,
				first.Milliseconds(), largest.Milliseconds(), n, float64(heap)/1e6, eval[float64](p, "__rig.shift"), tasks)
			if n > maxNodes {
				t.Errorf("it has %d nodes, and may have %d", n, maxNodes)
			}
			if heap > maxHeap {
				t.Errorf("it uses %d bytes of heap, and may use %d", heap, maxHeap)
			}
			if wide := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
				t.Errorf("it is %d pixels wider than the window", wide)
			}
			checkHostile(p)
		})
	}
}

// checkHostile fails the test if a key of a stranger has become markup.
func checkHostile(p *page) {
	p.Helper()
	for _, selector := range []string{"script:not([src])", "img[src='x']", "[onerror]", "[style]", "a[href^='javascript:']"} {
		if n := eval[int](p, "document.querySelectorAll("+quoted(selector)+").length"); n > 0 {
			p.Errorf("there are %d elements %s", n, selector)
		}
	}
}

// The table of pages has every page that the navigation links to.
func TestRealEveryPageIsShown(t *testing.T) {
	p := newPage(t)
	p.open("/ui/runs")
	known := map[string]bool{}
	for _, s := range shownPages() {
		path, _, _ := strings.Cut(s.path, "?")
		known[path] = true
	}
	for _, path := range eval[[]string](p, "[...document.querySelectorAll('nav a')].map((a) => a.pathname)") {
		if status := eval[int](p, "fetch("+quoted(path)+").then((r) => r.status)"); status != 404 && !known[path] {
			t.Errorf("the navigation has %s, and shownPages does not", path)
		}
	}
}
