package dashboard

import (
	"net/url"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

func lineagePages() []*page {
	return []*page{{path: "/ui/lineage", nav: "/ui/lineage", title: lineageTitle, main: still(showLineagePage), regions: []region{
		part("graph", "", loadGraph, showGraph),
		part("plan", "", loadPlan, showPlanOfInstall),
	}}}
}

func showLineagePage(v *view) Node {
	of := v.Q("of")
	direction := func(value, title string) Node {
		return h.Option(h.Value(value), when(v.Q("direction") == value, h.Selected()), say(title))
	}
	region := "plan"
	if of != "" {
		region = "graph"
	}
	return list(h.H1(say(v.Title)), filter("/ui/lineage", inputOf("Of", "of", of, "60", "run/ID, model/NAME, commit/DATASET@BRANCH, event/ID"),
		h.Label(say("Show "), h.Select(h.Name("direction"), h.Option(h.Value(""), say("causes and effects")), direction("causes", "causes"), direction("effects", "effects"))),
		submitButton("Show"), when(of != "", say(" "), anchor("/ui/lineage", say("This install")))), v.Region(region))
}

func lineageTitle(v *visit) string {
	if of := v.query("of"); of != "" {
		return "Lineage of " + word(of)
	}
	return "Lineage"
}

// drawnFirst is the number of nodes that a page draws at first; drawnMost is the API's limit.
const (
	drawnFirst = 60
	drawnMost  = 200
)

// graphShown is a graph with its drawing and its outline.
type graphShown struct {
	api.Graph
	Direction       string
	Picture         picture
	Causes, Effects []drawing.Branch
	MoreURL         string
	Node            *api.GraphNode // the subject itself; may be nil
	Own             string         // address of its page
}

func loadGraph(v *visit) (*graphShown, error) {
	limit, err := strconv.Atoi(v.query("nodes"))
	if err != nil || limit < 1 || limit > drawnMost {
		limit = drawnFirst
	}
	q := url.Values{"of": {v.query("of")}, "layout": {"positions"}, "limit": {strconv.Itoa(limit)}}
	direction := v.query("direction")
	if direction != "" {
		q.Set("direction", direction)
	}
	found, err := get[api.Graph](v, "/api/v1/why", q)
	if err != nil {
		return nil, err
	}
	shown := graphShown{Graph: found, Direction: direction, Picture: pictureOf(&found, direction)}
	if direction != "effects" {
		shown.Causes = drawing.Causes(&found)
	}
	if direction != "causes" {
		shown.Effects = drawing.Effects(&found)
	}
	if len(found.Nodes) > 0 {
		shown.Node, shown.Own = &found.Nodes[0], ownURL(&found.Nodes[0])
	}
	if found.Left > 0 && limit < drawnMost {
		more := v.URL.Query()
		more.Set("nodes", strconv.Itoa(min(limit+drawnFirst, drawnMost)))
		shown.MoreURL = v.URL.Path + "?" + more.Encode()
	}
	return &shown, nil
}

func showGraph(v *visit, s *graphShown) Node {
	parts := g.Group{}
	if len(s.Nodes) > 1 {
		parts = append(parts, s.Picture.node("Causes and effects of "+word(s.Subject)))
	}
	parts = append(parts, when(s.Left > 0, h.P(say(count(s.Left)+" more "+one(s.Left, "thing is", "things are")+" left out, because "+one(s.Left, "it is", "they are")+" farther away."),
		when(s.MoreURL != "", say(" "), anchor(s.MoreURL, say("Draw more"))))),
		each(s.Notes, func(text *string) Node { return note(say(titled(*text))) }), v.subject(s))
	outline := func(title, without string, all []drawing.Branch) Node {
		below := nothing(say(without))
		if len(all) > 0 {
			below = v.branches(all, s.Direction)
		}
		return h.Section(h.H2(say(title)), below)
	}
	return append(parts, h.Div(h.Class("outline"),
		when(s.Direction != "effects", outline("Causes", "No cause is known.", s.Causes)),
		when(s.Direction != "causes", outline("Effects", "No effect is known.", s.Effects))))
}

// subject shows the node that a graph is about.
func (v *visit) subject(s *graphShown) Node {
	n := s.Node
	if n == nil {
		return nil
	}
	var line, says g.Group
	if n.State != "" {
		line = append(line, badge(n.State), say(" "))
	}
	if n.Time != nil {
		line = append(line, v.ago(n.Time), say(" "))
	}
	if s.Own != "" {
		line = append(line, anchor(s.Own, say("Its page")))
	}
	for i, text := range n.Says {
		says = append(says, when(i > 0, say(" · ")), say(titled(text)))
	}
	return list(h.H2(say(titled(n.Title))), lead(line), when(len(says) > 0, h.P(says)), when(n.Said != "", h.P(say(titled(n.Said)))))
}

// branches is a list of nodes with those below them.
func (v *visit) branches(all []drawing.Branch, direction string) Node {
	return h.Ul(h.Class("tree"), each(all, func(b *drawing.Branch) Node {
		line := g.Group{say(b.Relation + " "), nodeLink(b.Node, direction)}
		if b.Again {
			return h.Li(append(line, say(" "), quiet(say("see above"))))
		}
		if n := b.Node; n.State != "" {
			line = append(line, say(" "), badge(n.State))
		}
		if b.Node.Time != nil {
			line = append(line, say(" "), quiet(v.ago(b.Node.Time)))
		}
		for _, text := range b.Node.Says {
			line = append(line, say(" "), quiet(say("· "+word(text))))
		}
		if b.Node.Said != "" {
			line = append(line, say(" "), quiet(say("· "+titled(b.Node.Said))))
		}
		if len(b.Below) > 0 {
			line = append(line, v.branches(b.Below, direction))
		}
		return h.Li(line)
	}))
}

func nodeLink(n *api.GraphNode, direction string) Node {
	if to := nodeURL(n, direction); to != "" {
		return anchor(to, text(n.Title))
	}
	return text(n.Title)
}

func showPlanOfInstall(_ *visit, p *plan) Node {
	title := lead(say("How events, recipes, models and scorers of this install depend on each other. To see what one model, run, commit or event comes from, give its id."))
	if len(p.Nodes) == 0 {
		return list(title, empty("The config has no triggers, recipes, schedules or scorers."))
	}
	return list(title, p.Picture.node("Parts of this install"),
		when(p.Cycles > 0, note(say(count(p.Cycles)+" "+one(p.Cycles, "connection closes a cycle and is", "connections close a cycle and are")+" in the table alone."))),
		details("As a table", h.Table(h.Class("rows"), heads("From", "Connection", "To"), rows(each(p.Rows, func(r *planRow) Node {
			return h.Tr(rowName(nodeLink(r.From, "")), cell(say(r.What)), cell(nodeLink(r.To, "")))
		})))))
}

// widest is the width up to which a picture is scaled to the page: the text of a wider one would be
// too small.
const widest = 1400

// picture is a graph as a page draws it.
type picture struct {
	Width, Height float64
	Wide          bool // too wide to be scaled to the page; it scrolls
	Boxes         []pictureBox
	Lines         []pictureLine
}

type pictureBox struct {
	api.PlacedNode
	Class, URL string
}

// ownURL returns the address of a node's own page; empty if it has none.
func ownURL(n *api.GraphNode) string {
	if len(n.ID) > maxLinked {
		return ""
	}
	switch n.Kind {
	case api.KindRun:
		return runURL(strings.TrimPrefix(n.ID, "run/"))
	case api.KindModel:
		return modelURL(n.Facts["model"])
	case api.KindCommit:
		return commitURL(n.Facts["dataset"], n.Facts["commit"])
	}
	return ""
}

type pictureLine struct {
	Path, What string
	X, Y       float64
}

func pictureOf(of *api.Graph, direction string) picture {
	l := of.Layout
	if l == nil {
		return picture{}
	}
	p, nodes := picture{Width: l.Width, Height: l.Height, Wide: l.Width > widest}, map[string]*api.GraphNode{}
	for i := range of.Nodes {
		nodes[of.Nodes[i].ID] = &of.Nodes[i]
	}
	for _, n := range l.Nodes {
		node := nodes[n.ID]
		if node == nil {
			continue
		}
		p.Boxes = append(p.Boxes, pictureBox{n, boxClass(node, of.Subject), nodeURL(node, direction)})
	}
	for _, e := range l.Edges {
		if len(e.Points) < 4 {
			continue
		}
		x, y := drawing.Label(e.Points)
		p.Lines = append(p.Lines, pictureLine{drawing.Path(e.Points), string(e.What), x, y})
	}
	return p
}

// boxClass returns the classes of a box. It copies no text of the node unchecked.
func boxClass(n *api.GraphNode, subject string) string {
	class := "box"
	switch n.Kind {
	case api.KindRun, api.KindModel, api.KindCommit, api.KindEvent, kindStream, kindTrigger, kindSchedule, kindRecipe, kindScorer, kindDataset:
		class += " " + string(n.Kind)
	}
	if kindOf(n.State) == "bad" {
		class += " bad"
	}
	if n.ID == subject {
		class += " subject"
	}
	return class
}

// nodeURL returns the address of a node's lineage, or of the page of a part of the config; empty for
// a node that has neither.
func nodeURL(n *api.GraphNode, direction string) string {
	_, name, _ := strings.Cut(n.ID, "/")
	if len(n.ID) > maxLinked {
		return ""
	}
	switch n.Kind {
	case api.KindRun, api.KindModel, api.KindCommit, api.KindEvent:
		if strings.Contains(name, "{") && n.Facts == nil && n.Time == nil {
			return "" // the template of a model
		}
		if direction != "" {
			return queryURL("/ui/lineage", "of", n.ID, "direction", direction)
		}
		return whyURL(n.ID)
	case kindStream:
		return streamURL(name)
	case kindTrigger:
		return triggerURL(name)
	case kindSchedule:
		return "/ui/triggers"
	case kindRecipe:
		return recipeURL(name)
	case kindScorer:
		return scorerURL(name)
	case kindDataset:
		prefix, _, _ := strings.Cut(name, "{")
		return queryURL("/ui/data", "prefix", prefix)
	}
	return ""
}

// node draws a picture as SVG.
func (p *picture) node(name string) Node {
	size := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	class := "graph"
	if p.Wide {
		class += " wide"
	}
	return h.Div(h.Class("scroll"), h.TabIndex("0"), h.Role("region"), h.Aria("label", "Drawing"),
		h.SVG(h.Class(class), h.Width(size(p.Width)), h.Height(size(p.Height)), g.Attr("viewBox", "0 0 "+size(p.Width)+" "+size(p.Height)), h.Role("group"), h.Aria("label", name),
			markup(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>`),
			each(p.Lines, func(l *pictureLine) Node {
				return list(g.El("path", h.Class("edge"), g.Attr("marker-end", "url(#tip)"), g.Attr("d", l.Path)),
					when(l.What != "", g.El("text", h.Class("what"), g.Attr("x", size(l.X)), g.Attr("y", size(l.Y)), g.Attr("text-anchor", "middle"), say(word(l.What)))))
			}),
			each(p.Boxes, func(b *pictureBox) Node {
				box := g.El("g", h.Class(b.Class), h.TitleEl(say(titled(b.ID))),
					g.El("rect", g.Attr("x", size(b.X)), g.Attr("y", size(b.Y)), h.Width(size(b.Width)), h.Height(size(b.Height)), g.Attr("rx", "6")), b.text(size))
				if b.URL != "" {
					return anchor(b.URL, box)
				}
				return box
			})))
}

// text has the lines of a box below each other.
func (b *pictureBox) text(size func(float64) string) Node {
	all := make(g.Group, len(b.Lines))
	for i, line := range b.Lines {
		all[i] = g.El("text", when(i == 0, h.Class("name")), g.Attr("x", size(b.X+11)), g.Attr("y", size(b.Y+19+17*float64(i))), say(titled(line)))
	}
	return all
}
