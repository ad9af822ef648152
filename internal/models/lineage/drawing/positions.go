package drawing

import (
	"fmt"
	"math"
	"strings"

	"tidemill.dev/api"
)

// Positions places a graph, with causes to the left of their effects. The boxes have room for their
// lines in a font whose letters are 7.3 wide. An edge that would close a cycle is left out.
func Positions(g *api.Graph, when When) *api.GraphLayout {
	texts := make([][]string, len(g.Nodes))
	for i := range g.Nodes {
		texts[i] = boxText(&g.Nodes[i], when)
	}
	l := assignLayers(g, func(i int) (float64, float64) { return sizeOf(texts[i]) })
	l.arrange()
	width, height := l.place()
	p := &api.GraphLayout{Width: tenth(width), Height: tenth(height), Nodes: []api.PlacedNode{}, Edges: []api.PlacedEdge{}}
	for i := range l.ways {
		p.Edges = append(p.Edges, placedEdge(&l.ways[i]))
	}
	for _, layer := range l.layers {
		for _, s := range layer {
			if s.node >= 0 {
				p.Nodes = append(p.Nodes, api.PlacedNode{ID: g.Nodes[s.node].ID, X: tenth(s.x - s.width/2), Y: tenth(s.y - s.height/2),
					Width: tenth(s.width), Height: tenth(s.height), Lines: texts[s.node]})
			}
		}
	}
	return p
}

func tenth(f float64) float64 { return math.Round(10*f) / 10 }

// placedEdge makes the points of an edge. It is straight through each layer, so that it crosses no
// box, and a curve between two layers. So points 0 and 1 are joined by a line, 1 and 2 by a curve, 2
// and 3 by a line, and so on.
func placedEdge(w *route) api.PlacedEdge {
	e := api.PlacedEdge{From: w.edge.From, To: w.edge.To, What: w.edge.What}
	add := func(x, y float64) { e.Points = append(e.Points, [2]float64{tenth(x), tenth(y)}) }
	first, last := w.spots[0], w.spots[len(w.spots)-1]
	add(first.x+first.width/2, first.y)
	add(first.to, first.y)
	for _, s := range w.spots[1 : len(w.spots)-1] {
		add(s.from, s.y)
		add(s.to, s.y)
	}
	add(last.from, last.y)
	add(last.x-last.width/2, last.y)
	return e
}

// Path returns the points of an edge as the attribute d of a path in SVG.
func Path(points [][2]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M%.1f %.1f", points[0][0], points[0][1])
	for i := 1; i < len(points); i++ {
		from, to := points[i-1], points[i]
		if i%2 == 1 {
			fmt.Fprintf(&b, " H%.1f", to[0])
			continue
		}
		bend := (to[0] - from[0]) / 2
		fmt.Fprintf(&b, " C%.1f %.1f %.1f %.1f %.1f %.1f", from[0]+bend, from[1], to[0]-bend, to[1], to[0], to[1])
	}
	return b.String()
}

// Label returns the place of an edge's text: the middle of its last curve, because edges that meet at
// a box are apart there.
func Label(points [][2]float64) (x, y float64) {
	from, to := points[len(points)-3], points[len(points)-2]
	return (from[0] + to[0]) / 2, (from[1]+to[1])/2 - 3
}
