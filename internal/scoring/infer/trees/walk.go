package trees

import "math"

// Scratch is the memory of a walk. It may be used for any ensembles, one after another.
type Scratch struct {
	columns []int32  // of some rows, one row after another
	leaves  []uint32 // where the walks have ended
}

// Rows are walked in blocks whose columns stay in the first cache. All trees see a block before
// the next block, and all its rows see a tree before the next tree.
const (
	mostRows    = 64
	mostNumbers = 1 << 13
)

// Run adds up the votes for each row. x has rows of a width of at least Features. sums and seen
// have Targets elements for each row: the aggregate of the votes, and whether there was any. A
// target without a vote has the sum 0. Average is not yet divided by the number of trees.
func (e *Ensemble[T]) Run(s *Scratch, rows, width int, x, sums []T, seen []bool) {
	clear(sums[:rows*e.targets])
	if e.single {
		for i := range rows {
			copy(seen[i*e.targets:(i+1)*e.targets], e.seen)
		}
	} else {
		clear(seen[:rows*e.targets])
	}
	block := max(1, min(mostRows, mostNumbers/len(e.columns)))
	for from := 0; from < rows; from += block {
		n := min(block, rows-from)
		s.fill(n*len(e.columns), max(n, len(e.trees)))
		for i := range n {
			e.prepare(x[(from+i)*width:(from+i+1)*width], s.columns[i*len(e.columns):(i+1)*len(e.columns)])
		}
		at := from * e.targets
		e.block(s, n, sums[at:at+n*e.targets], seen[at:at+n*e.targets])
	}
}

func (s *Scratch) fill(columns, leaves int) {
	if cap(s.columns) < columns {
		s.columns = make([]int32, columns)
	}
	if cap(s.leaves) < leaves {
		s.leaves = make([]uint32, leaves)
	}
	s.columns, s.leaves = s.columns[:columns], s.leaves[:leaves]
}

// prepare computes the columns of a row.
func (e *Ensemble[T]) prepare(row []T, to []int32) {
	to[0] = never
	for i := 1; i < len(e.columns) && i < len(to); i++ {
		to[i] = e.columns[i].of(row)
	}
}

// together is the number of walks that are taken at the same time, so that the processor does
// not wait for the memory of one.
const together = 4

// block walks a few rows. Many rows take a tree together, and a few rows take many trees together.
func (e *Ensemble[T]) block(s *Scratch, rows int, sums []T, seen []bool) {
	width := len(e.columns)
	whole := rows / together * together
	if whole > 0 {
		for i := range e.trees {
			t := &e.trees[i]
			for row := 0; row < whole; row += together {
				at := [together]uint32{t.root, t.root, t.root, t.root}
				walk(e.nodes, int(t.depth), &at, s.columns[row*width:], s.columns[(row+1)*width:], s.columns[(row+2)*width:], s.columns[(row+3)*width:])
				*(*[together]uint32)(s.leaves[row:]) = at
			}
			e.add(t, s.leaves[:whole], sums, seen)
		}
	}
	for row := whole; row < rows; row++ {
		x := s.columns[row*width : (row+1)*width]
		for i := 0; i < len(e.trees); i += together {
			var at [together]uint32
			depth := 0
			for k := range at {
				t := &e.trees[min(i+k, len(e.trees)-1)]
				at[k], depth = t.root, max(depth, int(t.depth))
			}
			walk(e.nodes, depth, &at, x, x, x, x)
			for k := range min(together, len(e.trees)-i) {
				e.add(&e.trees[i+k], at[k:k+1], sums[row*e.targets:], seen[row*e.targets:])
			}
		}
	}
}

// walk takes four walks a number of steps further.
func walk(nodes []node, steps int, at *[together]uint32, a, b, c, d []int32) {
	i, j, k, l := at[0], at[1], at[2], at[3]
	for range steps {
		i += step(nodes[i], a)
		j += step(nodes[j], b)
		k += step(nodes[k], c)
		l += step(nodes[l], d)
	}
	*at = [together]uint32{i, j, k, l}
}

// step returns the distance from a node to the child for a row.
func step(n node, columns []int32) uint32 {
	further := uint32(uint64(int64(n.key)-int64(columns[n.at&(1<<columnBits-1)])) >> 63)
	return n.at>>columnBits + further
}

// add adds the votes of the leaves at which rows have arrived.
func (e *Ensemble[T]) add(t *tree, leaves []uint32, sums []T, seen []bool) {
	if !e.single {
		e.addAll(leaves, sums, seen)
		return
	}
	sums = sums[t.target:]
	for i, at := range leaves {
		sums[i*e.targets] += T(math.Float32frombits(uint32(e.nodes[at].key)))
	}
}

func (e *Ensemble[T]) addAll(leaves []uint32, sums []T, seen []bool) {
	for i, at := range leaves {
		first := e.nodes[at].key
		if first == noVote {
			continue
		}
		for _, v := range e.votes[first:] {
			to := i*e.targets + int(v.target)
			sums[to] = e.aggregated(sums[to], v.value, seen[to])
			seen[to] = true
			if !v.more {
				break
			}
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
