package drawing

import (
	"bufio"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev/api"
)

// Tree writes a graph for a terminal: its subject, then the causes, then the effects.
func Tree(w io.Writer, g *api.Graph, when When) error {
	t := &tree{out: bufio.NewWriter(w), when: when}
	subject := &api.GraphNode{ID: g.Subject}
	for i := range g.Nodes {
		if g.Nodes[i].ID == g.Subject {
			subject = &g.Nodes[i]
		}
	}
	t.line(strings.Join(append([]string{plainLine(subject.ID)}, phrases(subject, when)...), " · "))
	t.sentence("  ", subject)
	t.part("because", "no cause is known", Causes(g))
	t.part("from it", "no effect is known", Effects(g))
	for i, note := range g.Notes {
		if i == 0 {
			t.line("")
		}
		t.line("Note: " + clipText(plainLine(note), longestSentence))
	}
	return t.out.Flush()
}

type tree struct {
	out  *bufio.Writer // keeps its first error
	when When
}

func (t *tree) line(text string) {
	_, _ = t.out.WriteString(strings.TrimRight(text, " ") + "\n")
}

func (t *tree) sentence(indent string, n *api.GraphNode) {
	if n.Said != "" {
		t.line(indent + clipText(plainLine(n.Said), longestSentence))
	}
}

func (t *tree) part(head, nothing string, below []Branch) {
	if len(below) == 0 {
		t.line(head + ": " + nothing)
		return
	}
	t.line(head)
	t.branches("", below)
}

func (t *tree) branches(indent string, all []Branch) {
	for i := range all {
		fork, bar := "├ ", "│ "
		if i == len(all)-1 {
			fork, bar = "└ ", "  "
		}
		t.branch(indent+fork, indent+bar, &all[i])
	}
}

func (t *tree) branch(fork, indent string, b *Branch) {
	text := fork + b.Relation + " " + plainLine(b.Node.Title)
	if b.Again {
		t.line(text + " (see above)")
		return
	}
	t.line(strings.Join(append([]string{text}, phrases(b.Node, t.when)...), " · "))
	bar := indent
	if len(b.Below) > 0 {
		bar += "│ "
	} else {
		bar += "  "
	}
	t.sentence(bar, b.Node)
	t.branches(indent, b.Below)
}

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

// When formats a time for its reader.
type When func(time.Time) string

// plainLine returns a text on one line, without characters that control a terminal or that XML cannot
// hold.
func plainLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		}
		return r
	}, strings.ToValidUTF8(text, "·"))
}

// clipText cuts a text that is too long for a drawing.
func clipText(text string, letters int) string {
	if utf8.RuneCountInString(text) <= letters {
		return text
	}
	return string([]rune(text)[:letters-1]) + "…"
}

const (
	longestPhrase   = 120
	longestSentence = 400
)

// phrases returns the texts about a node, without its name.
func phrases(n *api.GraphNode, when When) []string {
	var all []string
	if state := stateOf(n, when); state != "" {
		all = append(all, state)
	}
	for _, text := range n.Says {
		all = append(all, clipText(plainLine(text), longestPhrase))
	}
	return all
}

// stateOf returns a state with its time; a lasting state is shown with "since".
func stateOf(n *api.GraphNode, when When) string {
	state := plainLine(n.State)
	switch {
	case n.Time == nil:
		return state
	case state == "":
		return when(*n.Time)
	case lasts(n.State):
		return state + " since " + when(*n.Time)
	case n.State == "was champion":
		return state + " from " + when(*n.Time)
	}
	return state + " at " + when(*n.Time)
}

func lasts(state string) bool {
	switch state {
	case "champion", "pinned champion", "awaiting", "waiting", "running", "retrying", "committing":
		return true
	}
	return false
}

// causeIs returns the text between an effect and its cause.
func causeIs(r api.GraphRelation) string {
	switch r {
	case api.EdgeAsked:
		return "requested by"
	case api.EdgeTaught:
		return "trained on"
	case api.EdgeMade:
		return "made by"
	case api.EdgeCode:
		return "ran"
	case api.EdgeRan:
		return "on"
	case api.EdgeTold:
		return "describes"
	case api.EdgeCaused:
		return "caused by"
	case api.EdgeFollowed:
		return "follows"
	case api.EdgeRetried:
		return "a retry of"
	case api.EdgeBeside:
		return "also measured"
	case api.EdgeJudged:
		return "judged against"
	case api.EdgeScored:
		return "scored by"
	case api.EdgeReplaced:
		return "in place of"
	}
	return "because of"
}

// effectIs returns the text between a cause and its effect.
func effectIs(r api.GraphRelation) string {
	switch r {
	case api.EdgeTaught:
		return "used by"
	case api.EdgeTold:
		return "described by"
	case api.EdgeFollowed:
		return "followed by"
	case api.EdgeRetried:
		return "retried by"
	case api.EdgeBeside:
		return "also measured by"
	case api.EdgeJudged:
		return "the bar for"
	case api.EdgeReplaced:
		return "replaced by"
	}
	return plainLine(string(r))
}
