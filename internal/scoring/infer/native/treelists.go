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
	var all []float64
	for _, v := range n.floats(name) {
		all = append(all, float64(v))
	}
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
	var all []float64
	for _, v := range t.Floats {
		all = append(all, float64(v))
	}
	return all, nil
}

// findTrees finds each tree's nodes. The first listed node of a tree is its root.
func (f *listedForest) findTrees() error {
	if len(f.treeIDs) != len(f.nodeIDs) {
		return fmt.Errorf("its lists have different lengths: %d in nodes_treeids and %d in nodes_nodeids", len(f.treeIDs), len(f.nodeIDs))
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

func readNodes[T trees.Number](n *node, f *listedForest) error {
	values, err := numbersOf[T](n, "nodes_values")
	if err != nil {
		return err
	}
	modes, features := n.texts("nodes_modes"), n.ints("nodes_featureids")
	yes, no, missing := n.ints("nodes_truenodeids"), n.ints("nodes_falsenodeids"), n.ints("nodes_missing_value_tracks_true")
	count := len(f.nodeIDs)
	for name, have := range map[string]int{"nodes_values": len(values), "nodes_modes": len(modes), "nodes_featureids": len(features), "nodes_truenodeids": len(yes), "nodes_falsenodeids": len(no)} {
		if have != count {
			return fmt.Errorf("its lists have different lengths: %d in nodes_nodeids and %d in %s", count, have, name)
		}
	}
	if len(missing) != 0 && len(missing) != count {
		return fmt.Errorf("its lists have different lengths: %d in nodes_nodeids and %d in nodes_missing_value_tracks_true", count, len(missing))
	}
	f.Nodes = make([]trees.Node, count)
	for _, root := range f.Roots {
		id := f.treeIDs[root]
		s := f.spans[id]
		for i := s.from; i < s.to; i++ {
			mode, known := treeModes[modes[i]]
			if !known {
				return fmt.Errorf("tree %d, node %d: mode %q %w", id, f.nodeIDs[i], modes[i], onnx.ErrUnsupported)
			}
			to := trees.Node{Mode: mode, Value: values[i]}
			if mode != trees.Leaf {
				if features[i] < 0 || features[i] > math.MaxInt32-1 {
					return fmt.Errorf("tree %d, node %d asks feature %d", id, f.nodeIDs[i], features[i])
				}
				to.Feature, to.True, to.False = int32(features[i]), s.find(yes[i]), s.find(no[i])
				to.Missing = len(missing) > 0 && missing[i] == 1
				if to.True < 0 || to.False < 0 {
					return fmt.Errorf("tree %d, node %d: its children are %d and %d, and the tree does not have both", id, f.nodeIDs[i], yes[i], no[i])
				}
			}
			f.Nodes[i] = to
		}
	}
	return nil
}

func readVotes[T trees.Number](n *node, f *listedForest, votes string) error {
	treeIDs, nodeIDs, targets := n.ints(votes+"_treeids"), n.ints(votes+"_nodeids"), n.ints(votes+"_ids")
	weights, err := numbersOf[T](n, votes+"_weights")
	if err != nil {
		return err
	}
	if len(treeIDs) != len(nodeIDs) || len(targets) != len(nodeIDs) || len(weights) != len(nodeIDs) {
		return fmt.Errorf("its lists have different lengths: %d in %s_nodeids, %d in %s_treeids, %d in %s_ids and %d in %s_weights",
			len(nodeIDs), votes, len(treeIDs), votes, len(targets), votes, len(weights), votes)
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
