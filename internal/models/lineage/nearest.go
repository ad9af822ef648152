package lineage

import (
	"slices"

	"tidemill.dev/api"
)

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
