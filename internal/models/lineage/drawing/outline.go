package drawing

import "tidemill.dev/api"

// Branch is a node in the outline of a graph, with everything below it.
type Branch struct {
	Relation string // relation to the node above, in words
	Node     *api.GraphNode
	Again    bool // whether the node is above already, with everything below it
	Below    []Branch
}

// Causes returns the causes of the graph's subject, with their causes below them.
func Causes(g *api.Graph) []Branch { return outline(g, true) }

// Effects returns the effects of the graph's subject, with their effects below them.
func Effects(g *api.Graph) []Branch { return outline(g, false) }

// outliner makes an outline in one direction. It has no node twice, because one event may lead to a
// node in two ways.
type outliner struct {
	back  bool
	nodes map[string]*api.GraphNode
	next  map[string][]api.GraphEdge
	shown map[string]bool
}

func outline(g *api.Graph, back bool) []Branch {
	o := &outliner{back: back, nodes: map[string]*api.GraphNode{}, next: map[string][]api.GraphEdge{}, shown: map[string]bool{g.Subject: true}}
	for i := range g.Nodes {
		o.nodes[g.Nodes[i].ID] = &g.Nodes[i]
	}
	for _, e := range g.Edges {
		at := e.From
		if back {
			at = e.To
		}
		o.next[at] = append(o.next[at], e)
	}
	return o.below(g.Subject)
}

func (o *outliner) below(id string) (all []Branch) {
	for _, e := range o.next[id] {
		all = append(all, o.branch(e))
	}
	return all
}

func (o *outliner) branch(e api.GraphEdge) Branch {
	id, relation := e.To, effectIs(e.What)
	if o.back {
		id, relation = e.From, causeIs(e.What)
	}
	b := Branch{Relation: relation, Node: o.nodes[id], Again: o.shown[id]}
	if b.Node == nil {
		b.Node = &api.GraphNode{ID: id, Title: id}
	}
	if !b.Again {
		o.shown[id] = true
		b.Below = o.below(id)
	}
	return b
}
