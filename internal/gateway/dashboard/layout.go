package dashboard

import (
	"strconv"

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
