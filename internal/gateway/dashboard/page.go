package dashboard

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

// page is one page of the dashboard.
type page struct {
	path     string // pattern of net/http
	nav      string // path of its entry in the navigation
	title    func(v *visit) string
	status   int                         // status of the answer; 0 for 200
	post     bool                        // whether it answers POST too
	redirect func(v *visit) string       // address to go to instead; empty to stay. May be nil
	main     func(v *view) (Node, error) // the page itself, without the frame
	regions  []region
}

// still is a page that needs no data outside of its regions.
func still(show func(v *view) Node) func(*view) (Node, error) {
	return func(v *view) (Node, error) { return show(v), nil }
}

// loaded is a page that needs data before it is shown.
func loaded[T any](load func(*visit) (T, error), show func(*view, T) Node) func(*view) (Node, error) {
	return func(v *view) (Node, error) {
		data, err := load(v.visit)
		if err != nil {
			return nil, err
		}
		return show(v, data), nil
	}
}

// region is a part of a page that is fetched again when one of its topics changes.
type region struct {
	name   string
	topics string // topics of /api/v1/live, separated by spaces; {run} is that value of the path or the query. Empty for a part that never changes
	show   func(v *visit) (Node, error)
}

// part returns a region from the function that asks for its data, and the one that shows them.
func part[T any](name, topics string, load func(*visit) (T, error), show func(*visit, T) Node) region {
	return region{name, topics, func(v *visit) (Node, error) {
		data, err := load(v)
		if err != nil {
			return nil, err
		}
		return show(v, data), nil
	}}
}

// asked gets one answer of the API. The path may have one value of the page's path, such as {run}.
func asked[T any](path string) func(*visit) (*T, error) {
	return func(v *visit) (*T, error) {
		to := path
		if before, rest, ok := strings.Cut(path, "{"); ok {
			name, after, _ := strings.Cut(rest, "}")
			to = before + v.PathValue(name) + after
		}
		answer, err := get[T](v, to, nil)
		return &answer, err
	}
}

// named returns the title of a page whose title never changes.
func named(title string) func(*visit) string { return func(*visit) string { return title } }

// view is a page for one visit.
type view struct {
	*visit
	Title   string
	Problem *api.Problem
	Status  int // status of the answer
	page    *page
}

// headerRegion names the region that a request wants instead of the whole page.
const headerRegion = "Tidemill-Region"

// servePage answers with a page, or with one of its regions.
func (d *Dashboard) servePage(w http.ResponseWriter, r *http.Request, p *page) {
	v := &view{visit: &visit{Request: r, d: d}, Status: http.StatusOK, page: p}
	caller, err := get[api.Caller](v.visit, "/api/v1/caller", nil)
	if err != nil {
		d.refuse(w, v, err)
		return
	}
	v.caller = caller
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		v.Problem = v.asProblem(&api.Problem{Status: http.StatusBadRequest, Title: "the form cannot be read", Detail: err.Error()})
	}
	if p.redirect != nil {
		if to := p.redirect(v.visit); to != "" {
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
	}
	if name := r.Header.Get(headerRegion); name != "" {
		d.serveRegion(w, v, name)
		return
	}
	v.Title = p.title(v.visit)
	var main Node
	if v.Problem == nil {
		main, err = p.main(v)
		v.Problem = v.asProblem(err)
	}
	if p.status != 0 {
		v.Status = p.status
	}
	d.send(w, v, main)
}

// maxForm is enough for an event of a MiB in a form.
const maxForm = 4 << 20

// refuse answers a visitor whom the API does not know: with a form for the token, or with the reason.
func (d *Dashboard) refuse(w http.ResponseWriter, v *view, err error) {
	v.Problem = v.asProblem(err)
	v.Title = v.Problem.Title
	if v.Problem.Status == http.StatusUnauthorized {
		v.Title = "Sign in"
		if v.Method != http.MethodPost && v.Header.Get("Authorization") == "" && v.Header.Get(headerRegion) == "" {
			v.Problem, v.Status = nil, http.StatusOK // a browser's first request cannot have a token
		}
	}
	d.send(w, v, showSignIn())
}

// serveRegion answers with one region. The caller's right to the page was checked for this request.
func (d *Dashboard) serveRegion(w http.ResponseWriter, v *view, name string) {
	if !slices.ContainsFunc(v.page.regions, func(r region) bool { return r.name == name }) {
		http.Error(w, "this page has no such region", http.StatusNotFound)
		return
	}
	a, older := d.regions.get(v.Request, keyOfRegion(v.Request, name), d.opt.Now(), func() *answer {
		var text bytes.Buffer
		if err := v.Region(name).Render(&text); err != nil {
			d.opt.Logger.Error("dashboard: a region cannot be rendered; its visitor gets a 500", "route", v.page.path, "reason", err)
			return newAnswer(http.StatusInternalServerError, []byte(failedText))
		}
		return newAnswer(v.Status, text.Bytes())
	})
	if older {
		w.Header().Set(headerOlder, "1")
	}
	a.send(w, v.Request)
}

const failedText = "this page has a fault; the gateway's log has the details: report it"

// topicsOf returns the topics of a region; empty if the page has no such region.
func (v *view) topicsOf(name string) string {
	i := slices.IndexFunc(v.page.regions, func(r region) bool { return r.name == name })
	if i < 0 {
		return ""
	}
	var all []string
	for topic := range strings.FieldsSeq(v.page.regions[i].topics) {
		before, argument, ok := strings.Cut(strings.TrimSuffix(topic, "}"), "{")
		if !ok {
			all = append(all, topic)
			continue
		}
		value := cmp.Or(v.PathValue(argument), v.query(argument))
		if value != "" && len(value) <= maxTopic && !strings.ContainsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
			all = append(all, before+value)
		}
	}
	return strings.Join(all, " ")
}

// maxTopic is the length of the longest value in a topic.
const maxTopic = 256

// send renders a page into a buffer first, because an error can come at its end.
func (d *Dashboard) send(w http.ResponseWriter, v *view, main Node) {
	var b bytes.Buffer
	if err := v.layout(main).Render(&b); err != nil {
		d.opt.Logger.Error("dashboard: a page cannot be rendered; its visitor gets a 500", "route", v.page.path, "reason", err)
		http.Error(w, failedText, http.StatusInternalServerError)
		return
	}
	newAnswer(v.Status, b.Bytes()).send(w, v.Request)
}

// gzipFrom is the size from which a page is compressed.
const gzipFrom = 4 << 10

// Region returns a region of the page. A problem of the API is shown in its place.
func (v *view) Region(name string) Node {
	i := slices.IndexFunc(v.page.regions, func(r region) bool { return r.name == name })
	if i < 0 {
		return failed(fmt.Errorf("this page has no region %q", name))
	}
	shown, err := v.page.regions[i].show(v.visit)
	if p := v.asProblem(err); p != nil {
		shown = showProblem(p)
	}
	topics := v.topicsOf(name)
	return h.Section(h.Data("region", name), h.ID("region-"+name), when(topics != "", h.Data("live", topics)), shown)
}

// asProblem returns an error as a problem, and sets the answer's status to it; nil for no error.
func (v *view) asProblem(err error) *api.Problem {
	if err == nil {
		return nil
	}
	p := problemFrom(err)
	if v.Status == http.StatusOK {
		v.Status = p.Status
	}
	return p
}

// Install is the name of the install; empty before the caller is known.
func (v *view) Install() string {
	if !v.Known() {
		return ""
	}
	return v.d.opt.Install()
}

// Version is the gateway's version; empty before the caller is known.
func (v *view) Version() string {
	if !v.Known() {
		return ""
	}
	return v.d.opt.Version
}

// Known reports whether the API knows the caller.
func (v *visit) Known() bool { return len(v.caller.Roles) > 0 || v.caller.Name != "" }

// Caller is the caller of the page.
func (v *visit) Caller() api.Caller { return v.caller }

// Q returns a parameter of the page's URL.
func (v *visit) Q(name string) string { return v.FormValue(name) }

// headerVersions has the versions of a region's topics that the live connection has reported. Tabs that ask for the same
// region of the same page share its answers, so fifty tabs cost as much as one.
const headerVersions = "Tidemill-Versions"

// headerOlder marks an answer that was rendered for other versions than the asked ones, a moment ago. The tab asks again a
// second later.
const headerOlder = "Tidemill-Older"

const (
	regionLives = 5 * time.Second        // a region also has ages, which no topic reports
	regionEvery = 900 * time.Millisecond // least time between two renderings; a tab alone asks once a second
	regionCosts = 200                    // a region is rendered during at most one of so many parts of the time
	mostRegions = 200
)

// answer is HTML as it is sent. It never changes.
type answer struct {
	status        int
	plain, packed []byte // packed is nil if the text is short
}

func newAnswer(status int, body []byte) *answer {
	a := &answer{status: status, plain: body}
	if len(body) >= gzipFrom {
		a.packed = zip(body, gzip.BestSpeed)
	}
	return a
}

// send sends the answer. No browser stores it, because it has what only its caller may see.
func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	body := a.plain
	if a.packed != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // fails only if the caller has disconnected
}

// regionCache keeps the newest regions. A region is rendered once while others wait for it.
type regionCache struct {
	mu  sync.Mutex
	all map[string]*cachedRegion
}

// cachedRegion is a region that is rendered, or is being rendered. Its answer and the time that it took are set before
// done is closed.
type cachedRegion struct {
	done     chan struct{}
	began    time.Time // time at which its rendering began
	took     time.Duration
	versions string // versions that it was rendered for; it may also have newer changes
	answer   *answer
}

// serves reports whether a tab with some versions may get this region.
func (c *cachedRegion) serves(versions string, now time.Time) bool {
	limit := regionLives
	if c.versions != versions && c.isGood() { // the others wait for the rendering that is under way
		limit = min(max(regionEvery, c.took*regionCosts), regionLives)
	}
	return now.Sub(c.began) < limit
}

// keyOfRegion returns the key of a region in the cache: all that its answer depends on, besides the versions. Empty means
// that it must not be kept.
func keyOfRegion(r *http.Request, name string) string {
	if r.Header.Get(headerVersions) == "" || r.Method != http.MethodGet {
		return ""
	}
	return strings.Join([]string{r.Header.Get("Authorization"), r.URL.RequestURI(), name}, "\n")
}

// get returns a region from the cache, or renders it. It reports whether the region may lack changes that the tab knows
// of. Failed answers are not kept.
func (c *regionCache) get(r *http.Request, key string, now time.Time, render func() *answer) (a *answer, older bool) {
	if key == "" {
		return render(), false
	}
	versions := r.Header.Get(headerVersions)
	c.mu.Lock()
	one := c.all[key]
	if one != nil && one.serves(versions, now) {
		c.mu.Unlock()
		select {
		case <-one.done:
		case <-r.Context().Done():
		}
		if one.isGood() {
			return one.answer, one.versions != versions
		}
		return render(), false
	}
	one = &cachedRegion{done: make(chan struct{}), began: now, versions: versions}
	c.put(key, one, now)
	c.mu.Unlock()
	defer close(one.done) // also after a panic, or the others would wait for ever
	began := time.Now()
	one.answer = render()
	one.took = time.Since(began)
	return one.answer, false
}

// isGood reports whether an answer is there and may be given to others.
func (c *cachedRegion) isGood() bool {
	select {
	case <-c.done:
		return c.answer != nil && c.answer.status == http.StatusOK
	default:
		return false
	}
}

// put adds a region, and removes all that are too old. The caller holds the lock.
func (c *regionCache) put(key string, one *cachedRegion, now time.Time) {
	if c.all == nil || len(c.all) >= mostRegions {
		old := c.all
		c.all = map[string]*cachedRegion{}
		for k, v := range old {
			if now.Sub(v.began) < regionLives && len(c.all) < mostRegions/2 {
				c.all[k] = v
			}
		}
	}
	c.all[key] = one
}
