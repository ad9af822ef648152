package dashboard

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"tidemill.dev/api"
)

// page is one page of the dashboard. Its template defines "main", and one template for each region,
// by the region's name.
type page struct {
	path     string // pattern of net/http
	file     string // file of its template, without .html
	nav      string // path of its entry in the navigation
	title    func(v *visit) string
	status   int                         // status of the answer; 0 for 200
	post     bool                        // whether it answers POST too
	redirect func(v *visit) string       // address to go to instead; empty to stay. May be nil
	load     func(v *visit) (any, error) // data of "main" outside of the regions; may be nil
	regions  []region
}

// region is a part of a page that is fetched again when one of its topics changes.
type region struct {
	name   string
	topics string // topics of /api/v1/live, separated by spaces; {run} is that value of the path or the query. Empty for a part that never changes
	load   func(v *visit) (any, error)
}

// named returns the title of a page whose title never changes.
func named(title string) func(*visit) string { return func(*visit) string { return title } }

// view is the data of a page's template.
type view struct {
	*visit
	Title   string
	Data    any // result of page.load
	Problem *api.Problem
	Status  int // status of the answer

	page     *page
	template *template.Template
}

// regionView is the data of a region's template.
type regionView struct {
	*visit
	Data any
}

// headerRegion names the region that a request wants instead of the whole page.
const headerRegion = "Tidemill-Region"

// servePage answers with a page, or with one of its regions.
func (d *Dashboard) servePage(w http.ResponseWriter, r *http.Request, p *page) {
	v := &view{visit: &visit{Request: r, d: d}, Status: http.StatusOK, page: p, template: d.pages[p.file]}
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
	if p.load != nil && v.Problem == nil {
		v.Data, err = p.load(v.visit)
		v.Problem = v.asProblem(err)
	}
	if p.status != 0 {
		v.Status = p.status
	}
	d.send(w, v, "layout")
}

// maxForm is enough for an event of a MiB in a form.
const maxForm = 4 << 20

// refuse answers a visitor whom the API does not know: with a form for the token, or with the reason.
func (d *Dashboard) refuse(w http.ResponseWriter, v *view, err error) {
	v.Problem = v.asProblem(err)
	v.Title = v.Problem.Title
	v.template = d.pages["problem"]
	if v.Problem.Status == http.StatusUnauthorized {
		v.Title, v.template = "Sign in", d.pages["signin"]
		if v.Method != http.MethodPost && v.Header.Get("Authorization") == "" && v.Header.Get(headerRegion) == "" {
			v.Problem, v.Status = nil, http.StatusOK // a browser's first request cannot have a token
		}
	}
	d.send(w, v, "layout")
}

// serveRegion answers with one region. The caller's right to the page was checked for this request.
func (d *Dashboard) serveRegion(w http.ResponseWriter, v *view, name string) {
	if !slices.ContainsFunc(v.page.regions, func(r region) bool { return r.name == name }) {
		http.Error(w, "this page has no such region", http.StatusNotFound)
		return
	}
	a, older := d.regions.get(v.Request, keyOfRegion(v.Request, name), d.opt.Now(), func() *answer {
		text, err := v.Region(name)
		if err != nil {
			d.opt.Logger.Error("dashboard: a region cannot be rendered; its visitor gets a 500", "route", v.page.path, "reason", err)
			return newAnswer(http.StatusInternalServerError, []byte(failedText))
		}
		return newAnswer(v.Status, []byte(text))
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

// send renders a template into a buffer first, because the status is known only at the end.
func (d *Dashboard) send(w http.ResponseWriter, v *view, name string) {
	var b bytes.Buffer
	if err := v.template.ExecuteTemplate(&b, name, v); err != nil {
		d.opt.Logger.Error("dashboard: a page cannot be rendered; its visitor gets a 500", "route", v.page.path, "reason", err)
		http.Error(w, failedText, http.StatusInternalServerError)
		return
	}
	newAnswer(v.Status, b.Bytes()).send(w, v.Request)
}

// gzipFrom is the size from which a page is compressed.
const gzipFrom = 4 << 10

// Region renders a region of the page. A problem of the API is shown in its place.
func (v *view) Region(name string) (template.HTML, error) {
	for _, r := range v.page.regions {
		if r.name != name {
			continue
		}
		data, err := r.load(v.visit)
		var b strings.Builder
		fmt.Fprintf(&b, `<section data-region="%s" id="region-%s"`, r.name, r.name)
		if topics := v.topicsOf(name); topics != "" {
			fmt.Fprintf(&b, ` data-live="%s"`, template.HTMLEscapeString(topics))
		}
		b.WriteString(">")
		if p := v.asProblem(err); p != nil {
			err = v.template.ExecuteTemplate(&b, "problem", p)
		} else {
			err = v.template.ExecuteTemplate(&b, r.name, &regionView{v.visit, data})
		}
		b.WriteString("</section>")
		return template.HTML(b.String()), err
	}
	return "", fmt.Errorf("this page has no region %q", name)
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

// Is reports whether a navigation entry is that of this page.
func (v *view) Is(path string) bool { return v.page.nav == path }

// Nav returns the navigation.
func (v *view) Nav() []navGroup { return navigation() }

// Live reports whether the API has a live connection.
func (v *view) Live() bool { return v.d.opt.Live }

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
