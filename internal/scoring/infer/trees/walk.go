package trees

import (
	"math"
	"unsafe"
)

// lanes is the number of walks that are taken at the same time, so that the processor does not
// wait for the memory of one of them. Lanes are rows with the same tree, or trees with the same row.
const lanes = 8

// Scratch is the memory of a walk. It may be used for any ensembles, one after another.
type Scratch struct {
	columns []uint32 // of some groups of rows: for each column, one number for each lane
	ends    []uint32 // nodes of the walks
}

// Rows are walked in blocks whose columns stay in the first caches. All trees see a block before
// the next block, and all its rows see a tree before the next tree.
const (
	mostGroups  = 16
	mostNumbers = 1 << 15
)

// fewRows is the number of rows that are faster one after another than as a group with empty lanes.
const fewRows = 5

// Run adds up the votes for each row. x has rows of a width of at least Features. sums and seen
// have Targets elements for each row: the aggregate of the votes, and whether there was any. A
// target without a vote has the sum 0. Average is not yet divided by the number of trees.
func (e *Ensemble[T]) Run(s *Scratch, rows, width int, x, sums []T, seen []bool) {
	clear(sums[:rows*e.targets])
	clear(seen[:rows*e.targets])
	for i := 0; i < rows && e.seen != nil; i++ {
		copy(seen[i*e.targets:], e.seen)
	}
	block := lanes * max(1, min(mostGroups, mostNumbers/(lanes*len(e.columns))))
	s.grow(min(block, (rows+lanes-1)/lanes*lanes)*len(e.columns), max(block, len(e.trees)+lanes))
	for from := 0; from < rows && len(e.trees) > 0; {
		n := min(block, rows-from)
		if rest := n % lanes; rest <= fewRows && n > rest {
			n -= rest
		}
		at := from * e.targets
		if n <= fewRows {
			n = 1
			e.walkTrees(s, x[from*width:], sums[at:], seen[at:])
		} else {
			e.walkRows(s, n, width, x[from*width:], sums[at:], seen[at:])
		}
		from += n
	}
}

// grow makes room for numbers of columns and for ends of walks.
func (s *Scratch) grow(columns, ends int) {
	if len(s.columns) < columns {
		s.columns = make([]uint32, columns)
	}
	if len(s.ends) < ends {
		s.ends = make([]uint32, ends)
	}
}

// walkRows takes groups of rows through one tree after another. Lanes without a row repeat the last.
func (e *Ensemble[T]) walkRows(s *Scratch, rows, width int, x, sums []T, seen []bool) {
	group, whole := lanes*len(e.columns), (rows+lanes-1)/lanes*lanes
	for i := range whole {
		row := min(i, rows-1)
		e.prepare(x[row*width:(row+1)*width], s.columns[i/lanes*group:], i%lanes)
	}
	ends := s.ends[:whole]
	for i := range e.trees {
		t := &e.trees[i]
		for k := range ends {
			ends[k] = t.root
		}
		walk(&e.nodes[0], &s.columns[0], &ends[0], whole/lanes, group*4, int(t.depth))
		e.add(t, ends[:rows], sums, seen, e.targets)
	}
}

// walkTrees takes one row through groups of trees. Lanes without a tree repeat the last.
func (e *Ensemble[T]) walkTrees(s *Scratch, row, sums []T, seen []bool) {
	columns := s.columns[:lanes*len(e.columns)]
	e.prepare(row, columns, 0)
	for ; len(columns) >= lanes; columns = columns[lanes:] {
		v := columns[0]
		*(*[lanes]uint32)(columns) = [lanes]uint32{v, v, v, v, v, v, v, v}
	}
	whole := (len(e.trees) + lanes - 1) / lanes * lanes
	ends := s.ends[:whole]
	for i := range e.trees {
		ends[i] = e.trees[i].root
	}
	for i := len(e.trees); i < whole; i++ {
		ends[i] = ends[i-1]
	}
	walk(&e.nodes[0], &s.columns[0], &ends[0], whole/lanes, 0, e.deepest)
	if e.form == single {
		e.addTrees(ends[:len(e.trees)], sums)
		return
	}
	for i := range e.trees {
		e.add(&e.trees[i], ends[i:i+1], sums, seen, 0)
	}
}

// addTrees adds the weights of one leaf of each tree. Trees for the same target are often neighbours,
// and their sum is not stored in between.
func (e *Ensemble[T]) addTrees(ends []uint32, sums []T) {
	target := e.trees[0].target
	sum := sums[target]
	for i, at := range ends {
		if t := e.trees[i].target; t != target {
			sums[target] = sum
			target, sum = t, sums[t]
		}
		sum += e.weight(at)
	}
	sums[target] = sum
}

// weight returns the weight of a leaf in the single form.
func (e *Ensemble[T]) weight(leaf uint32) T { return T(math.Float32frombits(e.nodes[leaf].key())) }

// add adds the weights of a tree's leaves at which walks have ended. The sums are some numbers apart.
func (e *Ensemble[T]) add(t *tree, ends []uint32, sums []T, seen []bool, apart int) {
	switch e.form {
	case single:
		sums = sums[t.target:]
		for i, at := range ends {
			sums[i*apart] += e.weight(at)
		}
	case dense:
		for i, at := range ends {
			to := sums[i*apart:][:e.targets]
			for k, w := range e.weights[e.nodes[at].key():][:e.targets] {
				to[k] += w
			}
		}
	default:
		for i, at := range ends {
			if first := e.nodes[at].key(); first != noVote {
				e.addVotes(e.votes[first:], sums[i*apart:], seen[i*apart:])
			}
		}
	}
}

// addVotes adds the votes of a leaf, which are the first of some.
func (e *Ensemble[T]) addVotes(votes []vote[T], sums []T, seen []bool) {
	for _, v := range votes {
		to := v.to >> 1
		sums[to], seen[to] = e.aggregated(sums[to], v.value, seen[to]), true
		if v.to&1 == 0 {
			return
		}
	}
}

// aggregated returns a sum with one more vote.
func (e *Ensemble[T]) aggregated(sum, v T, seen bool) T {
	switch {
	case e.aggregate <= Average:
		return sum + v
	case !seen, e.aggregate == Min && v < sum, e.aggregate == Max && v > sum:
		return v
	}
	return sum
}

// walkPlain takes groups of lanes a number of steps further, each from the node in ends. The columns
// of the next group are stride bytes after those of a group. Build has checked that each node's
// children and column are there.
func walkPlain(nodes *node, columns, ends *uint32, groups, stride, steps int) {
	for group := range groups {
		at := (*[lanes]uint32)(unsafe.Add(unsafe.Pointer(ends), group*lanes*4))
		x := unsafe.Add(unsafe.Pointer(columns), group*stride)
		for range steps {
			for lane, i := range at {
				n := *(*node)(unsafe.Add(unsafe.Pointer(nodes), 8*uintptr(i)))
				i += n.delta()
				if *(*uint32)(unsafe.Add(x, 4*(lanes*uintptr(n.column())+uintptr(lane)))) > n.key() {
					i++
				}
				at[lane] = i
			}
		}
	}
}
