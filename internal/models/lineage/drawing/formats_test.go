package drawing_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

// All text outside quotes is ours, whatever the graph contains.
func TestDOTHoldsWhatIsHostile(t *testing.T) {
	t.Parallel()
	g := hostile()
	outside, quoted := lexStrings(t, drawn(t, drawing.DOT, g))
	node := `  Q \[label=Q, tooltip=Q, fillcolor=Q, penwidth=[13]\];\n`
	want := regexp.MustCompile(`^digraph why \{\n  rankdir=LR;\n  node \[shape=box, style=Q, fontname=Q, fontsize=11\];\n  edge \[fontname=Q, fontsize=9\];\n(` +
		node + `){3}(  Q -> Q \[label=Q\];\n){4}  // [^\n]*\n\}\n$`)
	if !want.MatchString(outside) {
		t.Errorf("outside of quotes it is\n%s", outside)
	}
	for _, text := range quoted {
		if rest := regexp.MustCompile(`\\[\\"n]`).ReplaceAllString(text, ""); strings.Contains(rest, `\`) {
			t.Errorf("Graphviz reads a backslash in %s", text)
		}
	}
}

// lexStrings separates the strings of DOT from the rest, as Graphviz does: a quote after a backslash
// ends no string, and a comment begins none.
func lexStrings(t *testing.T, text string) (outside string, quoted []string) {
	t.Helper()
	var out, in strings.Builder
	open, comment := false, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case open && c == '\\' && i+1 < len(text):
			in.WriteString(text[i : i+2])
			i++
		case open && c == '"':
			quoted = append(quoted, in.String())
			in.Reset()
			open = false
			out.WriteByte('Q')
		case open:
			in.WriteByte(c)
		case !comment && c == '"':
			open = true
		default:
			comment = comment && c != '\n' || strings.HasPrefix(text[i:], "//")
			out.WriteByte(c)
		}
	}
	if open {
		t.Fatalf("a string does not end:\n%s", text)
	}
	return out.String(), quoted
}

type box struct{ x, y, width, height float64 }

func (b box) meets(o box) bool {
	return b.x < o.x+o.width && o.x < b.x+b.width && b.y < o.y+o.height && o.y < b.y+b.height
}

// seen is an SVG as a browser reads it. Only harmless elements and attributes are allowed.
type seen struct {
	whole box
	boxes map[string]box // boxes by the title of their group
	ways  int
	texts []string
}

func see(t *testing.T, svg string) seen {
	t.Helper()
	harmless := map[string][]string{
		"svg": {"xmlns", "width", "height", "viewBox", "role"}, "title": nil, "style": nil, "defs": nil,
		"marker": {"id", "viewBox", "refX", "refY", "markerWidth", "markerHeight", "orient"}, "path": {"d", "marker-end"},
		"text": {"class", "x", "y"}, "g": {"class"}, "rect": {"x", "y", "width", "height", "rx"},
	}
	s := seen{boxes: map[string]box{}}
	title, inside := "", []string{}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return s
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch e := token.(type) {
		case xml.StartElement:
			allowed, known := harmless[e.Name.Local]
			if !known {
				t.Fatalf("there is an element %s in\n%s", e.Name.Local, svg)
			}
			at := map[string]float64{}
			for _, a := range e.Attr {
				if !slices.Contains(allowed, a.Name.Local) || strings.Contains(a.Value, "javascript") {
					t.Fatalf("%s has an attribute %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
				at[a.Name.Local], _ = strconv.ParseFloat(a.Value, 64)
			}
			inside = append(inside, e.Name.Local)
			b := box{at["x"], at["y"], at["width"], at["height"]}
			switch {
			case e.Name.Local == "svg":
				s.whole = b
			case e.Name.Local == "rect":
				s.boxes[title] = b
			case e.Name.Local == "path" && !slices.Contains(inside, "defs"):
				s.ways++
			}
		case xml.EndElement:
			inside = inside[:len(inside)-1]
		case xml.CharData:
			switch {
			case len(inside) == 0:
			case inside[len(inside)-1] == "title":
				title = string(e)
			case inside[len(inside)-1] == "text":
				s.texts = append(s.texts, string(e))
			}
		}
	}
}

func TestABrowserObeysNothing(t *testing.T) {
	t.Parallel()
	s := see(t, drawn(t, drawing.SVG, hostile()))
	if len(s.boxes) != 3 || s.ways != 2 {
		t.Errorf("%d boxes and %d ways are drawn, for 3 nodes in a circle", len(s.boxes), s.ways)
	}
	if !slices.ContainsFunc(s.texts, func(text string) bool { return strings.HasPrefix(text, `a"]; evil [label="\" \N`) }) {
		t.Errorf("what is said is lost: %q", s.texts)
	}
}

// In every graph no box overlaps another or is outside the picture, causes are to the left, and
// every edge is drawn.
func TestEveryGraphCanBeRead(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := &api.Graph{Subject: "n0"}
		n := 1 + r.IntN(200)
		for i := range n {
			g.Nodes = append(g.Nodes, api.GraphNode{ID: fmt.Sprint("n", i), Kind: api.KindRun, Title: strings.Repeat("漢x", r.IntN(40)), Says: make([]string, r.IntN(9))})
		}
		for i := 1; i < n; i++ {
			for range 1 + r.IntN(3) {
				g.Edges = append(g.Edges, api.GraphEdge{From: fmt.Sprint("n", r.IntN(i)), To: fmt.Sprint("n", i), What: api.EdgeMade})
			}
		}
		s := see(t, drawn(t, drawing.SVG, g))
		if len(s.boxes) != n || s.ways != len(g.Edges) {
			t.Fatalf("seed %d: %d boxes and %d ways for %d nodes and %d edges", seed, len(s.boxes), s.ways, n, len(g.Edges))
		}
		for a, one := range s.boxes {
			if one.x < 0 || one.y < 0 || one.x+one.width > s.whole.width || one.y+one.height > s.whole.height {
				t.Errorf("seed %d: %s is outside", seed, a)
			}
			for b, other := range s.boxes {
				if a < b && one.meets(other) {
					t.Errorf("seed %d: %s lies on %s", seed, a, b)
				}
			}
		}
		for _, e := range g.Edges {
			if from, to := s.boxes[e.From], s.boxes[e.To]; from.x+from.width >= to.x {
				t.Errorf("seed %d: %s is not to the left of %s", seed, e.From, e.To)
			}
		}
	}
}
