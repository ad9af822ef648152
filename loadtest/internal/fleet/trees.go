package fleet

import (
	"encoding/binary"
	"math"
)

// Trees is the shape of a regression model: the sum of the leaves of complete binary trees.
type Trees struct {
	Count    int `yaml:"count"`
	Depth    int `yaml:"depth"`
	Features int `yaml:"features"`
}

// inner is the number of a tree's inner nodes, which come before its leaves. The children of node n
// are the nodes 2n+1, where a row goes whose feature is at most the threshold, and 2n+2.
func (t Trees) inner() int { return 1<<t.Depth - 1 }

// Nodes returns the number of nodes of all trees.
func (t Trees) Nodes() int { return t.Count * (2*t.inner() + 1) }

// treeNode is an inner node, or a leaf, whose value is its part of the answer.
type treeNode struct {
	feature int
	value   float32
}

// draw returns the nodes of all trees, one tree after another.
func (t Trees) draw(seed uint64) []treeNode {
	r := source(seed)
	all := make([]treeNode, t.Nodes())
	for i := range all {
		if i%(2*t.inner()+1) < t.inner() {
			all[i] = treeNode{int(r.next() % uint64(t.Features)), r.drawUnit()}
		} else {
			all[i].value = (2*r.drawUnit() - 1) / float32(t.Count)
		}
	}
	return all
}

// File returns the trees as an ONNX file, with nodes computed from the seed.
func (t Trees) File(seed uint64) []byte {
	var trees, nodes, features, values, modes, yes, no, leafTrees, leafNodes, targets, weights message
	each := 2*t.inner() + 1
	for i, n := range t.draw(seed) {
		tree, id := i/each, i%each
		trees.number(attrInts, tree)
		nodes.number(attrInts, id)
		features.number(attrInts, n.feature)
		if id < t.inner() {
			values.float(attrFloats, n.value)
			modes.text(attrStrings, "BRANCH_LEQ")
			yes.number(attrInts, 2*id+1)
			no.number(attrInts, 2*id+2)
			continue
		}
		values.float(attrFloats, 0)
		modes.text(attrStrings, "LEAF")
		yes.number(attrInts, 0)
		no.number(attrInts, 0)
		leafTrees.number(attrInts, tree)
		leafNodes.number(attrInts, id)
		targets.number(attrInts, 0)
		weights.float(attrFloats, n.value)
	}
	op := node("TreeEnsembleRegressor", Output, Input)
	op.text(7, "ai.onnx.ml")
	for _, a := range []struct {
		name   string
		kind   int
		values message
	}{{"nodes_treeids", typeInts, trees}, {"nodes_nodeids", typeInts, nodes}, {"nodes_featureids", typeInts, features}, {"nodes_values", typeFloats, values},
		{"nodes_modes", typeStrings, modes}, {"nodes_truenodeids", typeInts, yes}, {"nodes_falsenodeids", typeInts, no}, {"target_treeids", typeInts, leafTrees},
		{"target_nodeids", typeInts, leafNodes}, {"target_ids", typeInts, targets}, {"target_weights", typeFloats, weights}} {
		op.attribute(a.name, a.kind, a.values)
	}
	var one, graph, opset, learned, model message
	op.attribute("n_targets", typeInt, *one.number(attrInt, 1))
	graph.bytes(1, op).text(2, "fleet").bytes(11, port(Input, t.Features)).bytes(12, port(Output, 1))
	opset.text(1, "").number(2, 13)
	learned.text(1, "ai.onnx.ml").number(2, 3)
	return *model.number(1, 8).text(2, "tidemill loadtest").bytes(7, graph).bytes(8, opset).bytes(8, learned)
}

// Oracle returns a function that answers for a row in the plainest way.
func (t Trees) Oracle(seed uint64) func(row []float32) float64 {
	all, each := t.draw(seed), 2*t.inner()+1
	return func(row []float32) (sum float64) {
		for tree := range t.Count {
			at, of := 0, all[tree*each:]
			for at < t.inner() {
				if row[of[at].feature] <= of[at].value {
					at = 2*at + 1
				} else {
					at = 2*at + 2
				}
			}
			sum += float64(of[at].value)
		}
		return sum
	}
}

// Numbers of AttributeProto: the fields of values, and the types.
const (
	attrInt, attrFloats, attrInts, attrStrings = 3, 7, 8, 9
	typeInt, typeFloats, typeInts, typeStrings = 2, 6, 7, 8
)

// attribute adds an attribute with its encoded values to a node.
func (m *message) attribute(name string, kind int, values message) {
	var a message
	a.text(1, name)
	a = append(a, values...)
	m.bytes(5, *a.number(20, kind))
}

func (m *message) float(field int, v float32) *message {
	*m = binary.LittleEndian.AppendUint32(binary.AppendUvarint(*m, uint64(field)<<3|5), math.Float32bits(v))
	return m
}
