package dashboard

import (
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

// layout is the frame around a page.
func (v *view) layout(main Node) Node {
	if v.Problem != nil {
		main = list(h.H1(say(v.Title)), showProblem(v.Problem))
	}
	title := v.Title
	if install := v.Install(); install != "" {
		title += " · " + install
	}
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.TitleEl(say(title+" · Tidemill")),
			h.Link(h.Rel("stylesheet"), h.Href(v.d.assets.url("style.css"))),
			h.Link(h.Rel("icon"), h.Href(v.d.assets.url("icon.svg")), h.Type("image/svg+xml")),
			h.Script(h.Type("module"), h.Src(v.d.assets.url("app.js"))),
		),
		h.Body(when(v.d.opt.Live, h.Data("live", "/api/v1/live")), when(!v.Known(), g.Attr("data-unknown")),
			h.A(h.Class("skip"), h.Href("#main"), say("Skip to the content")),
			v.topBar(),
			v.navigation(),
			h.Main(h.ID("main"), h.TabIndex("-1"), main),
			h.Div(h.ID("announce"), h.Class("hidden"), h.Role("status")),
		),
	))
}

func (v *view) topBar() Node {
	search, install := "", v.Install()
	if v.URL.Path == "/ui/search" {
		search = titled(v.Q("q"))
	}
	return h.Header(h.ID("top"),
		h.A(h.Class("brand"), h.Href("/"), say("Tidemill")), when(install != "", say(" "), h.Span(h.Class("install"), text(install))),
		h.Form(h.Class("search"), h.Role("search"), h.Action("/ui/search"), h.Label(h.Span(h.Class("hidden"), say("Find a key, run, model or name")),
			h.Input(h.Type("search"), h.Name("q"), h.Placeholder("Find a key, run, model… ( / )"), h.Value(search), h.MaxLength("1024")))),
		h.Span(h.ID("live-state"), h.Class("live-state"), h.Role("status")),
		h.Span(h.Class("who"), when(v.Known(), v.signedIn())),
		h.Span(h.Class("version"), say(word(v.Version()))))
}

func (v *view) signedIn() Node {
	if v.caller.Name == "" {
		return quiet(say("no sign-in"))
	}
	return list(text(v.caller.Name), say(" "), h.Button(h.Type("button"), g.Attr("data-sign-out"), say("Sign out")))
}

func (v *view) navigation() Node {
	return h.Nav(h.ID("nav"), h.Aria("label", "Pages"), each(navigation(), func(group *navGroup) Node {
		return h.Div(h.Role("group"), h.Aria("label", group.Title), h.P(h.Class("nav-title"), h.Aria("hidden", "true"), say(group.Title)),
			h.Ul(each(group.Entries, func(e *navEntry) Node {
				return h.Li(h.A(h.Href(e.Path), when(v.page.nav == e.Path, h.Aria("current", "page")), when(e.Keys != "", h.Data("keys", e.Keys)), say(e.Title)))
			})))
	}))
}

// showProblem shows why the API refuses a request.
func showProblem(p *api.Problem) Node {
	return h.Div(h.Class("problem"), h.Role("alert"), h.Data("status", strconv.Itoa(p.Status)),
		h.P(h.Strong(say(titled(p.Title))), say(" "), quiet(say("("+strconv.Itoa(p.Status)+")"))),
		h.P(say(titled(p.Detail))),
		when(len(p.Streams) > 0, h.P(say("Streams: "), each(p.Streams, func(name *string) Node { return list(streamLink(*name), say(" ")) }))))
}

// Node is a part of a page. A Node escapes all text and all values of attributes, except markup.
type Node = g.Node

// markup is HTML that this package has made: its parts from elsewhere are escaped already.
type markup string

// Render writes the markup.
func (m markup) Render(w io.Writer) error {
	_, err := io.WriteString(w, string(m))
	return err
}

func esc(s string) string { return html.EscapeString(s) }

// say is plain text.
func say(text string) Node { return g.Text(text) }

// list joins nodes. It skips those that are nil.
func list(nodes ...Node) Node { return g.Group(nodes) }

// when returns nodes if a condition holds. The nodes are made in any case, so they must not read
// what is only there if it holds.
func when(holds bool, nodes ...Node) Node {
	if !holds {
		return nil
	}
	return g.Group(nodes)
}

// each returns a node for every element of a list.
func each[T any](all []T, of func(*T) Node) Node {
	nodes := make(g.Group, len(all))
	for i := range all {
		nodes[i] = of(&all[i])
	}
	return nodes
}

// failed is a node that cannot be rendered. It makes the page an error that the log explains.
func failed(err error) Node { return g.NodeFunc(func(io.Writer) error { return err }) }

// heads is the head of a table. The title of a column with numbers begins with #.
func heads(titles ...string) Node {
	return headRow(each(titles, func(title *string) Node {
		if text, numeric := strings.CutPrefix(*title, "#"); numeric {
			return headNumber(say(text))
		}
		return head(say(*title))
	}))
}

func headRow(cells ...Node) Node       { return h.THead(h.Tr(cells...)) }
func head(nodes ...Node) Node          { return h.Th(h.Scope("col"), list(nodes...)) }
func headNumber(nodes ...Node) Node    { return h.Th(h.Scope("col"), h.Class("num"), list(nodes...)) }
func table(nodes ...Node) Node         { return h.Table(nodes...) }
func rows(nodes ...Node) Node          { return h.TBody(nodes...) }
func row(key string, n ...Node) Node   { return h.Tr(g.Attr("data-key", key), list(n...)) }
func rowName(nodes ...Node) Node       { return h.Th(h.Scope("row"), list(nodes...)) }
func cell(nodes ...Node) Node          { return h.Td(nodes...) }
func figure(nodes ...Node) Node        { return h.Td(h.Class("num"), list(nodes...)) }
func buttons(nodes ...Node) Node       { return h.Td(h.Class("buttons"), list(nodes...)) }
func acts(nodes ...Node) Node          { return h.Td(h.Class("acts"), list(nodes...)) }
func actions(nodes ...Node) Node       { return h.Div(h.Class("actions"), list(nodes...)) }
func lead(nodes ...Node) Node          { return h.P(h.Class("lead"), list(nodes...)) }
func quiet(nodes ...Node) Node         { return h.Span(h.Class("none"), list(nodes...)) }
func note(nodes ...Node) Node          { return h.P(h.Class("none"), list(nodes...)) }
func nothing(nodes ...Node) Node       { return h.P(h.Class("empty"), list(nodes...)) }
func together(nodes ...Node) Node      { return h.Span(h.Class("pair"), list(nodes...)) }
func anchor(to string, n ...Node) Node { return h.A(h.Href(to), list(n...)) }
func button(to, title string) Node     { return h.A(h.Class("button"), h.Href(to), say(title)) }
func facts(nodes ...Node) Node         { return h.Dl(h.Class("facts"), list(nodes...)) }
func card(value string, n ...Node) Node {
	return h.Div(h.Class("card"), h.B(say(value)), say(" "), list(n...))
}

// scroll lets a wide table scroll within the page. The class of most tables is rows.
func scroll(class string, nodes ...Node) Node {
	return h.Div(h.Class("scroll"), h.Table(when(class != "", h.Class(class)), list(nodes...)))
}

// fact is a line of a list of facts.
func fact(title string, nodes ...Node) Node {
	return h.Div(h.Dt(say(title)), h.Dd(nodes...))
}

// by names the person who did something.
func by(name string) Node {
	if name == "" {
		return nil
	}
	return list(say(" by "), text(name))
}

// because adds a reason.
func because(reason string) Node {
	if reason == "" {
		return nil
	}
	return say(": " + titled(reason))
}

// one returns a word for one thing, or for several.
func one(n int, single, several string) string {
	if n == 1 {
		return single
	}
	return several
}

// dash stands for a value that is not there.
func dash() Node { return quiet(say("–")) }

// hint says what a person can do on an empty page.
type hint struct{ what, how, command string }

func (e hint) node() Node {
	return h.Div(h.Class("empty"), h.P(say(e.what)), when(e.how != "", h.P(say(e.how)), command(e.command)))
}

func empty(what string) Node { return hint{what: what}.node() }

// command is a line to copy.
func command(line string) Node { return g.El("tm-copy", h.Code(say(line))) }

// pager leads to the other pages of a list.
func pager(what, next, first string) Node {
	if next == "" && first == "" {
		return nil
	}
	return h.Nav(h.Class("pager"), h.Aria("label", "More "+what),
		when(first != "", anchor(first, say("First page"))), when(next != "", h.A(h.Rel("next"), h.Href(next), say("Next page"))))
}

// emptyPage is shown if a page of a list has no rows: none, or the links to the other pages.
func emptyPage(none Node, what, next, first string) Node {
	if next == "" && first == "" {
		return none
	}
	return list(nothing(say("No "+what+" on this page.")), pager(what, next, first))
}

// filter is a form that chooses what a page shows. All leads to the unfiltered page.
func filter(action string, nodes ...Node) Node {
	return h.Form(h.Class("filter"), h.Method("get"), h.Action(action), list(nodes...))
}

func submitButton(title string) Node { return h.Button(say(title)) }

// input is a text field of a form, with the value of the page's URL.
func (v *visit) input(label, name, size, hint string) Node {
	return inputOf(label, name, v.Q(name), size, hint)
}

func inputOf(label, name, value, size, hint string) Node {
	return h.Label(say(label+" "), h.Input(h.Name(name), h.Value(value), when(hint != "", h.Placeholder(hint)), when(size != "", g.Attr("size", size))))
}

func hidden(name, value string) Node { return h.Input(h.Type("hidden"), h.Name(name), h.Value(value)) }

// choose is a list of choices, with the value of the page's URL.
func choose[T ~string](v *visit, label, name string, options []T) Node {
	return h.Label(say(label+" "), h.Select(h.Name(name), h.Option(h.Value(""), say("all")), each(options, func(o *T) Node {
		return h.Option(when(string(*o) == v.Q(name), h.Selected()), say(string(*o)))
	})))
}

// metricsLine is a short list of figures.
func metricsLine(all []metric) Node {
	nodes := make(g.Group, len(all))
	for i, m := range all {
		nodes[i] = list(when(i > 0, say(" · ")), g.El("bdi", h.Class("none"), say(word(m.Name))), say(" "+number(m.Value)))
	}
	return nodes
}

// ago shows a time by its distance from now.
func (v *visit) ago(at any) Node { return v.d.ago(at) }

// since shows the duration between two times.
func (v *visit) since(from, to any) Node { return v.d.since(from, to) }

// oneOf is one for a number that was written already.
func oneOf(n, single, several string) string {
	if n == "1" {
		return single
	}
	return several
}

// shortened is the beginning of an id, where there is little room.
func shortened(id string) string { return fmt.Sprintf("%.8s", id) }

// shortRunLink shows a run where there is little room.
func shortRunLink(id string) Node {
	if id == "" {
		return nil
	}
	return h.A(h.Href(runURL(id)), h.Title(word(id)), say(shortened(id)))
}
