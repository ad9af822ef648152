package drawing

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/api"
)

// DOT writes a graph in the language of Graphviz.
func DOT(w io.Writer, g *api.Graph, when When) error {
	out := bufio.NewWriter(w) // keeps its first error
	fmt.Fprint(out, "digraph why {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\", fontsize=11];\n  edge [fontname=\"Helvetica\", fontsize=9];\n")
	for i := range g.Nodes {
		n := &g.Nodes[i]
		width := 1
		if n.ID == g.Subject {
			width = 3
		}
		fmt.Fprintf(out, "  %s [label=%s, tooltip=%s, fillcolor=%q, penwidth=%d];\n", quoted(n.ID), quoted(boxText(n, when)...), quoted(n.ID), fillOf(n), width)
	}
	for _, e := range g.Edges {
		fmt.Fprintf(out, "  %s -> %s [label=%s];\n", quoted(e.From), quoted(e.To), quoted(string(e.What)))
	}
	for _, note := range g.Notes {
		fmt.Fprintf(out, "  // %s\n", clipText(plainLine(note), longestSentence))
	}
	fmt.Fprint(out, "}\n")
	return out.Flush()
}

// quoted returns lines as one string of DOT. Graphviz reads a backslash in a label as an escape;
// only the line breaks between lines are meant as line breaks.
func quoted(lines ...string) string {
	safe := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i := range lines {
		lines[i] = safe.Replace(plainLine(lines[i]))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}

func fillOf(n *api.GraphNode) string {
	switch {
	case n.State == "failed", n.State == "refused":
		return "#fbdcd7"
	case n.Kind == api.KindModel:
		return "#d9f0d9"
	case n.Kind == api.KindRun:
		return "#dce9fb"
	case n.Kind == api.KindCommit:
		return "#fbf0d0"
	case n.Kind == api.KindEvent:
		return "#ecdff7"
	}
	return "#eeeeee"
}

const (
	boxLines   = 5
	boxLetters = 42
)

// boxText returns the lines in a node's box.
func boxText(n *api.GraphNode, when When) []string {
	lines := []string{clipText(plainLine(n.Title), boxLetters)}
	for _, text := range phrases(n, when) {
		lines = append(lines, clipText(text, boxLetters))
	}
	if n.Said != "" {
		lines = append(lines[:min(len(lines), boxLines-1)], clipText(plainLine(n.Said), boxLetters))
	}
	return lines[:min(len(lines), boxLines)]
}
