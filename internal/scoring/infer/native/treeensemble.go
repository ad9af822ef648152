package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/infer/trees"
)

// treeEnsemble is TreeEnsemble of ai.onnx.ml 5. The leaves have separate lists, and a leaf may
// be the child of many nodes.
func (c *compiler) treeEnsemble(n *node) error {
	if n.in[0].kind == tensor.Double {
		return treeEnsemble[float64](c, n)
	}
	return treeEnsemble[float32](c, n)
}

func treeEnsemble[T trees.Number](c *compiler, n *node) error {
	r := &ensembleReader{node: n, yes: n.ints("nodes_truenodeids"), no: n.ints("nodes_falsenodeids"), yesLeaf: n.ints("nodes_trueleafs"),
		noLeaf: n.ints("nodes_falseleafs"), features: n.ints("nodes_featureids"), missing: n.ints("nodes_missing_value_tracks_true"), targets: n.ints("leaf_targetids")}
	for name, to := range map[string]*[]float64{"nodes_splits": &r.splits, "leaf_weights": &r.weights, "membership_values": &r.members} {
		a, _ := n.attribute(name, onnx.AttributeTensor)
		var err error
		if *to, err = tensorNumbers[T](nil, a.Tensor, name); err != nil {
			return err
		}
	}
	if a, _ := n.attribute("nodes_modes", onnx.AttributeTensor); a.Tensor != nil {
		r.modes = a.Tensor.Ints
	}
	f, err := r.forest()
	if err != nil {
		return err
	}
	f.Targets = int(min(max(n.integer("n_targets", 0), 0), math.MaxInt32))
	aggregate := [...]trees.Aggregate{trees.Average, trees.Sum, trees.Min, trees.Max}
	posts := [...]string{"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"}
	which, post := n.integer("aggregate_function", 1), n.integer("post_transform", 0)
	if which < 0 || int(which) >= len(aggregate) || post < 0 || int(post) >= len(posts) {
		return fmt.Errorf("aggregate_function %d with post_transform %d %w", which, post, onnx.ErrUnsupported)
	}
	if f.Targets > 1 && (posts[post] == "SOFTMAX" || posts[post] == "LOGISTIC") {
		return fmt.Errorf("post_transform %d (%s) %w: ONNX Runtime numbers it in another way than ONNX", post, posts[post], onnx.ErrUnsupported)
	}
	f.Aggregate = aggregate[which]
	return regression[T](c, n, f, nil, posts[post], n.in[0].kind)
}

// ensembleReader has the lists of a TreeEnsemble.
type ensembleReader struct {
	*node
	yes, no, yesLeaf, noLeaf, features, missing, modes, targets []int64
	splits, weights, members                                    []float64
	to                                                          trees.Forest
}

// forest reads the lists. Each child that is a leaf becomes a node, after all nodes.
func (r *ensembleReader) forest() (*trees.Forest, error) {
	count := len(r.yes)
	err := sameLengths(listLength{"nodes_truenodeids", count}, listLength{"nodes_falsenodeids", len(r.no)}, listLength{"nodes_trueleafs", len(r.yesLeaf)}, listLength{"nodes_falseleafs", len(r.noLeaf)},
		listLength{"nodes_featureids", len(r.features)}, listLength{"nodes_modes", len(r.modes)}, listLength{"nodes_splits", len(r.splits)},
		optionalLength("nodes_missing_value_tracks_true", len(r.missing), count))
	if err == nil {
		err = sameLengths(listLength{"leaf_targetids", len(r.targets)}, listLength{"leaf_weights", len(r.weights)})
	}
	if err != nil {
		return nil, err
	}
	r.to.Nodes = make([]trees.Node, count, 2*count+1)
	for i := range count {
		if err := r.branch(i); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	for _, root := range r.ints("tree_roots") {
		if root < 0 || root >= int64(count) {
			return nil, fmt.Errorf("tree_roots has %d; there are %d nodes", root, count)
		}
		r.to.Roots = append(r.to.Roots, int32(root))
	}
	return &r.to, nil
}

func (r *ensembleReader) branch(i int) error {
	modes := [...]trees.Mode{trees.LessOrEqual, trees.Less, trees.GreaterOrEqual, trees.Greater, trees.Equal, trees.NotEqual, trees.Member}
	if mode := r.modes[i]; mode < 0 || int(mode) >= len(modes) {
		return fmt.Errorf("mode %d %w", mode, onnx.ErrUnsupported)
	}
	if r.features[i] < 0 || r.features[i] >= math.MaxInt32 {
		return fmt.Errorf("it asks feature %d", r.features[i])
	}
	n := trees.Node{Mode: modes[r.modes[i]], Value: r.splits[i], Feature: int32(r.features[i]), Missing: len(r.missing) > 0 && r.missing[i] == 1}
	if n.Mode == trees.Member {
		n.Set, n.Value = int32(len(r.to.Sets)), 0
		r.to.Sets = append(r.to.Sets, r.set())
	}
	var err, wrong error
	n.True, err = r.child(r.yes[i], r.yesLeaf[i] != 0)
	n.False, wrong = r.child(r.no[i], r.noLeaf[i] != 0)
	r.to.Nodes[i] = n
	return errors.Join(err, wrong)
}

// set takes the next set: the numbers up to NaN.
func (r *ensembleReader) set() []float64 {
	for i, v := range r.members {
		if v != v {
			set := r.members[:i]
			r.members = r.members[i+1:]
			return set
		}
	}
	set := r.members
	r.members = nil
	return set
}

// child returns the index of a child in the forest's nodes.
func (r *ensembleReader) child(id int64, leaf bool) (int32, error) {
	if !leaf {
		if id < 0 || id >= int64(len(r.yes)) {
			return 0, fmt.Errorf("its child is node %d; there are %d", id, len(r.yes))
		}
		return int32(id), nil
	}
	if id < 0 || id >= int64(len(r.weights)) {
		return 0, fmt.Errorf("its child is leaf %d; there are %d", id, len(r.weights))
	}
	target := int32(math.MaxInt32)
	if r.targets[id] >= 0 && r.targets[id] < math.MaxInt32 {
		target = int32(r.targets[id])
	}
	at := int32(len(r.to.Nodes))
	r.to.Nodes = append(r.to.Nodes, trees.Node{})
	r.to.Votes = append(r.to.Votes, trees.Vote{Node: at, Target: target, Value: r.weights[id]})
	return at, nil
}

// listedForest is a forest as TreeEnsembleClassifier and TreeEnsembleRegressor list it: a list for
// each field of the nodes, and for each field of the weights.
type listedForest struct {
	trees.Forest
	base, values, weights []float64

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

// listed has the memory of forests that were packed. As garbage it would be five times the packed forest.
var listed = sync.Pool{New: func() any { return &listedForest{} }}

// mostListed is the number of nodes whose memory is kept.
const mostListed = 1 << 16

// giveBack lets the next forest have the memory. Nothing may use the nodes and votes any more.
func (f *listedForest) giveBack() {
	*f = listedForest{Forest: trees.Forest{Nodes: f.Nodes[:0], Votes: f.Votes[:0]}, values: f.values[:0], weights: f.weights[:0]}
	if cap(f.Nodes)+cap(f.Votes) <= mostListed {
		listed.Put(f)
	}
}

// readListed reads the lists. votes is "class" or "target", as their names begin.
func readListed[T trees.Number](n *node, votes string) (*listedForest, error) {
	f := listed.Get().(*listedForest)
	f.treeIDs, f.nodeIDs = n.ints("nodes_treeids"), n.ints("nodes_nodeids")
	var err error
	if f.base, err = numbersOf[T](nil, n, "base_values"); err != nil {
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

// numbersOf adds a list of numbers, which may be a tensor of the input's type.
func numbersOf[T trees.Number](to []float64, n *node, name string) ([]float64, error) {
	list := n.floats(name)
	a, ok := n.attribute(name+"_as_tensor", onnx.AttributeTensor)
	switch {
	case !ok:
		return addDoubles(to, list), nil
	case len(list) > 0:
		return nil, fmt.Errorf("it has both %s and %s_as_tensor", name, name)
	}
	return tensorNumbers[T](to, a.Tensor, name+"_as_tensor")
}

func tensorNumbers[T trees.Number](to []float64, t *tensor.Tensor, name string) ([]float64, error) {
	_, double := any(T(0)).(float64)
	switch {
	case t == nil:
		return to, nil
	case double && t.Type == tensor.Double:
		return append(to, t.Doubles...), nil
	case double || t.Type != tensor.Float:
		return nil, fmt.Errorf("%s of type %s with inputs of another %w", name, typeName(t.Type), onnx.ErrUnsupported)
	}
	return addDoubles(to, t.Floats), nil
}

func addDoubles(to []float64, x []float32) []float64 {
	to = slices.Grow(to, len(x))
	for _, v := range x {
		to = append(to, float64(v))
	}
	return to
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
	values, err := numbersOf[T](f.values, n, "nodes_values")
	if err != nil {
		return err
	}
	f.values = values
	l := nodeLists{values, n.texts("nodes_modes"), n.ints("nodes_featureids"), n.ints("nodes_truenodeids"), n.ints("nodes_falsenodeids"), n.ints("nodes_missing_value_tracks_true")}
	count := len(f.nodeIDs)
	err = sameLengths(listLength{"nodes_nodeids", count}, listLength{"nodes_values", len(values)}, listLength{"nodes_modes", len(l.modes)}, listLength{"nodes_featureids", len(l.features)},
		listLength{"nodes_truenodeids", len(l.yes)}, listLength{"nodes_falsenodeids", len(l.no)}, optionalLength("nodes_missing_value_tracks_true", len(l.missing), count))
	if err != nil {
		return err
	}
	f.Nodes = slices.Grow(f.Nodes, count)[:count]
	clear(f.Nodes)
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
	weights, err := numbersOf[T](f.weights, n, votes+"_weights")
	if err != nil {
		return err
	}
	f.weights = weights
	err = sameLengths(listLength{votes + "_nodeids", len(nodeIDs)}, listLength{votes + "_treeids", len(treeIDs)}, listLength{votes + "_ids", len(targets)}, listLength{votes + "_weights", len(weights)})
	if err != nil {
		return err
	}
	f.Votes = slices.Grow(f.Votes, len(weights))
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
