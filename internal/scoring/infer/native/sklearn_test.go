package native

import (
	"math/rand/v2"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// sklearn returns models as its exporter writes them: a regression after a scaler, with and
// without names of the scores, and a network for two classes.
func sklearn() []*question {
	return []*question{pipeline(false), pipeline(true), network()}
}

func pipeline(zipMap bool) *question {
	r := rand.New(rand.NewPCG(9, 9))
	set := attributes{"coefficients": random(r, 2, 4).Floats, "intercepts": random(r, 2).Floats, "post_transform": "LOGISTIC", "multi_class": 1, "classlabels_ints": []int{0, 1}}
	g := newGraph().input("X", tensor.Float, tensor.Any, 4)
	g.opset[""], g.opset[ml] = 15, 1
	g.node(ml, "Scaler", []string{"X"}, []string{"variable"}, attributes{"offset": []float32{1, 2, 1e6, 0}, "scale": []float32{1, 2, 1e-3, 1}})
	g.node(ml, "LinearClassifier", []string{"variable"}, []string{"label", "raw"}, set)
	g.node(ml, "Normalizer", []string{"raw"}, []string{"probabilities"}, attributes{"norm": "L1"})
	g.node("", "Cast", []string{"label"}, []string{"output_label"}, attributes{"to": int(tensor.Int64)})
	g.output("output_label", tensor.Int64, tensor.Any)
	if zipMap {
		g.node(ml, "ZipMap", []string{"probabilities"}, []string{"output_probability"}, attributes{"classlabels_int64s": []int{0, 1}})
		g.body.bytes(12, *new(message).text(1, "output_probability").bytes(2, mapsType()))
	} else {
		g.output("probabilities", tensor.Float, tensor.Any, 2)
	}
	x := floats([]int{3, 4}, 1, 2, 1e6, 4, 0, 0, 1000100, 1, -3, 2, 999900, 5)
	return &question{"sklearn's pipeline", g.file(), []tensor.Tensor{*x}, 2}
}

// mapsType is a list of maps of integers to floats.
func mapsType() message {
	var float, value, entry, maps, list, m message
	value.bytes(1, *float.number(1, int(tensor.Float)))
	entry.number(1, int(tensor.Int64)).bytes(2, value)
	maps.bytes(5, entry)
	return *m.bytes(4, *list.bytes(1, maps))
}

func network() *question {
	r := rand.New(rand.NewPCG(10, 10))
	g := newGraph().input("X", tensor.Float, tensor.Any, 6)
	g.weight("w0", random(r, 6, 16)).weight("b0", random(r, 1, 16)).weight("w1", random(r, 16, 1)).weight("b1", random(r, 1, 1))
	g.weight("one", floats([]int{}, 1)).weight("classes", texts("no", "yes")).weight("flat", integers(-1))
	g.node("", "Cast", []string{"X"}, []string{"x"}, attributes{"to": int(tensor.Float)})
	g.node("", "MatMul", []string{"x", "w0"}, []string{"m0"}, nil).node("", "Add", []string{"m0", "b0"}, []string{"a0"}, nil)
	g.node("", "Relu", []string{"a0"}, []string{"r0"}, nil)
	g.node("", "MatMul", []string{"r0", "w1"}, []string{"m1"}, nil).node("", "Add", []string{"m1", "b1"}, []string{"a1"}, nil)
	g.node("", "Sigmoid", []string{"a1"}, []string{"p"}, nil)
	g.node("", "Sub", []string{"one", "p"}, []string{"q"}, nil).node("", "Concat", []string{"q", "p"}, []string{"probabilities"}, attributes{"axis": 1})
	g.node("", "ArgMax", []string{"probabilities"}, []string{"best"}, attributes{"axis": 1})
	g.node(ml, "ArrayFeatureExtractor", []string{"classes", "best"}, []string{"named"}, nil)
	g.node("", "Reshape", []string{"named", "flat"}, []string{"label"}, nil)
	g.output("label", tensor.String, tensor.Any).output("probabilities", tensor.Float, tensor.Any, 2)
	return &question{"sklearn's network", g.file(), []tensor.Tensor{*random(r, 9, 6)}, 2}
}
