package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// twoTrees returns the attributes of a small classifier. The nodes of the second tree are not numbered
// from 0.
func twoTrees() attributes {
	return attributes{
		"nodes_treeids": []int{0, 0, 0, 4, 4, 4}, "nodes_nodeids": []int{0, 1, 2, 3, 4, 5}, "nodes_featureids": []int{0, 0, 0, 1, 0, 0},
		"nodes_truenodeids": []int{1, 0, 0, 4, 0, 0}, "nodes_falsenodeids": []int{2, 0, 0, 5, 0, 0}, "nodes_values": []float32{0.5, 0, 0, -1, 0, 0},
		"nodes_modes":   []string{"BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"},
		"class_treeids": []int{0, 0, 4, 4}, "class_nodeids": []int{1, 2, 4, 5}, "class_ids": []int{0, 0, 0, 0}, "class_weights": []float32{1, -1, 2, -3},
		"classlabels_int64s": []int{10, 20},
	}
}

func treesFile(set attributes, width int) []byte {
	return newGraph().input("x", tensor.Float, tensor.Any, width).node(ml, "TreeEnsembleClassifier", []string{"x"}, []string{"label", "scores"}, set).
		output("label", tensor.Int64, tensor.Any).output("scores", tensor.Float, tensor.Any, 2).file()
}

// treesOfDoubles returns the trees of twoTrees as a regression with inputs in float64.
func treesOfDoubles() []byte {
	set := twoTrees()
	for _, field := range []string{"treeids", "nodeids", "ids", "weights"} {
		set["target_"+field] = set["class_"+field]
	}
	set["n_targets"] = 2
	return newGraph().input("x", tensor.Double, tensor.Any, 2).node(ml, "TreeEnsembleRegressor", []string{"x"}, []string{"y"}, set).output("y", tensor.Float, tensor.Any, 2).file()
}

func TestTwoClassesWithWeightsForOne(t *testing.T) {
	set := twoTrees()
	set["nodes_missing_value_tracks_true"] = []int{1, 0, 0, 0, 0, 0}
	p, out := load(t, treesFile(set, 2)), newTensors(2)
	nan := float32(math.NaN())
	if err := p.Run([]tensor.Tensor{*floats([]int{4, 2}, 0.5, -1, 0.6, -2, nan, nan, 0, -2)}, out); err != nil {
		t.Fatal(err)
	}
	if want := []int64{10, 20, 10, 20}; !slices.Equal(out[0].Ints, want) {
		t.Errorf("the labels are %v, want %v", out[0].Ints, want)
	}
	if want := []float32{2, -2, -1, 1, 2, -2, -3, 3}; !slices.Equal(out[1].Floats, want) {
		t.Errorf("the scores are %v, want %v", out[1].Floats, want)
	}
	if got := p.Labels(); !slices.Equal(got, []string{"10", "20"}) {
		t.Errorf("the classes are called %v", got)
	}
}

// Hostile lists are refused, and the error says what is wrong.
func TestHostileTreesAreRefused(t *testing.T) {
	for want, change := range map[string]func(attributes){
		"6 in nodes_nodeids and 5 in nodes_values":                     func(a attributes) { a["nodes_values"] = make([]float32, 5) },
		"6 in nodes_nodeids and 0 in nodes_modes":                      func(a attributes) { delete(a, "nodes_modes") },
		"6 in nodes_nodeids and 5 in nodes_treeids":                    func(a attributes) { a["nodes_treeids"] = []int{0, 0, 0, 4, 4} },
		"6 in nodes_nodeids and 1 in nodes_missing_value_tracks_true":  func(a attributes) { a["nodes_missing_value_tracks_true"] = []int{1} },
		"4 in class_nodeids and 3 in class_treeids":                    func(a attributes) { a["class_treeids"] = []int{0, 0, 4} },
		"tree 4 has two nodes 4":                                       func(a attributes) { a["nodes_nodeids"] = []int{0, 1, 2, 3, 4, 4} },
		"the nodes of tree 0 are not listed together":                  func(a attributes) { a["nodes_treeids"] = []int{0, 0, 4, 4, 0, 4} },
		"tree 0, node 0 has the children 1 and 3, and the tree":        func(a attributes) { a["nodes_falsenodeids"] = []int{3, 0, 0, 5, 0, 0} },
		"tree 4, node 3 has the children 4 and 2147483648":             func(a attributes) { a["nodes_falsenodeids"] = []int{2, 0, 0, 1 << 31, 0, 0} },
		"node 1 of the list is the child of two nodes":                 func(a attributes) { a["nodes_falsenodeids"] = []int{1, 0, 0, 5, 0, 0} },
		"node 3 of the list is the child of two nodes, or part of a c": func(a attributes) { a["nodes_falsenodeids"] = []int{2, 0, 0, 3, 0, 0} },
		"compares with NaN":                                            func(a attributes) { a["nodes_values"] = []float32{0, 0, 0, float32(math.NaN()), 0, 0} },
		"its trees ask feature 2; an event has 2":                      func(a attributes) { a["nodes_featureids"] = []int{0, 0, 0, 2, 0, 0} },
		"tree 4, node 3 asks feature 2147483648":                       func(a attributes) { a["nodes_featureids"] = []int{0, 0, 0, 1 << 31, 0, 0} },
		"tree 4, node 3 asks feature -1":                               func(a attributes) { a["nodes_featureids"] = []int{0, 0, 0, -1, 0, 0} },
		"weight 3 is for target or class 2; there are 2":               func(a attributes) { a["class_ids"] = []int{0, 0, 0, 2} },
		"weight 2 is of tree 4, node 9":                                func(a attributes) { a["class_nodeids"] = []int{1, 2, 9, 5} },
		"weight 1 is of tree 7, node 2":                                func(a attributes) { a["class_treeids"] = []int{0, 7, 4, 4} },
		"weight 2 is of node 3 of the list, which is not a leaf":       func(a attributes) { a["class_nodeids"] = []int{1, 2, 3, 5} },
		"its classes have no names":                                    func(a attributes) { delete(a, "classlabels_int64s") },
		"it has 3 base values for 2 classes":                           func(a attributes) { a["base_values"] = make([]float32, 3) },
		"it has both base_values and base_values_as_tensor": func(a attributes) {
			a["base_values"], a["base_values_as_tensor"] = make([]float32, 1), floats([]int{1}, 1)
		},
	} {
		set := twoTrees()
		change(set)
		if _, err := Load(treesFile(set, 2)); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, onnx.ErrUnsupported) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, change := range map[string]func(attributes){
		`mode "BRANCH_MAYBE"`: func(a attributes) { a["nodes_modes"].([]string)[0] = "BRANCH_MAYBE" },
		"post_transform TANH": func(a attributes) { a["post_transform"] = "TANH" },
		"1 classes":           func(a attributes) { a["classlabels_int64s"] = []int{1} },
		"nodes_values_as_tensor of type double": func(a attributes) {
			delete(a, "nodes_values")
			a["nodes_values_as_tensor"] = &tensor.Tensor{Type: tensor.Double, Shape: []int{6}, Doubles: make([]float64, 6)}
		},
	} {
		set := twoTrees()
		change(set)
		if _, err := Load(treesFile(set, 2)); !errors.Is(err, onnx.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q and that ONNX Runtime may take it", err, want)
		}
	}
}

// The width of an event may be open until a run.
func TestEventsThatAreTooNarrowForTheTrees(t *testing.T) {
	p := load(t, treesFile(twoTrees(), tensor.Any))
	if err := p.Run([]tensor.Tensor{*floats([]int{3, 1}, 1, 2, 3)}, newTensors(2)); err == nil || !strings.Contains(err.Error(), "ask feature 1; the events are of [3 1]") {
		t.Error(err)
	}
	if err := p.Run([]tensor.Tensor{*floats([]int{1, 3}, 1, 2, 3)}, newTensors(2)); err != nil {
		t.Error(err)
	}
}

// A forest that asks too many different things is left to ONNX Runtime.
func TestForestsThatAreTooLarge(t *testing.T) {
	var g grove
	for feature := range 1 << 13 {
		g.grow(newRandom(1), 2, 1, allModes[:1])
		g.features[len(g.features)-3] = feature
	}
	set := g.set(newRandom(1))
	g.votes(newRandom(1), set, "class", 1, 1, func(int) int { return 0 }, func() float32 { return 1 })
	set["classlabels_int64s"] = []int{0, 1}
	if _, err := Load(treesFile(set, 1<<13)); !errors.Is(err, onnx.ErrUnsupported) || !strings.Contains(err.Error(), "tree 8191: it is larger than this engine packs") {
		t.Error(err)
	}
}

// Walking counts against the limit of a run, so that deep trees do not take a processor for long.
func TestWalksCountAgainstTheLimit(t *testing.T) {
	p := load(t, treesFile(twoTrees(), 2))
	p.limits.products = 100
	err := p.Run([]tensor.Tensor{*floats([]int{50, 2}, make([]float32, 100)...)}, newTensors(2))
	if err == nil || !strings.Contains(err.Error(), "ask for fewer rows at once") {
		t.Error(err)
	}
}

// FuzzTrees loads ensembles whose lists are any small numbers, and runs those that load.
func FuzzTrees(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01\x02\x01\x00\x01\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00"), []byte("\x00\x01\x00\x09\x00\x02\x01\xf0"), 3)
	f.Fuzz(func(t *testing.T, nodes, votes []byte, rows int) {
		if len(nodes)+len(votes) > 1<<12 {
			return
		}
		set := attributes{"classlabels_int64s": []int{3, 4, 5}}
		var lists [8][]int
		modes, values := []string{}, []float32{}
		for ; len(nodes) >= 6; nodes = nodes[6:] {
			for i := range 5 {
				lists[i] = append(lists[i], int(int8(nodes[i])))
			}
			modes = append(modes, append(slices.Clone(allModes), "LEAF", "LEAF")[nodes[5]%8])
			values = append(values, float32(int8(nodes[5]))/8)
		}
		for ; len(votes) >= 4; votes = votes[4:] {
			for i := range 3 {
				lists[5+i] = append(lists[5+i], int(int8(votes[i])))
			}
		}
		for i, name := range []string{"nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "class_treeids", "class_nodeids", "class_ids"} {
			set[name] = lists[i]
		}
		set["nodes_modes"], set["nodes_values"], set["class_weights"] = modes, values, make([]float32, len(lists[5]))
		p, err := Load(treesFile(set, 4))
		if err != nil {
			return
		}
		in := fed(p, rows)
		out := newTensors(2)
		if err := p.Run(in, out); err == nil && len(out[1].Floats) != 3*in[0].Shape[0] {
			t.Error(fmt.Sprint("there are ", len(out[1].Floats), " scores for ", in[0].Shape, " events"))
		}
	})
}
