package drawing_test

import (
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

// Each edge begins at the right side of its cause and ends at the left side of its effect.
func TestPositions(t *testing.T) {
	t.Parallel()
	g := story()
	l := drawing.Positions(g, func(at time.Time) string { return at.Format(time.RFC3339) })
	if len(l.Nodes) != len(g.Nodes) || len(l.Edges) != len(g.Edges) {
		t.Fatalf("%d nodes and %d edges", len(l.Nodes), len(l.Edges))
	}
	at := map[string]api.PlacedNode{}
	for _, n := range l.Nodes {
		at[n.ID] = n
		if n.X < 0 || n.Y < 0 || n.X+n.Width > l.Width || n.Y+n.Height > l.Height || len(n.Lines) == 0 {
			t.Errorf("%+v is not in the picture of %g by %g", n, l.Width, l.Height)
		}
	}
	for _, e := range l.Edges {
		first, last := e.Points[0], e.Points[len(e.Points)-1]
		from, to := at[e.From], at[e.To]
		if d := first[0] - from.X - from.Width; d > 0.2 || d < -0.2 || len(e.Points)%2 != 0 {
			t.Errorf("%s to %s begins at %v, and the box ends at %g", e.From, e.To, first, from.X+from.Width)
		}
		if d := last[0] - to.X; d > 0.2 || d < -0.2 || last[1] < to.Y || last[1] > to.Y+to.Height {
			t.Errorf("%s to %s ends at %v, and the box is at %g", e.From, e.To, last, to.X)
		}
		if path := drawing.Path(e.Points); !strings.HasPrefix(path, "M") || strings.Count(path, "C") != len(e.Points)/2-1 {
			t.Errorf("%s for %v", path, e.Points)
		}
	}
}

// A node is in an outline once with everything below it, even if two ways lead to it.
func TestOutline(t *testing.T) {
	t.Parallel()
	g := &api.Graph{Subject: "a", Nodes: []api.GraphNode{{ID: "a"}, {ID: "b"}, {ID: "c"}}, Edges: []api.GraphEdge{
		{From: "c", To: "b", What: api.EdgeTold}, {From: "b", To: "a", What: api.EdgeAsked}, {From: "c", To: "a", What: api.EdgeTaught}, {From: "a", To: "c"}, {From: "gone", To: "c"}}}
	all := drawing.Causes(g)
	if len(all) != 2 || all[0].Node.ID != "b" || all[0].Relation != "requested by" || len(all[0].Below) != 1 || all[0].Below[0].Below[1].Node.Title != "gone" {
		t.Errorf("%+v", all)
	}
	if !all[1].Again || len(all[1].Below) != 0 {
		t.Errorf("the second way: %+v", all[1])
	}
	if effects := drawing.Effects(g); len(effects) != 1 || effects[0].Below[0].Node.ID != "b" {
		t.Errorf("%+v", effects)
	}
}
