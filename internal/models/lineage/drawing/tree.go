package drawing

import (
	"bufio"
	"io"
	"strings"

	"tidemill.dev/api"
)

// Tree writes a graph for a terminal: its subject, then the causes, then the effects.
func Tree(w io.Writer, g *api.Graph, when When) error {
	t := newTree(w, g, when)
	subject := t.nodes[g.Subject]
	if subject == nil {
		subject = &api.GraphNode{ID: g.Subject}
	}
	t.line(strings.Join(append([]string{plainLine(subject.ID)}, phrases(subject, when)...), " · "))
	t.sentence("  ", subject)
	t.part("because", "no cause is known", g.Subject, true)
	t.part("from it", "no effect is known", g.Subject, false)
	for i, note := range g.Notes {
		if i == 0 {
			t.line("")
		}
		t.line("Note: " + clipText(plainLine(note), longestSentence))
	}
	return t.out.Flush()
}

type tree struct {
	out             *bufio.Writer // keeps its first error
	when            When
	nodes           map[string]*api.GraphNode
	causes, effects map[string][]api.GraphEdge
	shown           map[string]bool // nodes that are written with everything below them
}

func newTree(w io.Writer, g *api.Graph, when When) *tree {
	t := &tree{out: bufio.NewWriter(w), when: when, nodes: map[string]*api.GraphNode{}, causes: map[string][]api.GraphEdge{}, effects: map[string][]api.GraphEdge{}}
	for i := range g.Nodes {
		t.nodes[g.Nodes[i].ID] = &g.Nodes[i]
	}
	for _, e := range g.Edges {
		t.causes[e.To] = append(t.causes[e.To], e)
		t.effects[e.From] = append(t.effects[e.From], e)
	}
	return t
}

func (t *tree) line(text string) {
	_, _ = t.out.WriteString(strings.TrimRight(text, " ") + "\n")
}

func (t *tree) sentence(indent string, n *api.GraphNode) {
	if n.Said != "" {
		t.line(indent + clipText(plainLine(n.Said), longestSentence))
	}
}

func (t *tree) part(head, nothing, subject string, back bool) {
	below := t.effects[subject]
	if back {
		below = t.causes[subject]
	}
	if len(below) == 0 {
		t.line(head + ": " + nothing)
		return
	}
	t.line(head)
	t.shown = map[string]bool{subject: true}
	t.branches("", below, back)
}

func (t *tree) branches(indent string, edges []api.GraphEdge, back bool) {
	for i, e := range edges {
		fork, bar := "├ ", "│ "
		if i == len(edges)-1 {
			fork, bar = "└ ", "  "
		}
		t.branch(indent+fork, indent+bar, e, back)
	}
}

// branch writes a node and everything below it. It writes no node twice, because one event may lead
// to a node in two ways.
func (t *tree) branch(fork, indent string, e api.GraphEdge, back bool) {
	id, relation, below := e.To, effectIs(e.What), t.effects
	if back {
		id, relation, below = e.From, causeIs(e.What), t.causes
	}
	n := t.nodes[id]
	if n == nil {
		n = &api.GraphNode{ID: id, Title: id}
	}
	text := fork + relation + " " + plainLine(n.Title)
	if t.shown[id] {
		t.line(text + " (see above)")
		return
	}
	t.shown[id] = true
	t.line(strings.Join(append([]string{text}, phrases(n, t.when)...), " · "))
	next := below[id]
	bar := indent
	if len(next) > 0 {
		bar += "│ "
	} else {
		bar += "  "
	}
	t.sentence(bar, n)
	t.branches(indent, next, back)
}
