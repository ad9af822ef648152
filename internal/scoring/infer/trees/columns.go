package trees

import (
	"encoding/binary"
	"math"
	"slices"
)

// A row is turned into columns of integers before it is walked. A feature's column has the same
// order as the feature's numbers, so one comparison of integers serves all modes and types. NaN is
// less or greater than all other numbers; a feature has two columns if nodes disagree about that.
// A question for equality has a separate column: 0 for yes, 1 for no.

// column says how one of them is computed.
type column struct {
	feature int32
	nan     uint32 // of NaN
	table   int32  // index in Ensemble.tables; noTable for a feature in float32
	isSet   bool   // the table has the numbers that mean yes, else the thresholds of a feature
}

const noTable = -1

// never is the number of column 0, and that of NaN where it goes to the first child. always is that
// of NaN where it goes to the second.
const (
	never  = 0
	always = math.MaxUint32
)

// keyOf returns an integer with the order of the floats. Both zeros have the same.
func keyOf(v float32) uint32 {
	bits := int32(math.Float32bits(v))
	sign := bits >> 31
	return uint32((bits&math.MaxInt32)^sign-sign) + 1<<31
}

// rankOf returns an integer with the order of the numbers, as far as the sorted thresholds can
// tell: even for a threshold, odd between two.
func rankOf[T Number](thresholds []T, v T) uint32 {
	at, found := slices.BinarySearch(thresholds, v)
	if found {
		return uint32(2*at + 2)
	}
	return uint32(2*at + 1)
}

// prepare computes the columns of a row and writes them to one of the lanes.
func (e *Ensemble[T]) prepare(row []T, to []uint32, lane int) {
	to[lane] = never
	if x, ok := any(row).([]float32); ok && len(e.tables) == 0 {
		prepareFloats(e.columns, x, to, lane)
		return
	}
	for _, c := range e.columns[1:] {
		lane += lanes
		to[lane] = e.columnOf(c, row)
	}
}

// prepareFloats is prepare if no column needs a table, which is the usual case.
func prepareFloats(columns []column, row []float32, to []uint32, lane int) {
	for _, c := range columns[1:] {
		lane += lanes
		v := row[c.feature]
		to[lane] = keyOf(v)
		if v != v {
			to[lane] = c.nan
		}
	}
}

func (e *Ensemble[T]) columnOf(c column, row []T) uint32 {
	v := row[c.feature]
	switch {
	case v != v:
		return c.nan
	case c.table == noTable:
		return keyOf(float32(v))
	case !c.isSet:
		return rankOf(e.tables[c.table], v)
	}
	if _, found := slices.BinarySearch(e.tables[c.table], v); found {
		return 0
	}
	return 1
}

// gathered collects the columns while a forest is packed.
type gathered[T Number] struct {
	columns []column
	tables  [][]T
	known   map[asked]uint32
	sets    map[string]int32 // table of each set
	ranks   map[int32]int32  // table of each feature; empty for float32
}

// asked identifies a column.
type asked struct {
	feature, table int32
	nan            uint32
}

// question is how a packed node asks what a node of the file asks.
type question struct {
	key, column uint32
	swap        bool // the first child is for no
}

func newGathered[T Number](f *Forest) *gathered[T] {
	g := &gathered[T]{known: map[asked]uint32{}, sets: map[string]int32{}, ranks: map[int32]int32{}}
	g.columns = append(g.columns, column{table: noTable}) // column 0 is the same in all rows
	if _, double := any(T(0)).(float64); !double {
		return g
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Mode == Leaf || n.Value != n.Value {
			continue
		}
		table, known := g.ranks[n.Feature]
		if !known {
			table = int32(len(g.tables))
			g.ranks[n.Feature], g.tables = table, append(g.tables, nil)
		}
		g.tables[table] = append(g.tables[table], T(n.Value))
	}
	for i, all := range g.tables {
		slices.Sort(all)
		g.tables[i] = slices.Compact(all)
	}
	return g
}

func (g *gathered[T]) question(n *Node, set []T) question {
	if set != nil {
		nan := uint32(1)
		if n.Missing && n.Mode != NotEqual {
			nan = 0
		}
		return question{column: g.column(n.Feature, g.setTable(set), nan, true), swap: n.Mode == NotEqual}
	}
	q := question{swap: n.Mode == GreaterOrEqual || n.Mode == Greater}
	table, double := g.ranks[n.Feature]
	if double {
		q.key = rankOf(g.tables[table], T(n.Value))
	} else {
		table, q.key = noTable, keyOf(float32(n.Value))
	}
	if n.Mode == Less || n.Mode == GreaterOrEqual {
		q.key--
	}
	nan := uint32(always)
	if n.Missing != q.swap {
		nan = never
	}
	q.column = g.column(n.Feature, table, nan, false)
	return q
}

// setTable returns the table of a sorted set.
func (g *gathered[T]) setTable(set []T) int32 {
	var name []byte
	for _, v := range set {
		name = binary.LittleEndian.AppendUint64(name, math.Float64bits(float64(v)))
	}
	table, known := g.sets[string(name)]
	if !known {
		table = int32(len(g.tables))
		g.sets[string(name)], g.tables = table, append(g.tables, set)
	}
	return table
}

func (g *gathered[T]) column(feature, table int32, nan uint32, isSet bool) uint32 {
	a := asked{feature, table, nan}
	at, known := g.known[a]
	if !known {
		at = uint32(len(g.columns))
		g.known[a] = at
		g.columns = append(g.columns, column{feature, nan, table, isSet})
	}
	return at
}
