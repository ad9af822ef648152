package lineage_test

import (
	"slices"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage"
)

// Both directions leave out a node that is neither a cause nor an effect: another effect of a cause.
func TestNearest(t *testing.T) {
	t.Parallel()
	g := api.Graph{Subject: "run", Notes: []string{"n"}}
	for _, id := range strings.Fields("run far event commit model scored sibling") {
		g.Nodes = append(g.Nodes, api.GraphNode{ID: id})
	}
	for _, e := range []string{"far commit", "commit event", "event run", "commit run", "run model", "model scored", "event sibling", "model run"} {
		from, to, _ := strings.Cut(e, " ")
		g.Edges = append(g.Edges, api.GraphEdge{From: from, To: to})
	}
	for _, c := range []struct {
		direction lineage.Direction
		most      int
		want      string
		left      int
	}{
		{lineage.OnlyCauses, 10, "run event commit model far", 0},
		{lineage.OnlyEffects, 10, "run model scored", 0},
		{lineage.BothWays, 10, "run event commit model far scored", 0},
		{lineage.BothWays, 3, "run event commit", 3},
		{lineage.OnlyEffects, 1, "run", 2},
	} {
		got := lineage.Nearest(g, c.direction, c.most)
		var ids []string
		for _, n := range got.Nodes {
			ids = append(ids, n.ID)
		}
		if strings.Join(ids, " ") != c.want || got.Left != c.left || len(got.Notes) != 1 {
			t.Errorf("%s %d: %v, %d left; want %s, %d", c.direction, c.most, ids, got.Left, c.want, c.left)
		}
		for _, e := range got.Edges {
			if !slices.Contains(ids, e.From) || !slices.Contains(ids, e.To) {
				t.Errorf("%s %d: the edge %v leads out of the graph", c.direction, c.most, e)
			}
		}
	}
	if len(g.Nodes) != 7 || len(g.Edges) != 8 {
		t.Error("the graph itself was changed")
	}
}
