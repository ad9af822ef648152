package dashboard

import (
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

// The kinds of nodes in the plan of an install.
const (
	kindStream   api.GraphKind = "stream"
	kindTrigger  api.GraphKind = "trigger"
	kindSchedule api.GraphKind = "schedule"
	kindRecipe   api.GraphKind = "recipe"
	kindScorer   api.GraphKind = "scorer"
	kindDataset  api.GraphKind = "dataset"
	kindTarget   api.GraphKind = "target"
)

// plan is the graph of the config's parts.
type plan struct {
	api.Graph
	Picture picture
	Rows    []planRow
	Cycles  int // edges that the picture leaves out
}

// planRow is an edge of the plan in words.
type planRow struct {
	From, To *api.GraphNode
	What     string
}

// planParts are the answers that a plan is made from.
type planParts struct {
	streams   api.Streams
	triggers  api.Triggers
	schedules api.Schedules
	scorers   api.Scorers
	recipes   []api.Recipe
}

func loadPlan(v *visit) (*plan, error) {
	var parts planParts
	var err error
	if parts.streams, err = get[api.Streams](v, "/api/v1/streams", nil); err != nil {
		return nil, err
	}
	if parts.triggers, err = get[api.Triggers](v, "/api/v1/triggers", nil); err != nil {
		return nil, err
	}
	if parts.schedules, err = get[api.Schedules](v, "/api/v1/schedules", nil); err != nil {
		return nil, err
	}
	if parts.scorers, err = get[api.Scorers](v, "/api/v1/scorers", nil); err != nil {
		return nil, err
	}
	if parts.recipes, err = askRecipes(v); err != nil {
		return nil, err
	}
	p := planOf(&parts)
	p.Layout = drawing.Positions(&p.Graph, func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") })
	p.Picture, p.Cycles = pictureOf(&p.Graph, ""), len(p.Edges)-len(p.Layout.Edges)
	return p, nil
}

// planOf makes the graph. Streams, datasets and models without a neighbour are left out.
func planOf(parts *planParts) *plan {
	b := planBuilder{plan: &plan{}, nodes: map[string]api.GraphNode{}, has: map[string]bool{}}
	for i := range parts.triggers.Triggers {
		if t := &parts.triggers.Triggers[i]; t.To.Function != "train" { // it belongs to a recipe, which is drawn itself
			b.addTrigger(t)
		}
	}
	for i := range parts.recipes {
		b.addRecipe(&parts.recipes[i])
	}
	for i := range parts.scorers.Scorers {
		b.addScorer(&parts.scorers.Scorers[i])
	}
	for _, s := range parts.schedules.Schedules {
		n := b.node(kindSchedule, s.Name)
		n.Says = []string{s.Cron + " " + s.TimeZone}
		b.nodes[n.ID] = n
	}
	for _, s := range parts.streams.Streams {
		if n := b.node(kindStream, s.Name); b.has[n.ID] {
			n.Says = []string{rate(s.Rate) + " events a second"}
			b.nodes[n.ID] = n
		}
	}
	return b.finish()
}

type planBuilder struct {
	plan  *plan
	nodes map[string]api.GraphNode
	order []string
	has   map[string]bool // ids of nodes with an edge, or of parts that are shown without one
}

func (b *planBuilder) node(kind api.GraphKind, name string) api.GraphNode {
	id := string(kind) + "/" + name
	n, known := b.nodes[id]
	if !known {
		n = api.GraphNode{ID: id, Kind: kind, Title: string(kind) + " " + name}
		b.nodes[id], b.order = n, append(b.order, id)
	}
	return n
}

func (b *planBuilder) join(from, to api.GraphNode, what string) {
	b.has[from.ID], b.has[to.ID] = true, true
	b.plan.Edges = append(b.plan.Edges, api.GraphEdge{From: from.ID, To: to.ID, What: api.GraphRelation(what)})
}

func (b *planBuilder) addTrigger(t *api.Trigger) {
	n := b.node(kindTrigger, t.Name)
	if t.State != api.TriggerActive {
		n.State = string(t.State)
		b.nodes[n.ID] = n
	}
	for _, s := range t.Streams {
		b.join(b.node(kindStream, s), n, "is read by")
	}
	switch {
	case t.To.Service != "":
		b.join(n, b.node(kindTarget, "service "+t.To.Service), "calls")
	case t.To.Function != "":
		b.join(n, b.node(kindTarget, "function "+t.To.Function), "calls")
	case t.To.URL != "":
		b.join(n, b.node(kindTarget, t.To.URL), "calls")
	}
}

func (b *planBuilder) addRecipe(r *api.Recipe) {
	n := b.node(kindRecipe, r.Name)
	n.Says = []string{count(r.Keys) + " keys"}
	if r.PausedSince != nil {
		n.State = "paused"
	}
	b.nodes[n.ID], b.has[n.ID] = n, true
	for _, s := range r.Streams {
		b.join(b.node(kindStream, s), n, "starts")
	}
	for _, w := range r.When {
		if w.Schedule != "" {
			b.join(b.node(kindSchedule, w.Schedule), n, "starts")
		}
	}
	for _, in := range r.Inputs {
		b.join(b.node(kindDataset, in.Dataset), n, "is read by")
	}
	if r.Dataset != "" {
		b.join(n, b.node(kindDataset, r.Dataset), "makes")
	}
	if r.Model != "" {
		b.join(n, b.node(api.KindModel, r.Model), "makes")
	}
}

func (b *planBuilder) addScorer(s *api.Scorer) {
	n := b.node(kindScorer, s.Name)
	b.join(b.node(kindStream, s.From), n, "is scored by")
	b.join(b.node(api.KindModel, s.Model), n, "answers in")
	b.join(n, b.node(kindStream, s.To), "writes to")
}

func (b *planBuilder) finish() *plan {
	for _, id := range b.order {
		n := b.nodes[id]
		if b.has[id] || n.Kind == kindSchedule {
			n.Title = strings.TrimPrefix(n.Title, string(kindTarget)+" ")
			b.plan.Nodes = append(b.plan.Nodes, n)
		}
	}
	at := map[string]*api.GraphNode{}
	for i := range b.plan.Nodes {
		at[b.plan.Nodes[i].ID] = &b.plan.Nodes[i]
	}
	for i := range b.plan.Edges {
		e := &b.plan.Edges[i]
		b.plan.Rows = append(b.plan.Rows, planRow{at[e.From], at[e.To], string(e.What)})
		e.What = "" // in the picture, the kinds of both ends say it, and it needs less room
	}
	return b.plan
}
