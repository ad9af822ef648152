package trees

import (
	"errors"
	"fmt"
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
