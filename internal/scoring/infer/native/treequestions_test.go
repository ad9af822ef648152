package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// grove lists random trees as TreeEnsembleClassifier and TreeEnsembleRegressor do.
type grove struct {
	trees, ids, features, yes, no, missing []int
	values                                 []float32
	modes                                  []string
	leaves                                 [][2]int // tree and node
}

// grow appends a tree with some leaves. Its thresholds are few, so that inputs are equal to them.
func (g *grove) grow(r *rand.Rand, leaves, features int, modes []string) {
	tree, first := 0, len(g.ids)
	if first > 0 {
		tree = g.trees[first-1] + 1
	}
	leaf := func() {
		g.trees, g.ids, g.modes = append(g.trees, tree), append(g.ids, len(g.ids)-first), append(g.modes, "LEAF")
		g.features, g.yes, g.no, g.values, g.missing = append(g.features, 0), append(g.yes, 0), append(g.no, 0), append(g.values, 0), append(g.missing, 0)
	}
	leaf()
	open := []int{first}
	for range leaves - 1 {
		k := r.IntN(len(open))
		at := open[k]
		g.modes[at], g.features[at], g.values[at], g.missing[at] = modes[r.IntN(len(modes))], r.IntN(features), threshold(r), r.IntN(2)
		leaf()
		g.yes[at] = len(g.ids) - 1 - first
		leaf()
		g.no[at] = len(g.ids) - 1 - first
		open[k] = len(g.ids) - 2
		open = append(open, len(g.ids)-1)
	}
	for at := first; at < len(g.ids); at++ {
		if g.modes[at] == "LEAF" {
			g.leaves = append(g.leaves, [2]int{tree, g.ids[at]})
		}
	}
}

func threshold(r *rand.Rand) float32 { return float32(r.IntN(7)-3) / 2 }

// set returns the attributes without the weights.
func (g *grove) set(r *rand.Rand) attributes {
	set := attributes{"nodes_treeids": g.trees, "nodes_nodeids": g.ids, "nodes_featureids": g.features, "nodes_truenodeids": g.yes,
		"nodes_falsenodeids": g.no, "nodes_values": g.values, "nodes_modes": g.modes}
	if r.IntN(2) == 0 {
		set["nodes_missing_value_tracks_true"] = g.missing
	}
	return set
}

// votes adds the weights: some for each leaf, for targets from a range.
func (g *grove) votes(r *rand.Rand, set attributes, name string, least, most int, target func(tree int) int, weight func() float32) {
	var trees, ids, targets []int
	var weights []float32
	for _, leaf := range g.leaves {
		for range least + r.IntN(most-least+1) {
			trees, ids, targets = append(trees, leaf[0]), append(ids, leaf[1]), append(targets, target(leaf[0]))
			weights = append(weights, weight())
		}
	}
	set[name+"_treeids"], set[name+"_nodeids"], set[name+"_ids"], set[name+"_weights"] = trees, ids, targets, weights
}

var allModes = []string{"BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"}

// growModes returns what the nodes of an ensemble ask. Trained trees have one mode.
func growModes(r *rand.Rand) []string {
	if r.IntN(3) == 0 {
		return allModes
	}
	return allModes[r.IntN(len(allModes)):][:1]
}

// treesAtRandom returns an ensemble: a classifier or a regressor.
func treesAtRandom(r *rand.Rand) *question {
	features := 1 + r.IntN(6)
	var g grove
	modes := growModes(r)
	for range 1 + r.IntN(9) {
		g.grow(r, 1+r.IntN(12), features, modes)
	}
	switch r.IntN(5) {
	case 0, 1:
		return forestAtRandom(r, &g, features)
	case 2, 3:
		return votersAtRandom(r, &g, features)
	}
	return ensembleAtRandom(r, &g, features)
}

// ensembleAtRandom returns the same trees as a TreeEnsemble. Some leaves are the children of two
// nodes, and some nodes ask for one of a set.
func ensembleAtRandom(r *rand.Rand, g *grove, features int) *question {
	var roots, yes, no, yesLeaf, noLeaf, missing, targets []int
	var modes []int64
	var splits, weights, members []float64
	targetCount := 1 + r.IntN(3)
	at := make([]int, len(g.ids)) // new index of each node or leaf
	nodes := 0
	for i, mode := range g.modes {
		switch {
		case mode != "LEAF":
			at[i] = nodes
			nodes++
		case len(weights) > 0 && r.IntN(5) == 0:
			at[i] = len(weights) - 1
		default:
			at[i] = len(weights)
			weights, targets = append(weights, r.NormFloat64()), append(targets, r.IntN(targetCount))
		}
	}
	var asked []int
	for i, mode := range g.modes {
		if mode == "LEAF" {
			continue
		}
		first := i - g.ids[i]
		if g.ids[i] == 0 {
			roots = append(roots, at[i])
		}
		leaf := func(id int) int {
			if g.modes[first+id] == "LEAF" {
				return 1
			}
			return 0
		}
		yes, no, yesLeaf, noLeaf = append(yes, at[first+g.yes[i]]), append(no, at[first+g.no[i]]), append(yesLeaf, leaf(g.yes[i])), append(noLeaf, leaf(g.no[i]))
		kind := slices.Index(allModes, mode)
		if r.IntN(6) == 0 {
			kind = 6
			for range 1 + r.IntN(3) {
				members = append(members, float64(r.IntN(4)))
			}
			members = append(members, math.NaN())
		}
		modes, splits, missing, asked = append(modes, int64(kind)), append(splits, float64(g.values[i])), append(missing, g.missing[i]), append(asked, g.features[i])
	}
	kind := []tensor.Type{tensor.Float, tensor.Double}[r.IntN(2)]
	list := func(v []float64) *tensor.Tensor {
		if kind == tensor.Double {
			return &tensor.Tensor{Type: kind, Shape: []int{len(v)}, Doubles: v}
		}
		t := floats([]int{len(v)})
		for _, v := range v {
			t.Floats = append(t.Floats, float32(v))
		}
		return t
	}
	set := attributes{"n_targets": targetCount, "post_transform": 0, "aggregate_function": r.IntN(4), "tree_roots": roots, "nodes_truenodeids": yes, "nodes_falsenodeids": no, "nodes_trueleafs": yesLeaf,
		"nodes_falseleafs": noLeaf, "nodes_featureids": asked, "nodes_missing_value_tracks_true": missing, "leaf_targetids": targets, "leaf_weights": list(weights), "nodes_splits": list(splits),
		"nodes_modes": &tensor.Tensor{Type: 2, Shape: []int{len(modes)}, Ints: modes}}
	if nodes == 0 { // ONNX Runtime refuses it
		return votersAtRandom(r, g, features)
	}
	if len(members) > 0 {
		set["membership_values"] = list(members)
	}
	graph := newGraph().input("x", kind, tensor.Any, features).node(ml, "TreeEnsemble", []string{"x"}, []string{"y"}, set).output("y", kind, tensor.Any, targetCount)
	graph.opset[ml] = 5
	return &question{fmt.Sprint("ensemble ", set["aggregate_function"], " ", set["post_transform"], " ", targetCount, kind), graph.file(), []tensor.Tensor{*events(r, kind, features)}, 1}
}

func forestAtRandom(r *rand.Rand, g *grove, features int) *question {
	targets := 1 + r.IntN(4)
	post := []string{"NONE", "LOGISTIC", "SOFTMAX", "NONE"}[r.IntN(4)]
	aggregate := []string{"SUM", "SUM", "AVERAGE", "MIN", "MAX"}[r.IntN(5)]
	set := g.set(r)
	set["n_targets"], set["post_transform"], set["aggregate_function"] = targets, post, aggregate
	if r.IntN(2) == 0 {
		set["base_values"] = random(r, targets).Floats
	}
	least, most := 1, 1+r.IntN(3)
	if targets > 1 {
		least = r.IntN(2)
	}
	g.votes(r, set, "target", least, most, func(int) int { return r.IntN(targets) }, func() float32 { return float32(r.NormFloat64()) })
	kind := []tensor.Type{tensor.Float, tensor.Double}[r.IntN(2)]
	file := newGraph().input("x", kind, tensor.Any, features).node(ml, "TreeEnsembleRegressor", []string{"x"}, []string{"y"}, set).
		output("y", tensor.Float, tensor.Any, targets).file()
	return &question{fmt.Sprint("forest ", aggregate, " ", post, " ", targets, kind, len(g.leaves)), file, []tensor.Tensor{*events(r, kind, features)}, 1}
}

func votersAtRandom(r *rand.Rand, g *grove, features int) *question {
	classes := 2 + r.IntN(4)
	set, kind := g.set(r), numeric[r.IntN(len(numeric))]
	set["post_transform"] = []string{"NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"}[r.IntN(4)]
	labels := tensor.Int64
	if r.IntN(2) == 0 {
		labels = tensor.String
		set["classlabels_strings"] = []string{"a", "b", "c", "d", "e"}[:classes]
	} else {
		set["classlabels_int64s"] = []int{0, 1, 5, 7, 9}[:classes]
	}
	target, name := func(int) int { return r.IntN(classes) }, "voters"
	least, most := 1, 1+r.IntN(3)
	if classes == 2 {
		which := r.IntN(2)
		target, name, least, most = func(int) int { return which }, "voters for one", 1, 1
		if r.IntN(3) == 0 {
			target, name, most = func(int) int { return r.IntN(2) }, "voters for two", 3
		}
	} else if r.IntN(2) == 0 {
		target, name, least, most = func(tree int) int { return tree % classes }, "boosted voters", 1, 1
	}
	bases := []int{0, classes}
	if name == "voters for one" {
		bases = append(bases, 1)
	}
	if n := bases[r.IntN(len(bases))]; n > 0 {
		set["base_values"] = random(r, n).Floats
	}
	positive := r.IntN(2) == 0
	g.votes(r, set, "class", least, most, target, func() float32 {
		w := float32(r.NormFloat64())
		if positive && w < 0 {
			w = -w / float32(len(g.leaves))
		}
		return w
	})
	file := newGraph().input("x", kind, tensor.Any, features).node(ml, "TreeEnsembleClassifier", []string{"x"}, []string{"label", "scores"}, set).
		output("label", labels, tensor.Any).output("scores", tensor.Float, tensor.Any, classes).file()
	return &question{fmt.Sprint(name, " ", set["post_transform"], " ", classes, kind, " ", positive, set["base_values"]), file, []tensor.Tensor{*events(r, kind, features)}, 2}
}

// events returns rows with thresholds, numbers near them, NaN and infinities.
func events(r *rand.Rand, kind tensor.Type, features int) *tensor.Tensor {
	rows := 1 + r.IntN(11)
	x := floats([]int{rows, features})
	for range rows * features {
		v := threshold(r)
		switch r.IntN(8) {
		case 0:
			v = float32(math.NaN())
		case 1:
			v = float32(math.Inf(r.IntN(2)*2 - 1))
		case 2:
			v = math.Nextafter32(v, 9)
		case 3:
			v = math.Nextafter32(v, -9)
		case 4:
			v = float32(math.Copysign(0, -1))
		}
		if kind == tensor.Int32 || kind == tensor.Int64 {
			v = float32(r.IntN(7) - 3)
		}
		x.Floats = append(x.Floats, v)
	}
	return castEvents(x, kind)
}

func castEvents(x *tensor.Tensor, kind tensor.Type) *tensor.Tensor {
	c := &tensor.Tensor{Type: kind, Shape: x.Shape}
	for _, v := range x.Floats {
		switch kind {
		case tensor.Float:
			c.Floats = append(c.Floats, v)
		case tensor.Double:
			c.Doubles = append(c.Doubles, float64(v)+float64(v)*1e-12)
		default:
			c.Ints = append(c.Ints, int64(v))
		}
	}
	return c
}
