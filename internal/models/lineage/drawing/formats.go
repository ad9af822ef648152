package drawing

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

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

const (
	letterWide = 7.3
	lineHigh   = 17
	padding    = 11
)

// style has dark colours too. It uses the fonts of the reader's machine, so that nothing is
// fetched.
const style = `
svg{background:#fff}
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1b1b1b}
.what{font-size:10.5px;fill:#555;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}
.title{font-weight:600}
.note{fill:#555}
rect{stroke:#8a8a8a;stroke-width:1;fill:#eee}
.subject rect{stroke:#1b1b1b;stroke-width:2.5}
.run rect{fill:#dce9fb}.model rect{fill:#d9f0d9}.commit rect{fill:#fbf0d0}.event rect{fill:#ecdff7}.bad rect{fill:#fbdcd7}
path{fill:none;stroke:#777;stroke-width:1.3}
marker path{fill:#777;stroke:none}
@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e8e8e8}.what,.note{fill:#aaa}.what{stroke:#16181c}rect{stroke:#777;fill:#2a2d33}.subject rect{stroke:#fff}
.run rect{fill:#1d3352}.model rect{fill:#1e4023}.commit rect{fill:#4a3d12}.event rect{fill:#3a2a4d}.bad rect{fill:#552620}path{stroke:#999}marker path{fill:#999}}
`

// SVG writes a graph as a picture, with causes to the left of their effects.
func SVG(w io.Writer, g *api.Graph, when When) error {
	l := Positions(g, when)
	width, height := l.Width, l.Height
	for _, note := range g.Notes {
		width = max(width, 2*margin+textWidth(shownNote(note)))
		height += lineHigh
	}
	p := &picture{out: bufio.NewWriter(w)}
	p.head(g, width, height)
	for i := range l.Edges {
		p.drawEdge(&l.Edges[i])
	}
	nodes := map[string]*api.GraphNode{}
	for i := range g.Nodes {
		nodes[g.Nodes[i].ID] = &g.Nodes[i]
	}
	for i := range l.Nodes {
		p.box(nodes[l.Nodes[i].ID], &l.Nodes[i], l.Nodes[i].ID == g.Subject)
	}
	for i, note := range g.Notes {
		p.printf(`<text class="note" x="%d" y="%.0f">%s</text>`+"\n", margin, l.Height+float64(i)*lineHigh, escaped(shownNote(note)))
	}
	p.printf("</svg>\n")
	return p.out.Flush()
}

func shownNote(note string) string { return clipText(plainLine(note), 160) }

// sizeOf returns the size of a box.
func sizeOf(lines []string) (width, height float64) {
	for _, line := range lines {
		width = max(width, textWidth(line))
	}
	return width + 2*padding, float64(len(lines))*lineHigh + padding
}

// textWidth returns the width of a text in the style's font. East Asian letters and pictures are two
// letters wide.
func textWidth(text string) float64 {
	const wideFrom = 0x1100
	places := utf8.RuneCountInString(text)
	for _, r := range text {
		if r >= wideFrom && (r < 0x2000 || r > 0x2BFF) {
			places++
		}
	}
	return float64(places) * letterWide
}

type picture struct{ out *bufio.Writer } // writer that keeps its first error

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

func (p *picture) head(g *api.Graph, width, height float64) {
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img">`+"\n", width, height, width, height)
	p.printf("<title>why %s</title>\n<style>%s</style>\n", escaped(g.Subject), style)
	p.printf(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>` + "\n")
}

func (p *picture) drawEdge(e *api.PlacedEdge) {
	p.printf(`<path marker-end="url(#tip)" d="%s"/>`+"\n", Path(e.Points))
	x, y := Label(e.Points)
	p.printf(`<text class="what" x="%.1f" y="%.1f">%s</text>`+"\n", x, y, escaped(plainLine(string(e.What))))
}

func (p *picture) box(n *api.GraphNode, at *api.PlacedNode, subject bool) {
	p.printf(`<g class="%s"><title>%s</title><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="6"/>`, classOf(n, subject), escaped(n.ID), at.X, at.Y, at.Width, at.Height)
	for i, line := range at.Lines {
		class := ""
		if i == 0 {
			class = ` class="title"`
		}
		p.printf(`<text%s x="%.1f" y="%.1f">%s</text>`, class, at.X+padding, at.Y+padding/2+float64(i+1)*lineHigh-4, escaped(line))
	}
	p.printf("</g>\n")
}

// classOf returns the class that sets a node's colours. It copies no text of the node unchecked.
func classOf(n *api.GraphNode, subject bool) string {
	class := "other"
	switch n.Kind {
	case api.KindRun, api.KindModel, api.KindCommit, api.KindEvent:
		class = string(n.Kind)
	}
	if n.State == "failed" || n.State == "refused" {
		class += " bad"
	}
	if subject {
		class += " subject"
	}
	return class
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(plainLine(text))) // a Builder returns no error
	return b.String()
}
