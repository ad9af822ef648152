package dashboard

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/live"
)

// fakeAPI answers each path with a fixed body. A path that it does not have is a 404.
type fakeAPI map[string]any

func (f fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := f[r.Method+" "+r.URL.Path]
	if !ok {
		body = &api.Problem{Status: http.StatusNotFound, Title: "there is no such thing", Detail: r.URL.Path}
	}
	if p, failed := body.(*api.Problem); failed {
		w.WriteHeader(p.Status)
	}
	_ = json.NewEncoder(w).Encode(body)
}

// testNow is the time of the pages in the tests.
func testNow() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

// everyRole is the caller of a gateway without an access file.
func everyRole() api.Caller {
	return api.Caller{Roles: []string{"publish", "metrics", "read", "operate", "approve"}}
}

// open returns a dashboard on a fake API. The caller has all roles unless the API says otherwise.
func open(t testing.TB, answers fakeAPI) *Dashboard {
	t.Helper()
	if _, ok := answers["GET /api/v1/caller"]; !ok {
		answers["GET /api/v1/caller"] = everyRole()
	}
	d := New(Options{API: answers, Install: func() string { return "acme-lab" }, Version: "test", Now: testNow, Live: true})
	return d
}

func fetch(d *Dashboard, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

func mustHave(t testing.TB, body string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("%q is missing in:\n%s", part, body)
		}
	}
}

func pools() api.Pools {
	return api.Pools{Pools: []api.Pool{{Name: "small", Slots: 4, Running: 1, Waiting: 2000}}}
}

func TestRegionAnswersAlone(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/pools": pools()})
	body := fetch(d, "/ui/runs", headerRegion, "pools").Body.String()
	mustHave(t, body, `<section data-region="pools"`, `data-live="pools runs commands"`, "2\u202f000")
	if strings.Contains(body, "<html") {
		t.Error("a region has the whole page around it")
	}
	if got := fetch(d, "/ui/runs", headerRegion, "none").Code; got != http.StatusNotFound {
		t.Errorf("an unknown region is answered with %d", got)
	}
}

// A region that the API refuses shows the reason, and the others show their data.
func TestProblemIsShownInItsRegion(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/pools": pools(), "GET /api/v1/recipes": api.Recipes{}, "GET /api/v1/runs": &api.Problem{Status: 503, Title: "temporarily unavailable", Detail: "the ledger catches up"}})
	w := fetch(d, "/ui/runs")
	if w.Code != 503 {
		t.Errorf("status %d, want that of the problem", w.Code)
	}
	mustHave(t, w.Body.String(), "the ledger catches up", "small", "<nav id")
}

// With an access file, a browser's first request has no token. The page then has no data, and its
// status is no error, because browsers report an error to the person.
func TestUnknownCallerGetsASignIn(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/caller": &api.Problem{Status: 401, Title: "no valid token", Detail: "no token was given"}, "GET /api/v1/pools": pools()})
	w := fetch(d, "/ui/runs")
	body := w.Body.String()
	if w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	mustHave(t, body, "data-unknown", "<tm-sign-in>", "<noscript>")
	for _, secret := range []string{"small", "acme-lab", `class="version">test`} {
		if strings.Contains(body, secret) {
			t.Errorf("the page for an unknown caller has %q", secret)
		}
	}
	if got := fetch(d, "/ui/runs", "Authorization", "Bearer tm_wrong").Code; got != http.StatusUnauthorized {
		t.Errorf("a refused token is answered with %d", got)
	}
	if got := fetch(d, "/ui/runs", headerRegion, "pools").Code; got != http.StatusUnauthorized {
		t.Errorf("a region without a token is answered with %d", got)
	}
}

// A role that an action needs is named on its button.
func TestButtonsNameTheMissingRole(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/caller": api.Caller{Name: "ana", Roles: []string{"read", "metrics"}}, "GET /api/v1/pools": pools()})
	body := fetch(d, "/ui/runs", headerRegion, "pools").Body.String()
	mustHave(t, body, "<button type=\"button\" disabled", "needs the role operate")
	if strings.Contains(body, "/ui/act/") {
		t.Error("the page has a link to an action that the caller may not do")
	}
}

func TestEveryAnswerHasTheHeaders(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{})
	for _, path := range []string{"/", "/ui/runs", "/ui/nothing", d.assets.url("app.js")} {
		w := fetch(d, path)
		for name, want := range map[string]string{"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s may be stored", path)
		}
	}
}

func TestAssetsAreCachedByTheirHash(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{})
	w := fetch(d, d.assets.url("style.css"), "Accept-Encoding", "br, gzip")
	mustHave(t, w.Header().Get("Cache-Control"), "immutable")
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if plain, _ := io.ReadAll(z); !strings.Contains(string(plain), "color-scheme") {
		t.Error("the compressed style differs")
	}
	old := fetch(d, "/ui/assets/0123456789abcdef/style.css")
	if old.Code != http.StatusOK || strings.Contains(old.Header().Get("Cache-Control"), "immutable") {
		t.Errorf("another version's style: %d, %s", old.Code, old.Header().Get("Cache-Control"))
	}
}

// mostAssets is the budget of all scripts and styles, gzipped.
const mostAssets = 60_000

func TestAssetsAreSmall(t *testing.T) {
	t.Parallel()
	total := 0
	for _, f := range packAssets().files {
		total += len(f.gzip)
	}
	t.Logf("%d bytes gzipped", total)
	if total > mostAssets {
		t.Errorf("the assets have %d bytes gzipped, at most %d are wanted", total, mostAssets)
	}
}

// hostile are names that would be markup, or would change how a page reads.
func hostile() []string {
	return []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "abc\u202edcba", strings.Repeat("k", 64<<10), `javascript:alert(1)`, "a\x00b"}
}

func TestNamesAreText(t *testing.T) {
	t.Parallel()
	for _, name := range hostile() {
		for _, html := range []string{string(text(name)), string(keyLink(name)), string(badge(name)), string(modelLink(name, 2)), string(lineChart(graph{Title: name, Sentence: name, Curves: []curve{{Name: name, Points: []point{{1, 2}}}}}))} {
			mustBeText(t, html)
			if len(html) > 20_000 {
				t.Errorf("a name of %d bytes makes %d bytes of HTML", len(name), len(html))
			}
		}
	}
}

// mustBeText fails if a page has markup or signs of direction from a name.
func mustBeText(t testing.TB, html string) {
	t.Helper()
	for _, bad := range []string{"<script>", "<img", "\u202e", `href="javascript:`, "\x00"} {
		if strings.Contains(html, bad) {
			t.Errorf("%q is in %.300s", bad, html)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{})
	for got, want := range map[string]string{
		count(1234567): "1\u202f234\u202f567", count(-1234): "-1\u202f234", count(12): "12",
		size(int64(1536)): "1.5 KiB", duration(90 * time.Second): "1 min", duration(0.25): "250 ms", number(0.123456): "0.1235",
		number(12345678.9): "12\u202f345\u202f679", number(3.4e38): "3.4e+38", number(-1234567890123456789): "-1.235e+18",
		string(d.ago(testNow().Add(-3 * time.Minute))): `<time datetime="2026-05-04T11:57:00Z" title="2026-05-04 11:57:00 UTC" data-ago>3 min ago</time>`,
		distance(-2 * time.Hour):                       "in 2 h",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The address of a list's next page keeps the filter.
func TestPagerKeepsTheFilter(t *testing.T) {
	t.Parallel()
	v := &visit{Request: httptest.NewRequest(http.MethodGet, "/ui/runs?state=failed&after=x", nil)}
	next, first := v.pageURLs("after", "y&z")
	u, _ := url.Parse(next)
	if u.Query().Get("state") != "failed" || u.Query().Get("after") != "y&z" || first != "/ui/runs?state=failed" {
		t.Errorf("next %s, first %s", next, first)
	}
}

// The API refuses the live connection of a page if it does not know one of its topics.
func TestTopicsAreKnown(t *testing.T) {
	t.Parallel()
	for _, p := range pageTable() {
		for _, r := range p.regions {
			for topic := range strings.FieldsSeq(r.topics) {
				if err := live.Check(topic); err != nil {
					t.Errorf("%s, region %s: %v", p.path, r.name, err)
				}
			}
		}
	}
}

// fixedSignIn is a sign-in whose issuer knows one code.
type fixedSignIn struct{ err error }

func (f fixedSignIn) SignIn(context.Context) (access.SignIn, error) {
	return access.SignIn{Authorize: "https://id.example/authorize", Client: "dash"}, f.err
}

func (fixedSignIn) Exchange(_ context.Context, code, verifier, redirect string) (string, error) {
	if code != "good" || verifier != "v" || redirect != "https://here/ui/auth/callback" {
		return "", errors.New("a secret reason")
	}
	return "a.b.c", nil
}

func TestKindsOfSignIn(t *testing.T) {
	t.Parallel()
	for want, sign := range map[string]SignIn{
		`{"token":false,"oidc":null}`: nil,
		`{"token":true,"oidc":{"authorize":"https://id.example/authorize","client":"dash"}}`: fixedSignIn{},
		`{"token":true,"oidc":null}`: fixedSignIn{access.ErrNoSignIn},
		`{"token":true,"oidc":null,"fault":"the keys of the token's issuer cannot be read"}`: fixedSignIn{access.ErrIssuerAway},
	} {
		d := New(Options{API: fakeAPI{}, Install: func() string { return "" }, SignIn: sign})
		if got := strings.TrimSpace(fetch(d, "/ui/auth").Body.String()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestCodeBecomesAToken(t *testing.T) {
	t.Parallel()
	d := New(Options{API: fakeAPI{}, Install: func() string { return "" }, SignIn: fixedSignIn{}})
	for code, status := range map[string]int{"good": http.StatusOK, "bad": http.StatusForbidden} {
		form := url.Values{"code": {code}, "verifier": {"v"}, "redirect": {"https://here/ui/auth/callback"}}
		r := httptest.NewRequest(http.MethodPost, "/ui/auth/token", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if w.Code != status || strings.Contains(w.Body.String(), "secret reason") || (status == http.StatusOK) != strings.Contains(w.Body.String(), "a.b.c") {
			t.Errorf("%s: %d %s", code, w.Code, w.Body)
		}
	}
}
