package native

import (
	"fmt"
	"math"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/infer/trees"
)

// listedForest is a forest as TreeEnsembleClassifier and TreeEnsembleRegressor list it: a list for
// each field of the nodes, and for each field of the weights.
type listedForest struct {
	trees.Forest
	base []float64

	treeIDs, nodeIDs []int64
	spans            map[int64]treeSpan
}

// treeSpan is where a tree's nodes are in the lists.
type treeSpan struct {
	from, to int
	at       map[int64]int32 // node by its id; nil if the ids are 0, 1, 2, …
}

var treeModes = map[string]trees.Mode{
	"LEAF": trees.Leaf, "BRANCH_LEQ": trees.LessOrEqual, "BRANCH_LT": trees.Less, "BRANCH_GTE": trees.GreaterOrEqual,
	"BRANCH_GT": trees.Greater, "BRANCH_EQ": trees.Equal, "BRANCH_NEQ": trees.NotEqual,
}

// readListed reads the lists. votes is "class" or "target", as their names begin.
func readListed[T trees.Number](n *node, votes string) (*listedForest, error) {
	f := &listedForest{treeIDs: n.ints("nodes_treeids"), nodeIDs: n.ints("nodes_nodeids")}
	var err error
	if f.base, err = numbersOf[T](n, "base_values"); err != nil {
		return nil, err
	}
	if err := f.findTrees(); err != nil {
		return nil, err
	}
	if err := readNodes[T](n, f); err != nil {
		return nil, err
	}
	return f, readVotes[T](n, f, votes)
}

// numbersOf returns a list of numbers, which may be a tensor of the input's type.
func numbersOf[T trees.Number](n *node, name string) ([]float64, error) {
	all := doublesOf(n.floats(name))
	a, ok := n.attribute(name+"_as_tensor", onnx.AttributeTensor)
	if !ok {
		return all, nil
	}
	if len(all) > 0 {
		return nil, fmt.Errorf("it has both %s and %s_as_tensor", name, name)
	}
	return tensorNumbers[T](a.Tensor, name+"_as_tensor")
}

func tensorNumbers[T trees.Number](t *tensor.Tensor, name string) ([]float64, error) {
	_, double := any(T(0)).(float64)
	switch {
	case t == nil:
		return nil, nil
	case double && t.Type == tensor.Double:
		return t.Doubles, nil
	case double || t.Type != tensor.Float:
		return nil, fmt.Errorf("%s of type %s with inputs of another %w", name, typeName(t.Type), onnx.ErrUnsupported)
	}
	return doublesOf(t.Floats), nil
}

func doublesOf(x []float32) []float64 {
	all := make([]float64, len(x))
	for i, v := range x {
		all[i] = float64(v)
	}
	return all
}

// findTrees finds each tree's nodes. The first listed node of a tree is its root.
func (f *listedForest) findTrees() error {
	if err := sameLengths(listLength{"nodes_nodeids", len(f.nodeIDs)}, listLength{"nodes_treeids", len(f.treeIDs)}); err != nil {
		return err
	}
	f.spans = map[int64]treeSpan{}
	for from := 0; from < len(f.treeIDs); {
		id, s := f.treeIDs[from], treeSpan{from: from, to: from}
		inOrder := true
		for ; s.to < len(f.treeIDs) && f.treeIDs[s.to] == id; s.to++ {
			inOrder = inOrder && f.nodeIDs[s.to] == int64(s.to-from)
		}
		if _, twice := f.spans[id]; twice {
			return fmt.Errorf("the nodes of tree %d are not listed together", id)
		}
		if !inOrder {
			s.at = make(map[int64]int32, s.to-from)
			for i := from; i < s.to; i++ {
				if _, twice := s.at[f.nodeIDs[i]]; twice {
					return fmt.Errorf("tree %d has two nodes %d", id, f.nodeIDs[i])
				}
				s.at[f.nodeIDs[i]] = int32(i)
			}
		}
		f.spans[id] = s
		f.Roots = append(f.Roots, int32(from))
		from = s.to
	}
	return nil
}

// find returns the position of a node; -1 if there is none.
func (s *treeSpan) find(id int64) int32 {
	if s.at == nil {
		if id < 0 || id >= int64(s.to-s.from) {
			return -1
		}
		return int32(s.from) + int32(id)
	}
	if at, ok := s.at[id]; ok {
		return at
	}
	return -1
}

// listLength is the name of a list and its length.
type listLength struct {
	name string
	have int
}

// optionalLength is the length of a list that may be absent.
func optionalLength(name string, have, otherwise int) listLength {
	if have == 0 {
		have = otherwise
	}
	return listLength{name, have}
}

func sameLengths(first listLength, others ...listLength) error {
	for _, l := range others {
		if l.have != first.have {
			return fmt.Errorf("its lists have different lengths: %d in %s and %d in %s", first.have, first.name, l.have, l.name)
		}
	}
	return nil
}

// nodeLists are the lists with a field of each node.
type nodeLists struct {
	values                     []float64
	modes                      []string
	features, yes, no, missing []int64
}

func readNodes[T trees.Number](n *node, f *listedForest) error {
	values, err := numbersOf[T](n, "nodes_values")
	if err != nil {
		return err
	}
	l := nodeLists{values, n.texts("nodes_modes"), n.ints("nodes_featureids"), n.ints("nodes_truenodeids"), n.ints("nodes_falsenodeids"), n.ints("nodes_missing_value_tracks_true")}
	count := len(f.nodeIDs)
	err = sameLengths(listLength{"nodes_nodeids", count}, listLength{"nodes_values", len(values)}, listLength{"nodes_modes", len(l.modes)}, listLength{"nodes_featureids", len(l.features)},
		listLength{"nodes_truenodeids", len(l.yes)}, listLength{"nodes_falsenodeids", len(l.no)}, optionalLength("nodes_missing_value_tracks_true", len(l.missing), count))
	if err != nil {
		return err
	}
	f.Nodes = make([]trees.Node, count)
	for _, root := range f.Roots {
		s := f.spans[f.treeIDs[root]]
		for i := s.from; i < s.to; i++ {
			if f.Nodes[i], err = l.node(&s, i); err != nil {
				return fmt.Errorf("tree %d, node %d %w", f.treeIDs[i], f.nodeIDs[i], err)
			}
		}
	}
	return nil
}

// node returns the node at a position of the lists.
func (l *nodeLists) node(s *treeSpan, i int) (trees.Node, error) {
	mode, known := treeModes[l.modes[i]]
	switch {
	case !known:
		return trees.Node{}, fmt.Errorf("has the mode %q, which %w", l.modes[i], onnx.ErrUnsupported)
	case mode == trees.Leaf:
		return trees.Node{}, nil
	case l.features[i] < 0 || l.features[i] >= math.MaxInt32:
		return trees.Node{}, fmt.Errorf("asks feature %d", l.features[i])
	}
	n := trees.Node{Mode: mode, Value: l.values[i], Feature: int32(l.features[i]), True: s.find(l.yes[i]), False: s.find(l.no[i]), Missing: len(l.missing) > 0 && l.missing[i] == 1}
	if n.True < 0 || n.False < 0 {
		return n, fmt.Errorf("has the children %d and %d, and the tree does not have both", l.yes[i], l.no[i])
	}
	return n, nil
}

func readVotes[T trees.Number](n *node, f *listedForest, votes string) error {
	treeIDs, nodeIDs, targets := n.ints(votes+"_treeids"), n.ints(votes+"_nodeids"), n.ints(votes+"_ids")
	weights, err := numbersOf[T](n, votes+"_weights")
	if err != nil {
		return err
	}
	err = sameLengths(listLength{votes + "_nodeids", len(nodeIDs)}, listLength{votes + "_treeids", len(treeIDs)}, listLength{votes + "_ids", len(targets)}, listLength{votes + "_weights", len(weights)})
	if err != nil {
		return err
	}
	f.Votes = make([]trees.Vote, 0, len(weights))
	for i, value := range weights {
		s, known := f.spans[treeIDs[i]]
		at := s.find(nodeIDs[i])
		if !known || at < 0 {
			return fmt.Errorf("weight %d is of tree %d, node %d, which is not there", i, treeIDs[i], nodeIDs[i])
		}
		target := int32(math.MaxInt32)
		if targets[i] >= 0 && targets[i] < math.MaxInt32 {
			target = int32(targets[i])
		}
		f.Votes = append(f.Votes, trees.Vote{Node: at, Target: target, Value: value})
	}
	return nil
}
