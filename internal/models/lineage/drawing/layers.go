package drawing

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tidemill.dev/api"
)

// spot is a place in a layer: of a node, or of an edge that passes through the layer.
type spot struct {
	node   int // index of the node; -1 for an edge
	layer  int
	width  float64
	height float64
	x, y   float64 // coordinates of its middle
	from   float64 // left end of its layer
	to     float64 // right end of its layer
	left   []*spot // causes in the previous layer
	right  []*spot
	order  float64
}

// route is an edge through the layers: its spots, causes first.
type route struct {
	edge  api.GraphEdge
	spots []*spot
}

// layout is a graph in layers: each node is in a layer after all its causes, and every edge
// connects neighbouring layers.
type layout struct {
	layers [][]*spot
	gap    float64 // gap between layers
	ways   []route
}

// assignLayers assigns nodes to layers. It leaves out an edge that names no node, or that closes a
// cycle, which causes cannot have.
func assignLayers(g *api.Graph, size func(int) (width, height float64)) *layout {
	index := map[string]int{}
	for i := range g.Nodes {
		index[g.Nodes[i].ID] = i
	}
	edges := acyclicEdges(g, index)
	depth := layerDepths(len(g.Nodes), edges)
	l := &layout{gap: gapAcross}
	if !slices.ContainsFunc(g.Edges, func(e api.GraphEdge) bool { return e.What != "" }) {
		l.gap = gapBare
	}
	spots := make([]*spot, len(g.Nodes))
	for i := range g.Nodes {
		w, h := size(i)
		spots[i] = l.add(&spot{node: i, layer: depth[i], width: w, height: h})
	}
	for _, e := range edges {
		l.lead(e, spots[e.from], spots[e.to])
	}
	return l
}

func (l *layout) add(s *spot) *spot {
	for len(l.layers) <= s.layer {
		l.layers = append(l.layers, nil)
	}
	s.order = float64(len(l.layers[s.layer]))
	l.layers[s.layer] = append(l.layers[s.layer], s)
	return s
}

const passage = 12 // height of an edge that passes through a layer

func (l *layout) lead(e indexed, from, to *spot) {
	w := route{edge: e.GraphEdge, spots: []*spot{from}}
	last := from
	for layer := from.layer + 1; layer <= to.layer; layer++ {
		next := to
		if layer < to.layer {
			next = l.add(&spot{node: -1, layer: layer, height: passage})
		}
		last.right, next.left = append(last.right, next), append(next.left, last)
		w.spots = append(w.spots, next)
		last = next
	}
	l.ways = append(l.ways, w)
}

type indexed struct {
	api.GraphEdge
	from, to int
}

// acyclicEdges returns the edges that close no cycle.
func acyclicEdges(g *api.Graph, index map[string]int) (kept []indexed) {
	next := make([][]int, len(g.Nodes))
	for _, e := range g.Edges {
		from, known := index[e.From]
		to, too := index[e.To]
		if !known || !too || reaches(next, to, from) {
			continue
		}
		next[from] = append(next[from], to)
		kept = append(kept, indexed{e, from, to})
	}
	return kept
}

func reaches(next [][]int, from, to int) bool {
	seen := map[int]bool{from: true}
	for todo := []int{from}; len(todo) > 0; todo = todo[1:] {
		if todo[0] == to {
			return true
		}
		for _, n := range next[todo[0]] {
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return false
}

// layerDepths returns the layers: the longest path to each node. A node without causes is right
// before the first of its effects.
func layerDepths(n int, edges []indexed) []int {
	depth := make([]int, n)
	for moved := true; moved; {
		moved = false
		for _, e := range edges {
			if depth[e.to] <= depth[e.from] {
				depth[e.to], moved = depth[e.from]+1, true
			}
		}
	}
	nearest, caused := slices.Repeat([]int{len(edges)}, n), make([]bool, n)
	for _, e := range edges {
		caused[e.to] = true
		nearest[e.from] = min(nearest[e.from], depth[e.to]-1)
	}
	for i := range depth {
		if !caused[i] && nearest[i] < len(edges) {
			depth[i] = nearest[i]
		}
	}
	return depth
}

const sweeps = 12

// arrange orders each layer by the places of its neighbours, in both directions, so that few edges
// cross.
func (l *layout) arrange() {
	for i := range sweeps {
		for j := range l.layers {
			layer, near := l.layers[j], func(s *spot) []*spot { return s.left }
			if i%2 == 1 {
				layer, near = l.layers[len(l.layers)-1-j], func(s *spot) []*spot { return s.right }
			}
			pull := map[*spot]float64{}
			for _, s := range layer {
				pull[s] = mean(near(s), s.order, func(s *spot) float64 { return s.order })
			}
			slices.SortStableFunc(layer, func(a, b *spot) int { return cmp.Compare(pull[a], pull[b]) })
			for k, s := range layer {
				s.order = float64(k) - float64(len(layer)-1)/2 // the middle of each layer is 0, whatever its length
			}
		}
	}
}

func mean(of []*spot, otherwise float64, value func(*spot) float64) float64 {
	if len(of) == 0 {
		return otherwise
	}
	sum := 0.0
	for _, s := range of {
		sum += value(s)
	}
	return sum / float64(len(of))
}

const (
	gapAcross = 130 // gap between layers, with room for the text of an edge
	gapBare   = 60  // gap between layers if no edge has a text
	gapDown   = 18
	margin    = 24
)

// place sets the x and y of every spot, and returns the size of the whole.
func (l *layout) place() (width, height float64) {
	x := float64(margin)
	for _, layer := range l.layers {
		widest := 0.0
		for _, s := range layer {
			widest = max(widest, s.width)
		}
		y := 0.0
		for _, s := range layer {
			s.x, s.y, s.from, s.to = x+widest/2, y+s.height/2, x, x+widest
			y += s.height + gapDown
		}
		x += widest + l.gap
	}
	for i := range sweeps {
		for j := range l.layers {
			if i%2 == 0 {
				placeSpots(l.layers[j], func(s *spot) []*spot { return s.left })
			} else {
				placeSpots(l.layers[len(l.layers)-1-j], func(s *spot) []*spot { return s.right })
			}
		}
	}
	return x - l.gap + margin, l.liftToMargin()
}

// placeSpots moves the spots of a layer towards their neighbours, in order and without overlap.
func placeSpots(layer []*spot, near func(*spot) []*spot) {
	off, bottom := 0.0, 0.0
	for i, s := range layer {
		want := mean(near(s), s.y, func(s *spot) float64 { return s.y })
		s.y = want
		if i > 0 {
			s.y = max(want, bottom+gapDown+s.height/2)
		}
		bottom = s.y + s.height/2
		off += s.y - want
	}
	for _, s := range layer {
		s.y -= off / float64(len(layer)) // spots only gave way downwards, so all move up by the mean
	}
}

// liftToMargin moves everything below the upper margin, and returns the height of the whole.
func (l *layout) liftToMargin() float64 {
	top, bottom := 0.0, 0.0
	for i, s := range slices.Concat(l.layers...) {
		if up, down := s.y-s.height/2, s.y+s.height/2; i == 0 {
			top, bottom = up, down
		} else {
			top, bottom = min(top, up), max(bottom, down)
		}
	}
	for _, s := range slices.Concat(l.layers...) {
		s.y += margin - top
	}
	return bottom - top + 2*margin
}

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
