//go:build slow && linux

package attacks

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// pagesOf lists pages of the dashboard with the request to the API that each shows.
var pagesOf = map[string]string{
	"/": "/api/v1/fleet", "/ui/models": "/api/v1/models", "/ui/runs": "/api/v1/runs", "/ui/streams": "/api/v1/streams", "/ui/triggers": "/api/v1/triggers",
	"/ui/dead-letters": "/api/v1/dead-letters", "/ui/scorers": "/api/v1/scorers", "/ui/data": "/api/v1/data/datasets", "/ui/approvals": "/api/v1/promotions",
	"/ui/key?key=bot-42": "/api/v1/runs?key=bot-42", "/ui/streams/events?from=beginning": "/api/v1/streams/events?from=beginning&follow=no",
}

// otherPages are pages that show more than one answer, or none.
var otherPages = []string{"/ui/health", "/ui/lineage", "/ui/search?q=bot-42", "/ui/act", "/ui/act/pause-pool?pool=small", "/ui/model?name=intent/bot-42", "/ui/nowhere"}

// form returns a request that sends a form of the dashboard.
func (w *world) form(path string, fields url.Values, caller string, headers ...string) *http.Request {
	w.Helper()
	return w.request(http.MethodPost, path, fields.Encode(), caller, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, headers...)...)
}

// isPaused reports whether the pool small is paused.
func (w *world) isPaused(caller string) bool {
	w.Helper()
	a := w.do(w.request(http.MethodGet, "/api/v1/pools", "", caller))
	if a.status != http.StatusOK {
		w.Fatalf("the pools: %d %s", a.status, a.body)
	}
	return strings.Contains(a.body, `"pausedSince"`)
}

// inline matches scripts, styles and handlers within a page.
var inline = regexp.MustCompile(`(?i)<script(?:[^>]*[^"a-z]src=)?>|<script[^>]*>[^<]|<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:|<iframe|<object|<base`)

// No page can be framed, and none has a script or style of its own, whatever the names that it shows.
func TestPagesAreClosed(t *testing.T) {
	w := openWorld(t, nil)
	const hostile = `"><script>alert(1)</script><a onclick=x style=y>`
	w.do(w.request(http.MethodPost, "/events", "{}", "publisher", "ce-specversion", "1.0", "ce-type", "order", "ce-source", "/attacks", "ce-id", "1",
		"ce-subject", url.PathEscape(hostile), "content-type", "application/json"))
	paths := otherPages
	for path := range pagesOf {
		paths = append(paths, path)
	}
	paths = append(paths, "/ui/key?key="+url.QueryEscape(hostile), "/ui/search?q="+url.QueryEscape(hostile), "/ui/runs?state="+url.QueryEscape(hostile), "/?search="+url.QueryEscape(hostile))
	for _, path := range paths {
		for _, caller := range []string{"", "publisher", "approver"} {
			a := w.do(w.request(http.MethodGet, path, "", caller))
			if got := a.header.Get("Content-Security-Policy"); got != "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'" {
				t.Errorf("%s by %q has the policy %q", path, caller, got)
			}
			if a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Referrer-Policy") != "no-referrer" || a.header.Get("Set-Cookie") != "" || a.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s by %q has the headers %v", path, caller, a.header)
			}
			tags := regexp.MustCompile(`<[^>]*>[^<]?`).FindAllString(a.body, -1)
			for _, tag := range tags {
				attributes := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, `""`) // a quoted value is text
				if found := inline.FindString(strings.ReplaceAll(attributes, `type="" src=""`, "")); found != "" && !strings.HasPrefix(tag, `<script type="module" src="/ui/assets/`) {
					t.Errorf("%s by %q has %q in %q", path, caller, found, tag)
				}
			}
		}
	}
}

// A page has no data without a token, and with one exactly what the API answers to that token.
func TestPagesShowWhatTheirCallerMayRead(t *testing.T) {
	w := openWorld(t, nil)
	if a := w.do(w.request(http.MethodPost, "/api/v1/runs", `{"recipe":"intent","keys":["bot-42","bot-43"]}`, "approver")); a.status >= 300 {
		t.Fatalf("start runs: %d %s", a.status, a.body)
	}
	w.waitFor(func() bool {
		return strings.Contains(w.do(w.request(http.MethodGet, "/", "", "reader")).body, "bot-43")
	})
	paths := append([]string{"/?recipe=intent"}, otherPages...)
	for path, shown := range pagesOf {
		paths = append(paths, path)
		for _, caller := range []string{"publisher", "reader", "operator", "approver", "tenant"} {
			fromAPI, page := w.do(w.request(http.MethodGet, shown, "", caller)), w.do(w.request(http.MethodGet, path, "", caller))
			if allowed := fromAPI.status < 300; allowed == strings.Contains(page.body, `data-status="403"`) {
				t.Errorf("%s by %s: the API answers %d, and the page: %.3000s", path, caller, fromAPI.status, page.body)
			}
			for _, key := range []string{"bot-42", "bot-43"} {
				if !strings.Contains(path, "key=") && !strings.Contains(fromAPI.body, key) && strings.Contains(page.body, `key=`+key+`"`) && path != "/" {
					t.Errorf("%s by %s shows %s, and the API does not", path, caller, key)
				}
			}
		}
	}
	for _, path := range paths {
		if body := w.do(w.request(http.MethodGet, path, "", "tenant")).body; strings.Contains(body, "bot-43") {
			t.Errorf("%s shows the key of another tenant", path)
		}
		path, _, _ = strings.Cut(path, "?")
		for name, header := range w.badTokens() {
			r := w.request(http.MethodGet, path, "", "")
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			if a := w.do(r); strings.Contains(a.body, "bot-4") || strings.Contains(a.body, "intent") || !strings.Contains(a.body, "data-unknown") {
				t.Errorf("%s with %s has data: %d %s", path, name, a.status, a.body)
			}
		}
	}
}

// A form acts with the right of its sender alone.
func TestFormsNeedTheirRole(t *testing.T) {
	w := openWorld(t, nil)
	pause := url.Values{"pool": {"small"}}
	for _, caller := range []string{"", "expired", "publisher", "reader"} {
		if a := w.do(w.form("/ui/act/pause-pool", pause, caller)); w.isPaused("reader") {
			t.Fatalf("%q has paused a pool: %d %s", caller, a.status, a.body)
		}
	}
	if a := w.do(w.form("/ui/act/pause-pool", pause, "operator")); !w.isPaused("reader") {
		t.Errorf("an operator cannot pause a pool: %d %s", a.status, a.body)
	}
}

// A page of another site cannot act or read, with or without an access file.
func TestOtherSitesCannotUsePages(t *testing.T) {
	for name, flags := range map[string][]string{"with an access file": nil, "without one": {"--access", ""}} {
		t.Run(name, func(t *testing.T) {
			w := openWorld(t, nil, flags...)
			reader, senders := "", []string{""}
			if flags == nil {
				reader, senders = "reader", []string{"", "operator"}
			}
			for _, headers := range [][]string{
				{"Origin", "https://evil.example"},
				{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"},
				{"Origin", "null", "Sec-Fetch-Site", "cross-site"},
				{"Sec-Fetch-Site", "cross-site"},
				{"Sec-Fetch-Site", "same-site"},
				{"Origin", strings.Replace(w.url, "127.0.0.1", "localhost.evil.example", 1)},
			} {
				for _, sender := range senders {
					a := w.do(w.form("/ui/act/pause-pool", url.Values{"pool": {"small"}}, sender, headers...))
					if a.status < 400 || w.isPaused(reader) {
						t.Errorf("a form by %q with %v: %d %.300s", sender, headers, a.status, a.body)
					}
				}
			}
			own := senders[len(senders)-1]
			if a := w.do(w.form("/ui/act/pause-pool", url.Values{"pool": {"small"}}, own, "Origin", w.url, "Sec-Fetch-Site", "same-origin")); !w.isPaused(reader) {
				t.Errorf("the gateway's own form: %d %.300s", a.status, a.body)
			}
			for _, path := range append([]string{"/", "/ui/runs"}, otherPages...) {
				r := w.request(http.MethodGet, path, "", "")
				r.Host = "rebound.example"
				if a := w.do(r); flags != nil && a.status != http.StatusForbidden || strings.Contains(a.body, "small") || strings.Contains(a.body, "intent") {
					t.Errorf("%s at another host: %d %.300s", path, a.status, a.body)
				}
			}
		})
	}
}
