package trees

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Number is the type of inputs, thresholds and sums.
type Number interface{ float32 | float64 }

// node is a packed node. Its high half is the key: the threshold in the column's order, or of a
// leaf the weight's bits or the first vote. Below are the distance to the first child and the
// column. A row goes to the first of two neighbouring children if its number in the column is at
// most the key, else to the second.
//
// A leaf asks column 0, which is never greater than a key, and is its own first child. So a walk
// may take any number of steps more than a path is long.
type node uint64

func newNode(key, delta, column uint32) node {
	return node(key)<<32 | node(delta)<<columnBits | node(column)
}

func (n node) key() uint32    { return uint32(n >> 32) }
func (n node) delta() uint32  { return uint32(n) >> columnBits }
func (n node) column() uint32 { return uint32(n) & (1<<columnBits - 1) }

// tree is a packed tree.
type tree struct {
	root   uint32
	depth  uint16
	target uint16 // of all its leaves, if each leaf has one vote
}

// vote is a packed vote. The votes of a leaf are neighbours.
type vote[T Number] struct {
	value  T
	target int32
	more   bool // the next vote is of the same leaf
}

// noVote is the first vote of a leaf that has none.
const noVote = math.MaxUint32

// Ensemble is a packed forest. It is read only and safe for concurrent use.
type Ensemble[T Number] struct {
	nodes     []node
	trees     []tree
	votes     []vote[T] // empty if single
	columns   []column
	tables    [][]T  // sorted thresholds, or sorted sets
	single    bool   // each leaf has one vote, for its tree's target, and weights are added
	seen      []bool // targets that each row has votes for, if single
	targets   int
	features  int // one more than the greatest feature
	depth     int // sum of the trees' depths
	aggregate Aggregate
}

// Build checks and packs a forest. The error says what is wrong with which node, or wraps
// ErrTooLarge.
func Build[T Number](f *Forest) (*Ensemble[T], error) {
	if len(f.Nodes) > maxNodes || len(f.Votes) > maxNodes {
		return nil, fmt.Errorf("a forest of %d nodes and %d weights %w: at most %d are", len(f.Nodes), len(f.Votes), ErrTooLarge, maxNodes)
	}
	b := &builder[T]{Forest: f}
	if err := b.checkVotes(); err != nil {
		return nil, err
	}
	e, err := b.pack(b.isSingle())
	if errors.Is(err, errMixed) {
		e, err = b.pack(false)
	}
	return e, err
}

// errMixed reports that the leaves of a tree vote for different targets.
var errMixed = errors.New("the leaves of a tree vote for different targets")

func (b *builder[T]) pack(single bool) (*Ensemble[T], error) {
	e := &Ensemble[T]{single: single, targets: b.Targets, aggregate: b.Aggregate}
	e.nodes = make([]node, 0, len(b.Nodes)+2*len(b.Roots))
	e.trees = make([]tree, 0, len(b.Roots))
	if single {
		e.seen = make([]bool, b.Targets)
	}
	b.to, b.visited = e, make([]bool, len(b.Nodes))
	b.gathered = newGathered[T](b.Forest)
	for i, root := range b.Roots {
		if err := b.tree(i, root); err != nil {
			return nil, err
		}
	}
	e.nodes = slices.Clip(e.nodes)
	e.columns, e.tables = slices.Clip(b.gathered.columns), slices.Clip(b.gathered.tables)
	return e, nil
}

// builder packs a forest.
type builder[T Number] struct {
	*Forest
	to       *Ensemble[T]
	visited  []bool
	gathered *gathered[T]
	first    []int32 // first vote of each node and, as the last element, their number
	order    []int32 // votes in the order of their nodes
	open     []open
}

// open is a node that has its place and is not yet packed.
type open struct {
	from  int32
	to    uint32
	depth int
}

// checkVotes groups the votes by their nodes, in their order.
func (b *builder[T]) checkVotes() error {
	b.first = make([]int32, len(b.Nodes)+1)
	for i, v := range b.Votes {
		switch {
		case v.Node < 0 || int(v.Node) >= len(b.Nodes):
			return fmt.Errorf("weight %d is of node %d of the list; there are %d", i, v.Node, len(b.Nodes))
		case b.Nodes[v.Node].Mode != Leaf:
			return fmt.Errorf("weight %d is of node %d of the list, which is not a leaf", i, v.Node)
		case v.Target < 0 || int(v.Target) >= b.Targets:
			return fmt.Errorf("weight %d is for target or class %d; there are %d", i, v.Target, b.Targets)
		}
		b.first[v.Node+1]++
	}
	for i := range b.Nodes {
		b.first[i+1] += b.first[i]
	}
	b.order = make([]int32, len(b.Votes))
	next := slices.Clone(b.first)
	for i, v := range b.Votes {
		b.order[next[v.Node]] = int32(i)
		next[v.Node]++
	}
	return nil
}

// votesOf returns the positions of a node's votes.
func (b *builder[T]) votesOf(at int32) []int32 { return b.order[b.first[at]:b.first[at+1]] }

// isSingle reports whether a leaf's weight fits into its node. Then each leaf has one vote, and
// the leaves of a tree have the same target.
func (b *builder[T]) isSingle() bool {
	if unsafe.Sizeof(T(0)) != 4 || b.Aggregate > Average || b.Targets > math.MaxUint16 {
		return false
	}
	for i := range b.Nodes {
		if n := len(b.votesOf(int32(i))); b.Nodes[i].Mode == Leaf && n != 1 {
			return false
		}
	}
	return true
}

// tree packs a tree. Children are neighbours at an even place, so that both are in one cache
// line, and the left one's subtree follows.
func (b *builder[T]) tree(i int, root int32) error {
	e := b.to
	if len(e.nodes)%2 == 0 {
		e.nodes = append(e.nodes, 0)
	}
	t := tree{root: uint32(len(e.nodes))}
	e.nodes = append(e.nodes, 0)
	b.open = append(b.open[:0], open{root, t.root, 0})
	deepest, target := 0, int32(-1)
	for len(b.open) > 0 {
		o := b.open[len(b.open)-1]
		b.open = b.open[:len(b.open)-1]
		if err := b.visit(i, o.from); err != nil {
			return err
		}
		if deepest = max(deepest, o.depth); deepest > maxDepth {
			return fmt.Errorf("%s is %d levels deep; at most %d are supported", b.place(i, o.from), o.depth, maxDepth)
		}
		var err error
		if b.Nodes[o.from].Mode == Leaf {
			err = b.leaf(o, &target)
		} else {
			err = b.branch(i, o)
		}
		if err != nil {
			return err
		}
	}
	t.depth = uint16(deepest)
	if e.single {
		t.target, e.seen[target] = uint16(target), true
	}
	e.depth += deepest
	e.trees = append(e.trees, t)
	return nil
}

// visit fails for a node that the trees reach twice, or that is not there.
func (b *builder[T]) visit(tree int, at int32) error {
	if at < 0 || int(at) >= len(b.Nodes) {
		return fmt.Errorf("tree %d has no node %d", tree, at)
	}
	if b.visited[at] {
		return fmt.Errorf("%s is the child of two nodes, or part of a cycle", b.place(tree, at))
	}
	b.visited[at] = true
	return nil
}

// leaf packs a leaf. target is that of the tree's leaves so far.
func (b *builder[T]) leaf(o open, target *int32) error {
	e, votes := b.to, b.votesOf(o.from)
	if e.single {
		v := b.Votes[votes[0]]
		if *target >= 0 && *target != v.Target {
			return errMixed
		}
		*target = v.Target
		e.nodes[o.to] = newNode(math.Float32bits(float32(v.Value)), 0, 0)
		return nil
	}
	first := uint32(noVote)
	if len(votes) > 0 {
		first = uint32(len(e.votes))
	}
	e.nodes[o.to] = newNode(first, 0, 0)
	for i, at := range votes {
		v := b.Votes[at]
		e.votes = append(e.votes, vote[T]{T(v.Value), v.Target, i+1 < len(votes)})
	}
	return nil
}

// branch packs a node that asks, and gives its children their places.
func (b *builder[T]) branch(tree int, o open) error {
	n := b.Nodes[o.from]
	e := b.to
	if n.Feature < 0 {
		return fmt.Errorf("%s asks feature %d", b.place(tree, o.from), n.Feature)
	}
	if n.Mode != Member && n.Value != n.Value {
		return fmt.Errorf("%s compares with NaN", b.place(tree, o.from))
	}
	set, err := b.setOf(tree, o.from, &n)
	if err != nil {
		return err
	}
	e.features = max(e.features, int(n.Feature)+1)
	q := b.gathered.question(&n, set)
	delta := uint32(len(e.nodes)) - o.to
	if delta >= 1<<deltaBits || q.column >= 1<<columnBits {
		return fmt.Errorf("tree %d: it %w: more than %d nodes, or all trees together ask more than %d different things", tree, ErrTooLarge, 1<<deltaBits, 1<<columnBits)
	}
	e.nodes[o.to] = newNode(q.key, delta, q.column)
	left, right := n.True, n.False
	if q.swap {
		left, right = right, left
	}
	next := uint32(len(e.nodes))
	e.nodes = append(e.nodes, 0, 0)
	b.open = append(b.open, open{right, next + 1, o.depth + 1}, open{left, next, o.depth + 1})
	return nil
}

// setOf returns the set of a node that asks for equality. Exporters write a set as a chain of
// nodes that ask for one number each and have the same child for yes. The chain becomes one node:
// its False is changed.
func (b *builder[T]) setOf(tree int, at int32, n *Node) ([]T, error) {
	set := []T{}
	switch n.Mode {
	default:
		return nil, nil
	case Equal, NotEqual:
		set = append(set, T(n.Value))
	case Member:
		for _, v := range b.Sets[n.Set] {
			set = append(set, T(v))
		}
	}
	for n.Mode == Equal && n.False >= 0 && int(n.False) < len(b.Nodes) {
		next := &b.Nodes[n.False]
		if next.Mode != Equal || next.Feature != n.Feature || next.True != n.True {
			break
		}
		if err := b.visit(tree, n.False); err != nil {
			return nil, err
		}
		set = append(set, T(next.Value))
		n.Missing = n.Missing || next.Missing
		n.False = next.False
	}
	slices.Sort(set)
	return slices.Compact(set), nil
}

// Bytes returns the memory of the ensemble.
func (e *Ensemble[T]) Bytes() int64 {
	n := int64(unsafe.Sizeof(*e)) + int64(len(e.seen)) + bytesOf(e.nodes) + bytesOf(e.trees) + bytesOf(e.votes) + bytesOf(e.columns) + bytesOf(e.tables)
	for _, table := range e.tables {
		n += bytesOf(table)
	}
	return n
}

func bytesOf[E any](s []E) int64 {
	var one E
	return int64(unsafe.Sizeof(one)) * int64(cap(s))
}

// Targets returns the number of targets or classes.
func (e *Ensemble[T]) Targets() int { return e.targets }

// Trees returns the number of trees.
func (e *Ensemble[T]) Trees() int { return len(e.trees) }

// Features returns one more than the greatest feature that a tree asks.
func (e *Ensemble[T]) Features() int { return e.features }

// Steps returns the number of comparisons for one row.
func (e *Ensemble[T]) Steps() int { return e.depth + len(e.columns) + len(e.trees) }
