package lineage

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev/api"
)

const (
	mostNodes   = 200
	mostCauses  = 120 // limit of nodes when the walk goes back
	mostSteps   = 12  // limit of steps from the subject, in either direction
	mostEffects = 40  // limit of effects of one thing
)

// lookUp finds the thing to which a link leads, with its causes if back is true, else with its
// effects. It returns nil if the thing is not known.
type lookUp func(ctx context.Context, l link, back bool) (*thing, error)

// lookUpHooks has a lookUp, and a function that is called with the next links before the lookUp.
type lookUpHooks struct {
	before func(ctx context.Context, all []link, back bool) error
	look   lookUp
}

// walk goes from a thing back along its causes, and ahead along its effects.
type walk struct {
	lookUpHooks
	mayRead func(*thing) bool

	graph api.Graph
	has   map[string]bool
	edges map[api.GraphEdge]bool

	hidden, left, far map[string]bool // ids of nodes that are left out: not readable for the caller, too many, too far
}

// step is a thing from which the walk continues.
type step struct {
	thing *thing
	depth int
}

// walkFrom returns the whole graph around a subject.
func walkFrom(ctx context.Context, subject *thing, find lookUpHooks, mayRead func(*thing) bool) (api.Graph, error) {
	w := &walk{lookUpHooks: find, mayRead: mayRead, has: map[string]bool{}, edges: map[api.GraphEdge]bool{},
		hidden: map[string]bool{}, left: map[string]bool{}, far: map[string]bool{}}
	w.graph = api.Graph{Subject: subject.node.ID, Edges: []api.GraphEdge{}}
	w.add(subject)
	err := w.walkSide(ctx, subject, true, mostCauses)
	if err == nil {
		err = w.walkSide(ctx, subject, false, mostNodes)
	}
	w.addNotes()
	return w.graph, err
}

// walkSide walks in one direction, nearest things first. If there are too many things, walkSide
// leaves out the far things.
func (w *walk) walkSide(ctx context.Context, subject *thing, back bool, most int) error {
	todo := []*thing{subject}
	for depth := 0; len(todo) > 0; depth++ {
		if err := w.before(ctx, w.linksAhead(todo, depth, back, most), back); err != nil {
			return err
		}
		var next []*thing
		for _, t := range todo {
			for _, l := range w.linksOf(t, back) {
				found, err := w.followLink(ctx, step{t, depth}, l, back, most)
				if err != nil {
					return err
				}
				if found != nil {
					next = append(next, found)
				}
			}
		}
		todo = next
	}
	return nil
}

// linksOf are the links of a thing that are followed.
func (w *walk) linksOf(t *thing, back bool) []link {
	if back {
		return t.causes
	}
	if n := len(t.effects); n > mostEffects {
		w.note(fmt.Sprintf("%d more effects of %s are left out", n-mostEffects, t.node.Title))
		return t.effects[:mostEffects]
	}
	return t.effects
}

// linksAhead returns the links of some things that will probably be looked up.
func (w *walk) linksAhead(todo []*thing, depth int, back bool, most int) (all []link) {
	if depth >= mostSteps {
		return nil
	}
	seen := map[string]bool{}
	for _, t := range todo {
		for _, l := range w.linksOf(t, back) {
			if id := l.to.String(); !w.has[id] && !seen[id] && len(w.graph.Nodes)+len(all) < most {
				seen[id], all = true, append(all, l)
			}
		}
	}
	return all
}

// followLink adds the thing to which a link leads, and returns it if the walk continues from it.
func (w *walk) followLink(ctx context.Context, from step, l link, back bool, most int) (*thing, error) {
	switch id := l.to.String(); {
	case w.has[id]:
		w.connect(from.thing.node.ID, id, l.what, back)
		return nil, nil
	case len(w.graph.Nodes) >= most:
		w.left[id] = true
		return nil, nil
	case from.depth >= mostSteps:
		w.far[id] = true
		return nil, nil
	}
	found, err := w.look(ctx, l, back)
	if err != nil {
		return nil, err
	}
	if found == nil {
		found = unknownThing(l)
	}
	if !found.free && !w.mayRead(found) {
		w.hidden[found.node.ID] = true
		return nil, nil
	}
	known := w.has[found.node.ID] // whether it was added under another name
	w.connect(from.thing.node.ID, found.node.ID, l.what, back)
	if known {
		return nil, nil
	}
	w.add(found)
	if l.leaf {
		return nil, nil
	}
	return found, nil
}

// unknownThing returns a thing of which only the name is known.
func unknownThing(l link) *thing {
	t := newThing(l.to, l.to.String())
	if l.linked != nil {
		t = l.linked
	}
	t.note(fmt.Sprintf("%s is named by another thing, but is itself no longer known", t.node.Title))
	return t
}

func (w *walk) add(t *thing) {
	w.has[t.node.ID] = true
	if len(t.node.Facts) == 0 {
		t.node.Facts = nil
	}
	w.graph.Nodes = append(w.graph.Nodes, t.node)
	for _, text := range t.notes {
		w.note(text)
	}
}

func (w *walk) connect(from, to string, what api.GraphRelation, back bool) {
	if back {
		from, to = to, from
	}
	if e := (api.GraphEdge{From: from, To: to, What: what}); !w.edges[e] {
		w.edges[e] = true
		w.graph.Edges = append(w.graph.Edges, e)
	}
}

func (w *walk) note(text string) {
	if !slices.Contains(w.graph.Notes, text) {
		w.graph.Notes = append(w.graph.Notes, text)
	}
}

// addNotes adds notes about the nodes that are left out.
func (w *walk) addNotes() {
	if n := len(w.hidden); n > 0 {
		w.note(fmt.Sprintf("%s you may not read: left out", things(n, "belongs to a key that", "belong to keys that")))
	}
	if n := len(w.left); n > 0 {
		w.note(fmt.Sprintf("%s: at most %d are shown at once; ask about one that is nearer to what you look for", things(n, "is left out", "or more are left out"), mostNodes))
	}
	if n := len(w.far); n > 0 {
		w.note(fmt.Sprintf("%s more than %d steps away: left out; ask about one that is nearer", things(n, "is", "or more are"), mostSteps))
	}
}

func things(n int, one, several string) string {
	if n == 1 {
		return "one thing " + one
	}
	return fmt.Sprintf("%d things %s", n, several)
}

// Direction says which part of a graph is wanted.
type Direction string

// The directions.
const (
	BothWays    Direction = "both"
	OnlyCauses  Direction = "causes"
	OnlyEffects Direction = "effects"
)

// Directions returns the known directions.
func Directions() []Direction { return []Direction{BothWays, OnlyCauses, OnlyEffects} }

// Nearest returns the nodes of a graph that are reached from its subject in a direction, and at most
// a number of them: those with the fewest steps from the subject. Left is the number of the others.
// An edge is kept if both of its nodes are.
func Nearest(g api.Graph, d Direction, most int) api.Graph {
	reached := map[string]bool{g.Subject: true}
	if d != OnlyEffects {
		reach(&g, true, reached)
	}
	if d != OnlyCauses {
		reach(&g, false, reached)
	}
	kept := g
	kept.Nodes, kept.Edges = nil, []api.GraphEdge{}
	steps := stepsFrom(&g)
	for _, n := range g.Nodes {
		if reached[n.ID] {
			kept.Nodes = append(kept.Nodes, n)
		}
	}
	slices.SortStableFunc(kept.Nodes, func(a, b api.GraphNode) int { return steps[a.ID] - steps[b.ID] })
	if most < len(kept.Nodes) {
		kept.Left = len(kept.Nodes) - most
		kept.Nodes = kept.Nodes[:most]
	}
	has := map[string]bool{}
	for i := range kept.Nodes {
		has[kept.Nodes[i].ID] = true
	}
	for _, e := range g.Edges {
		if has[e.From] && has[e.To] {
			kept.Edges = append(kept.Edges, e)
		}
	}
	return kept
}

// reach adds the nodes that are reached from the subject in one direction.
func reach(g *api.Graph, back bool, reached map[string]bool) {
	seen := map[string]bool{g.Subject: true}
	for todo := []string{g.Subject}; len(todo) > 0; todo = todo[1:] {
		for _, e := range g.Edges {
			from, to := e.From, e.To
			if back {
				from, to = to, from
			}
			if from == todo[0] && !seen[to] {
				seen[to], reached[to] = true, true
				todo = append(todo, to)
			}
		}
	}
}

// stepsFrom returns the number of steps from the subject, in any direction.
func stepsFrom(g *api.Graph) map[string]int {
	steps := map[string]int{g.Subject: 0}
	for todo := []string{g.Subject}; len(todo) > 0; todo = todo[1:] {
		for _, e := range g.Edges {
			for _, pair := range [][2]string{{e.From, e.To}, {e.To, e.From}} {
				if _, known := steps[pair[1]]; pair[0] == todo[0] && !known {
					steps[pair[1]] = steps[todo[0]] + 1
					todo = append(todo, pair[1])
				}
			}
		}
	}
	return steps
}
