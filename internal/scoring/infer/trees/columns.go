package trees

import (
	"encoding/binary"
	"math"
	"slices"
)

// A row is turned into columns of int32 before it is walked. There is one for each feature, with
// the same order as the feature's numbers, so that one comparison of integers serves all modes
// and types. NaN is greater or less than all other numbers; a feature has two columns if nodes
// disagree about that. A question for equality has a separate column: 0 for yes, 1 for no.

// column is one of them.
type column[T Number] struct {
	feature int32
	nan     int32 // of NaN
	ranks   []T   // sorted thresholds of a feature in float64; nil for float32
	set     []T   // sorted numbers that mean yes; nil for a column of a feature
}

// never is the only number of column 0, and that of NaN where it goes left. always is that of NaN where it goes right.
const (
	never  = math.MinInt32
	always = math.MaxInt32
)

// keyOf returns an integer with the order of the floats. Both zeros are 0.
func keyOf(v float32) int32 {
	bits := int32(math.Float32bits(v))
	if bits < 0 {
		return math.MinInt32 - bits
	}
	return bits
}

// rankOf returns an integer with the order of the numbers, as far as the sorted thresholds can
// tell: odd for a threshold, even between two.
func rankOf[T Number](ranks []T, v T) int32 {
	at, found := slices.BinarySearch(ranks, v)
	if found {
		return int32(2*at + 1)
	}
	return int32(2 * at)
}

// of returns the column's number for a row.
func (c *column[T]) of(row []T) int32 {
	v := row[c.feature]
	switch {
	case v != v:
		return c.nan
	case c.set != nil:
		if _, found := slices.BinarySearch(c.set, v); found {
			return 0
		}
		return 1
	case c.ranks != nil:
		return rankOf(c.ranks, v)
	}
	return keyOf(float32(v))
}

// gathered collects the columns while a forest is packed.
type gathered[T Number] struct {
	columns []column[T]
	known   map[asked]uint32
	ranks   map[int32][]T // of each feature; nil for float32
}

// asked identifies a column.
type asked struct {
	feature, nan int32
	set          string
}

// question is how a packed node asks what a node of the file asks.
type question struct {
	key    int32
	column uint32
	swap   bool // the first child is for no
}

func newGathered[T Number](f *Forest) *gathered[T] {
	g := &gathered[T]{columns: make([]column[T], 1), known: map[asked]uint32{}}
	if _, double := any(T(0)).(float64); !double {
		return g
	}
	g.ranks = map[int32][]T{}
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Mode != Leaf && n.Value == n.Value {
			g.ranks[n.Feature] = append(g.ranks[n.Feature], T(n.Value))
		}
	}
	for feature, all := range g.ranks {
		slices.Sort(all)
		g.ranks[feature] = slices.Clip(slices.Compact(all))
	}
	return g
}

func (g *gathered[T]) question(n *Node, set []T) question {
	if set != nil {
		q := question{swap: n.Mode == NotEqual}
		a := asked{feature: n.Feature, nan: 1, set: string(binaryOf(set))}
		if n.Missing && n.Mode != NotEqual {
			a.nan = 0
		}
		q.column = g.column(a, set, nil)
		return q
	}
	q := question{swap: n.Mode == GreaterOrEqual || n.Mode == Greater}
	ranks := g.ranks[n.Feature]
	if ranks != nil {
		q.key = rankOf(ranks, T(n.Value))
	} else {
		q.key = keyOf(float32(n.Value))
	}
	if n.Mode == Less || n.Mode == GreaterOrEqual {
		q.key--
	}
	a := asked{feature: n.Feature, nan: always}
	if n.Missing != q.swap {
		a.nan = never
	}
	q.column = g.column(a, nil, ranks)
	return q
}

func (g *gathered[T]) column(a asked, set, ranks []T) uint32 {
	at, known := g.known[a]
	if !known {
		at = uint32(len(g.columns))
		g.known[a] = at
		g.columns = append(g.columns, column[T]{a.feature, a.nan, ranks, set})
	}
	return at
}

func binaryOf[T Number](set []T) (b []byte) {
	for _, v := range set {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
	}
	return b
}
