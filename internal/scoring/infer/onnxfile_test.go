package infer

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// wire writes ONNX files, which are protocol buffers.
type wire []byte

func (w wire) number(field int, v uint64) wire {
	return binary.AppendUvarint(binary.AppendUvarint(w, uint64(field)<<3), v)
}

func (w wire) part(field int, p []byte) wire {
	return append(binary.AppendUvarint(binary.AppendUvarint(w, uint64(field)<<3|2), uint64(len(p))), p...)
}

func (w wire) text(field int, s string) wire { return w.part(field, []byte(s)) }

func node(op string, inputs []string, output string) wire {
	var w wire
	for _, in := range inputs {
		w = w.text(1, in)
	}
	return w.text(2, output).text(4, op)
}

func weights(name string, values []float32, dims ...int) wire {
	var w wire
	for _, d := range dims {
		w = w.number(1, uint64(d))
	}
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return w.number(2, 1).text(8, name).part(9, raw)
}

// floatsOf describes a table of floats with the given width.
func floatsOf(name string, width int) wire {
	shape := wire{}.part(1, wire{}.text(2, "rows")).part(1, wire{}.number(1, uint64(width)))
	return wire{}.text(1, name).part(2, wire{}.part(1, wire{}.number(1, 1).part(2, shape)))
}

func modelOf(graph wire, metadata ...string) []byte {
	w := wire{}.number(1, 8).part(7, graph).part(8, wire{}.number(2, 17))
	for i := 0; i < len(metadata); i += 2 {
		w = w.part(14, wire{}.text(1, metadata[i]).text(2, metadata[i+1]))
	}
	return w
}

// perceptron returns a model like those of the bots: in numbers, a hidden layer with ReLU, and
// out scores with softmax.
func perceptron(seed uint64, in, hidden, out int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64() / 20)
		}
		return v
	}
	graph := wire{}.
		part(1, node("MatMul", []string{"x", "w1"}, "a")).part(1, node("Add", []string{"a", "b1"}, "b")).part(1, node("Relu", []string{"b"}, "c")).
		part(1, node("MatMul", []string{"c", "w2"}, "d")).part(1, node("Add", []string{"d", "b2"}, "e")).part(1, node("Softmax", []string{"e"}, "y")).
		text(2, "perceptron").
		part(5, weights("w1", draw(in*hidden), in, hidden)).part(5, weights("b1", draw(hidden), hidden)).
		part(5, weights("w2", draw(hidden*out), hidden, out)).part(5, weights("b2", draw(out), out)).
		part(11, floatsOf("x", in)).part(12, floatsOf("y", out))
	return modelOf(graph)
}

// simple returns a graph of one operator, with an input of one number per row.
func simple(op string, metadata ...string) []byte {
	return modelOf(wire{}.part(1, node(op, []string{"x"}, "y")).text(2, "simple").part(11, floatsOf("x", 1)).part(12, floatsOf("y", 1)), metadata...)
}

// forest returns a regression of full trees, as boosting libraries export it. It has trees·(2^(depth+1)-1)
// nodes with random thresholds.
func forest(seed uint64, trees, depth, features int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	lists := map[string]wire{}
	add := func(name string, v int) { lists[name] = lists[name].number(8, uint64(v)) }
	real := func(name string, v float64) {
		lists[name] = binary.LittleEndian.AppendUint32(binary.AppendUvarint(lists[name], 7<<3|5), math.Float32bits(float32(v)))
	}
	inner := 1<<depth - 1
	for tree := range trees {
		for n := range 2*inner + 1 {
			mode, yes, no, feature, threshold := "BRANCH_LEQ", 2*n+1, 2*n+2, r.IntN(features), r.NormFloat64()
			if n >= inner {
				mode, yes, no, feature, threshold = "LEAF", 0, 0, 0, 0
				add("target_treeids", tree)
				add("target_nodeids", n)
				add("target_ids", 0)
				real("target_weights", r.NormFloat64())
			}
			add("nodes_treeids", tree)
			add("nodes_nodeids", n)
			add("nodes_featureids", feature)
			add("nodes_truenodeids", yes)
			add("nodes_falsenodeids", no)
			real("nodes_values", threshold)
			lists["nodes_modes"] = lists["nodes_modes"].text(9, mode)
		}
	}
	w := node("TreeEnsembleRegressor", []string{"x"}, "y").text(7, "ai.onnx.ml").part(5, wire{}.text(1, "n_targets").number(3, 1).number(20, 2))
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		kind := map[bool]uint64{true: 6, false: 7}[strings.HasSuffix(name, "values") || strings.HasSuffix(name, "weights")]
		if name == "nodes_modes" {
			kind = 8
		}
		w = w.part(5, append(wire{}.text(1, name), lists[name]...).number(20, kind))
	}
	graph := wire{}.part(1, w).text(2, "forest").part(11, floatsOf("x", features)).part(12, floatsOf("y", 1))
	return append(modelOf(graph), wire{}.part(8, wire{}.text(1, "ai.onnx.ml").number(2, 3))...)
}
