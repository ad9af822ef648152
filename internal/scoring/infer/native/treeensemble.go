package native

import (
	"errors"
	"fmt"
	"math"

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
		if *to, err = tensorNumbers[T](a.Tensor, name); err != nil {
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
