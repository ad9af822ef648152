package dashboard

import (
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

func lineagePages() []*page {
	return []*page{{path: "/ui/lineage", file: "lineage", nav: "/ui/lineage", title: lineageTitle, regions: []region{
		{"graph", "", loadGraph},
		{"plan", "", loadPlan},
	}}}
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

func loadGraph(v *visit) (any, error) {
	limit, err := strconv.Atoi(v.query("nodes"))
	if err != nil || limit < 1 || limit > drawnMost {
		limit = drawnFirst
	}
	q := url.Values{"of": {v.query("of")}, "layout": {"positions"}, "limit": {strconv.Itoa(limit)}}
	direction := v.query("direction")
	if direction != "" {
		q.Set("direction", direction)
	}
	g, err := get[api.Graph](v, "/api/v1/why", q)
	if err != nil {
		return nil, err
	}
	shown := graphShown{Graph: g, Direction: direction, Picture: pictureOf(&g, direction)}
	if direction != "effects" {
		shown.Causes = drawing.Causes(&g)
	}
	if direction != "causes" {
		shown.Effects = drawing.Effects(&g)
	}
	if len(g.Nodes) > 0 {
		shown.Node, shown.Own = &g.Nodes[0], ownURL(&g.Nodes[0])
	}
	if g.Left > 0 && limit < drawnMost {
		more := v.URL.Query()
		more.Set("nodes", strconv.Itoa(min(limit+drawnFirst, drawnMost)))
		shown.MoreURL = v.URL.Path + "?" + more.Encode()
	}
	return shown, nil
}

// widest is the width up to which a picture is scaled to the page: the text of a wider one would be
// too small.
const widest = 1400

// picture is a graph as the template draws it.
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

// lineX and lineY are the place of a line of text in a box.
func lineX(b pictureBox) float64 { return b.X + 11 }

func lineY(b pictureBox, line int) float64 { return b.Y + 19 + 17*float64(line) }

type pictureLine struct {
	Path, What string
	X, Y       float64
}

func pictureOf(g *api.Graph, direction string) picture {
	l := g.Layout
	if l == nil {
		return picture{}
	}
	p, nodes := picture{Width: l.Width, Height: l.Height, Wide: l.Width > widest}, map[string]*api.GraphNode{}
	for i := range g.Nodes {
		nodes[g.Nodes[i].ID] = &g.Nodes[i]
	}
	for _, n := range l.Nodes {
		of := nodes[n.ID]
		if of == nil {
			continue
		}
		p.Boxes = append(p.Boxes, pictureBox{n, boxClass(of, g.Subject), nodeURL(of, direction)})
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
