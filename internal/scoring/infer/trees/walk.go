package trees

import "math"

// lanes is the number of walks that are taken at the same time, so that the processor does not
// wait for the memory of one of them. Lanes are rows with the same tree or, for the last rows of a
// batch, trees with the same row.
const lanes = 8

// Scratch is the memory of a walk. It may be used for any ensembles, one after another.
type Scratch struct {
	columns []uint32      // of some groups of rows: for each column, one number for each lane
	ends    [lanes]uint32 // nodes of the walks
}

// Rows are walked in blocks whose columns stay in the first cache. All trees see a block before
// the next block, and all its rows see a tree before the next tree.
const (
	mostGroups  = 16
	mostNumbers = 1 << 13
)

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
	if need := block * len(e.columns); len(s.columns) < need {
		s.columns = make([]uint32, need)
	}
	for from := 0; from < rows; {
		n := min(block, rows-from) / lanes * lanes
		if n == 0 {
			e.walkTrees(s, x[from*width:], sums[from*e.targets:], seen[from*e.targets:])
			from++
			continue
		}
		e.walkRows(s, n, width, x[from*width:], sums[from*e.targets:], seen[from*e.targets:])
		from += n
	}
}

// walkRows takes groups of rows through one tree after another.
func (e *Ensemble[T]) walkRows(s *Scratch, rows, width int, x, sums []T, seen []bool) {
	group := lanes * len(e.columns)
	for i := range rows {
		e.prepare(x[i*width:(i+1)*width], s.columns[i/lanes*group:], i%lanes)
	}
	for i := range e.trees {
		t := &e.trees[i]
		for row := 0; row < rows; row += lanes {
			for lane := range s.ends {
				s.ends[lane] = t.root
			}
			walk(e.nodes, s.columns[row/lanes*group:][:group], &s.ends, int(t.depth))
			e.add(t, s.ends[:], sums[row*e.targets:], seen[row*e.targets:], e.targets)
		}
	}
}

// walkTrees takes one row through groups of trees.
func (e *Ensemble[T]) walkTrees(s *Scratch, row, sums []T, seen []bool) {
	columns := s.columns[:lanes*len(e.columns)]
	e.prepare(row, columns, 0)
	for at := 0; at < len(columns); at += lanes {
		for lane := 1; lane < lanes; lane++ {
			columns[at+lane] = columns[at]
		}
	}
	for i := 0; i < len(e.trees); i += lanes {
		depth := 0
		some := e.trees[i:min(i+lanes, len(e.trees))]
		for lane := range s.ends {
			t := &some[min(lane, len(some)-1)]
			s.ends[lane], depth = t.root, max(depth, int(t.depth))
		}
		walk(e.nodes, columns, &s.ends, depth)
		for lane := range some {
			e.add(&some[lane], s.ends[lane:lane+1], sums, seen, 0)
		}
	}
}

// walkPlain takes each lane a number of steps further.
func walkPlain(nodes []node, columns []uint32, at *[lanes]uint32, steps int) {
	for range steps {
		for lane, i := range at {
			n := nodes[i]
			i += n.delta()
			if columns[lanes*n.column()+uint32(lane)] > n.key() {
				i++
			}
			at[lane] = i
		}
	}
}

// add adds the weights of a tree's leaves at which walks have ended. The sums are some numbers apart.
func (e *Ensemble[T]) add(t *tree, ends []uint32, sums []T, seen []bool, apart int) {
	switch e.form {
	case single:
		sums = sums[t.target:]
		for i, at := range ends {
			sums[i*apart] += T(math.Float32frombits(e.nodes[at].key()))
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
