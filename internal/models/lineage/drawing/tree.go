package drawing

import (
	"bufio"
	"io"
	"strings"

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
