package trees

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Mode is the question that a node asks about a feature.
type Mode uint8

// The modes. A node that asks goes to its child True if the answer is yes.
const (
	Leaf Mode = iota
	LessOrEqual
	Less
	GreaterOrEqual
	Greater
	Equal
	NotEqual
	Member // one of a set of numbers
)

// Node is a node as a file describes it.
type Node struct {
	Value       float64 // threshold
	Feature     int32
	True, False int32 // indexes of the children in Forest.Nodes
	Set         int32 // index in Forest.Sets, for Member
	Mode        Mode
	Missing     bool // NaN goes to True, whatever the mode
}

// Vote is a weight that a leaf gives to a target. A leaf may have any number of them.
type Vote struct {
	Node, Target int32
	Value        float64
}

// Aggregate is how the votes of the trees for one target become one number.
type Aggregate uint8

// The aggregates.
const (
	Sum Aggregate = iota
	Average
	Min
	Max
)

// Forest is an ensemble as a file describes it.
type Forest struct {
	Nodes     []Node
	Roots     []int32 // a tree each
	Votes     []Vote  // those of a node count in this order
	Sets      [][]float64
	Targets   int
	Aggregate Aggregate
}

// ErrTooLarge reports a valid forest that does not fit into the packed form.
var ErrTooLarge = errors.New("is larger than this engine packs")

// Limits of the packed form and of a sensible tree. A deeper tree is a list: it would need
// thousands of comparisons for each row.
const (
	columnBits = 13
	deltaBits  = 17
	maxDepth   = 4096
	maxNodes   = 1 << 28
)

// place names a node in errors. Nodes have no names besides their position in the file's lists.
func (f *Forest) place(tree int, at int32) string {
	return fmt.Sprintf("tree %d, node %d of the list", tree, at)
}

// Number is the type of inputs, thresholds and sums.
type Number interface{ float32 | float64 }

// node is a packed node. Its high half is the key: the threshold in the column's order, or of a
// leaf the weight's bits or the index of its weights. Below are 17 bits with the distance to the
// first child, 13 with the column, and two zeros. A row goes to the first of two neighbouring
// children if its number in the column is at most the key, else to the second.
//
// A leaf asks column 0, which is never greater than a key, and is its own first child. So a walk
// may take any number of steps more than a path is long.
type node uint64

func newNode(key, delta, column uint32) node {
	return node(key)<<32 | node(delta)<<(columnBits+2) | node(column)<<2
}

func (n node) key() uint32    { return uint32(n >> 32) }
func (n node) delta() uint32  { return uint32(n) >> (columnBits + 2) }
func (n node) column() uint32 { return uint32(n) >> 2 & (1<<columnBits - 1) }

// tree is a packed tree.
type tree struct {
	root   uint32
	depth  uint16
	target uint16 // of all its leaves, in the single form
}

// form is where the weights of leaves are.
type form uint8

const (
	// sparse is any other: a leaf's key is the index of its first vote, or noVote.
	sparse form = iota
	// dense means that each leaf has one vote for each target, and votes are added. The key is the
	// index of the first of its weights.
	dense
	// single means that each leaf has one vote, all leaves of a tree vote for the same target, and
	// votes are added in float32. The key has the bits of the weight.
	single
)

// noVote is the first vote of a leaf that has none.
const noVote = math.MaxUint32

// vote is a vote of the sparse form. The votes of a leaf are neighbours.
type vote[T Number] struct {
	value T
	to    uint32 // twice the target, and 1 if the next vote is of the same leaf
}

// Ensemble is a packed forest. It is read only and safe for concurrent use.
type Ensemble[T Number] struct {
	nodes     []node
	trees     []tree
	form      form
	votes     []vote[T] // of the sparse form
	weights   []T       // of the dense form
	seen      []bool    // targets that each row has votes for; nil if this depends on the row
	columns   []column
	tables    [][]T // sorted thresholds, or sorted sets
	targets   int
	features  int // one more than the greatest feature
	depth     int // sum of the trees' depths
	deepest   int // depth of the deepest tree
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
	e, err := b.pack(b.form())
	if errors.Is(err, errMixed) {
		e, err = b.pack(sparse)
	}
	return e, err
}

// errMixed reports that the leaves of a tree vote for different targets.
var errMixed = errors.New("the leaves of a tree vote for different targets")

func (b *builder[T]) pack(how form) (*Ensemble[T], error) {
	e := &Ensemble[T]{form: how, targets: b.Targets, aggregate: b.Aggregate}
	e.nodes = make([]node, 0, len(b.Nodes)+2*len(b.Roots))
	e.trees = make([]tree, 0, len(b.Roots))
	if how != sparse {
		e.seen = make([]bool, b.Targets)
	}
	b.to, b.visited = e, make([]bool, len(b.Nodes))
	b.gathered = newGathered[T](b.Forest)
	for i, root := range b.Roots {
		if err := b.tree(i, root); err != nil {
			return nil, err
		}
	}
	e.nodes, e.votes, e.weights = exact(e.nodes), exact(e.votes), exact(e.weights)
	e.columns, e.tables = exact(b.gathered.columns), exact(b.gathered.tables)
	for i, table := range e.tables {
		e.tables[i] = exact(table)
	}
	return e, nil
}

// exact returns a slice in memory of its length.
func exact[E any](s []E) []E {
	if cap(s)-len(s) <= cap(s)/64 {
		return s
	}
	return append(make([]E, 0, len(s)), s...)
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
	first := make([]int32, len(b.Nodes)+2) // moved by one, so that counting on turns it into the first votes
	for i, v := range b.Votes {
		switch {
		case v.Node < 0 || int(v.Node) >= len(b.Nodes):
			return fmt.Errorf("weight %d is of node %d of the list; there are %d", i, v.Node, len(b.Nodes))
		case b.Nodes[v.Node].Mode != Leaf:
			return fmt.Errorf("weight %d is of node %d of the list, which is not a leaf", i, v.Node)
		case v.Target < 0 || int(v.Target) >= b.Targets:
			return fmt.Errorf("weight %d is for target or class %d; there are %d", i, v.Target, b.Targets)
		}
		first[v.Node+2]++
	}
	for i := range b.Nodes {
		first[i+2] += first[i+1]
	}
	b.order = make([]int32, len(b.Votes))
	for i, v := range b.Votes {
		b.order[first[v.Node+1]] = int32(i)
		first[v.Node+1]++
	}
	b.first = first[:len(b.Nodes)+1]
	return nil
}

// votesOf returns the positions of a node's votes.
func (b *builder[T]) votesOf(at int32) []int32 { return b.order[b.first[at]:b.first[at+1]] }

// form returns the form of the weights, as far as it does not depend on which leaf is in which tree.
func (b *builder[T]) form() form {
	if b.Aggregate > Average {
		return sparse
	}
	one, all := unsafe.Sizeof(T(0)) == 4 && b.Targets <= math.MaxUint16, b.Targets <= 1<<8
	for i := range b.Nodes {
		if b.Nodes[i].Mode != Leaf {
			continue
		}
		votes := b.votesOf(int32(i))
		one, all = one && len(votes) == 1, all && len(votes) == b.Targets
		for k := 0; k < len(votes) && all; k++ {
			all = int(b.Votes[votes[k]].Target) == k
		}
	}
	switch {
	case one:
		return single
	case all:
		return dense
	}
	return sparse
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
	switch e.form {
	case single:
		t.target, e.seen[target] = uint16(target), true
	case dense:
		for i := range e.seen {
			e.seen[i] = true
		}
	}
	e.depth, e.deepest = e.depth+deepest, max(e.deepest, deepest)
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
	switch e.form {
	case single:
		v := b.Votes[votes[0]]
		if *target >= 0 && *target != v.Target {
			return errMixed
		}
		*target = v.Target
		e.nodes[o.to] = newNode(math.Float32bits(float32(v.Value)), 0, 0)
	case dense:
		e.nodes[o.to] = newNode(uint32(len(e.weights)), 0, 0)
		for _, at := range votes {
			e.weights = append(e.weights, T(b.Votes[at].Value))
		}
	default:
		first := uint32(noVote)
		if len(votes) > 0 {
			first = uint32(len(e.votes))
		}
		e.nodes[o.to] = newNode(first, 0, 0)
		for i, at := range votes {
			v, more := b.Votes[at], uint32(1)
			if i+1 == len(votes) {
				more = 0
			}
			e.votes = append(e.votes, vote[T]{T(v.Value), uint32(v.Target)<<1 | more})
		}
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
	set, err := b.setOf(tree, &n)
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
func (b *builder[T]) setOf(tree int, n *Node) ([]T, error) {
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
	n := int64(unsafe.Sizeof(*e)) + int64(len(e.seen)) + bytesOf(e.nodes) + bytesOf(e.trees) + bytesOf(e.votes) + bytesOf(e.weights) + bytesOf(e.columns) + bytesOf(e.tables)
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
