package native

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// runOnce runs a model on one input.
func runOnce(t *testing.T, p *Program, in ...*tensor.Tensor) []tensor.Tensor {
	t.Helper()
	given, out := make([]tensor.Tensor, len(in)), make([]tensor.Tensor, len(p.Outputs()))
	for i := range in {
		given[i] = *in[i]
	}
	if err := p.Run(given, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// A network gives the result of its formula, in two steps. A row has the same bits alone and in
// a batch, whether its numbers are dense or sparse.
func TestPerceptron(t *testing.T) {
	p := load(t, perceptron(1, 512, 64, 20))
	if len(p.steps) != 2 {
		t.Errorf("it takes %d steps, want a layer each", len(p.steps))
	}
	r := rand.New(rand.NewPCG(4, 4))
	x := slices.Concat(random(r, 5, 512).Floats, counts(7, 512, 40).Floats, random(r, 3, 512).Floats, counts(2, 512, 0).Floats)
	all := runOnce(t, p, floats([]int{17, 512}, x...))[0]
	want := floats([]int{17, 20}, reference(perceptronWeights(1, 512, 64, 20), x, 512)...)
	wantTensor(t, "y", &all, want)
	for i := range 17 {
		one := runOnce(t, p, floats([]int{1, 512}, x[i*512:(i+1)*512]...))[0]
		if !slices.Equal(one.Floats, all.Floats[i*20:(i+1)*20]) {
			t.Errorf("event %d is %v alone and %v among others", i, one.Floats, all.Floats[i*20:(i+1)*20])
		}
	}
}

// perceptronWeights returns the weights that perceptron writes.
func perceptronWeights(seed uint64, sides ...int) (layers [][2][]float32) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i, n := range sides[1:] {
		layers = append(layers, [2][]float32{random(r, n, sides[i]).Floats, random(r, n).Floats})
	}
	return layers
}

// reference computes the network directly.
func reference(layers [][2][]float32, x []float32, k int) (all []float32) {
	for row := range slices.Chunk(x, k) {
		at := make([]float64, k)
		for i, v := range row {
			at[i] = float64(v)
		}
		for l, layer := range layers {
			next := make([]float64, len(layer[1]))
			for j := range next {
				next[j] = float64(layer[1][j])
				for i, v := range at {
					next[j] += v * float64(layer[0][j*len(at)+i])
				}
				if l+1 < len(layers) {
					next[j] = math.Max(next[j], 0)
				}
			}
			at = next
		}
		softmax(at, len(at), 1)
		for _, v := range at {
			all = append(all, float32(v))
		}
	}
	return all
}

// A text is turned into probabilities in one step, with the same result as separate steps.
func TestTextInOneStep(t *testing.T) {
	p := load(t, intents(1, 50, 7))
	if len(p.steps) != 1 {
		t.Errorf("it takes %d steps, want one", len(p.steps))
	}
	in := messages(20, 50)
	in.Strings = append(in.Strings, "", " ", "W0O  w7919O", strings.Repeat(wordOf(3)+" ", 400))
	in.Shape = []int{len(in.Strings)}
	fused := runOnce(t, p, in)[0]
	apart := load(t, inSteps(intents(1, 50, 7)))
	if len(apart.steps) < 4 {
		t.Fatalf("it takes %d steps, want each by itself", len(apart.steps))
	}
	wantTensor(t, "probabilities", &fused, &runOnce(t, apart, in)[0])
	for i := range in.Strings {
		one := runOnce(t, p, texts(in.Strings[i]))[0]
		if !slices.Equal(one.Floats, fused.Floats[i*7:(i+1)*7]) {
			t.Errorf("text %d is %v alone", i, one.Floats)
		}
	}
}

// inSteps makes every value an output too, so that no nodes are combined.
func inSteps(file []byte) []byte {
	for _, name := range []string{"lower", "words", "counts", "scores"} {
		var out, graph message
		out.bytes(12, *new(message).text(1, name))
		file = append(file, *graph.bytes(7, out)...)
	}
	return file
}

// A repeated run allocates nothing: from numbers and from texts, to scores and to names of
// classes.
func TestNothingIsAllocated(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		in   *tensor.Tensor
	}{
		"network": {perceptron(1, 512, 64, 20), counts(33, 512, 100)},
		"texts":   {intents(1, 500, 20), messages(33, 500)},
		"classes": {pipeline(false).file, floats([]int{2, 4}, 1, 2, 3, 4, 5, 6, 7, 8)},
		"names":   {network().file, random(newRandom(1), 5, 6)},
		"trees":   {treesFile(twoTrees(), 2), random(newRandom(1), 13, 2)},
		"doubles": {treesOfDoubles(), cast(random(newRandom(1), 13, 2), tensor.Double)},
	} {
		t.Run(name, func(t *testing.T) {
			p := load(t, c.file)
			in, out := []tensor.Tensor{*c.in}, make([]tensor.Tensor, len(p.Outputs()))
			s := new(state) // not from the pool, because the race detector makes pools drop their content
			if n := testing.AllocsPerRun(20, func() {
				if err := p.run(s, in, out); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("a run allocates %v times", n)
			}
		})
	}
}

// Many goroutines may run one program at once.
func TestManyAtOnce(t *testing.T) {
	p := load(t, perceptron(1, 64, 16, 4))
	x := random(rand.New(rand.NewPCG(6, 6)), 9, 64)
	want := runOnce(t, p, x)[0]
	failed := make(chan error)
	for range 8 {
		go func() {
			out := make([]tensor.Tensor, 1)
			var err error
			for range 50 {
				err = errors.Join(err, p.Run([]tensor.Tensor{*x}, out))
				if !slices.Equal(out[0].Floats, want.Floats) {
					err = errors.Join(err, errors.New("it answers something else"))
				}
			}
			failed <- err
		}()
	}
	for range 8 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// A pipeline with a ZipMap at its end answers the scores, and its labels have the names.
func TestZipMapIsLeftOut(t *testing.T) {
	g := newGraph().input("x", tensor.Float, tensor.Any, 2)
	g.node(ml, "LinearClassifier", []string{"x"}, []string{"label", "scores"}, attributes{"coefficients": []float32{1, 0, 0, 1}, "intercepts": []float32{0, 0}, "classlabels_strings": []string{"no", "yes"}})
	g.node(ml, "ZipMap", []string{"scores"}, []string{"probabilities"}, attributes{"classlabels_strings": []string{"no", "yes"}})
	g.output("label", tensor.String, tensor.Any)
	g.body.bytes(12, *new(message).text(1, "probabilities"))
	p := load(t, g.file())
	out := runOnce(t, p, floats([]int{2, 2}, 1, 2, 4, 3))
	if !slices.Equal(p.Labels(), []string{"no", "yes"}) || !slices.Equal(out[0].Strings, []string{"yes", "no"}) || !slices.Equal(out[1].Floats, []float32{1, 2, 4, 3}) {
		t.Errorf("it answers %v and %v of %v", out[0].Strings, out[1].Floats, p.Labels())
	}
	if q := load(t, network().file); !slices.Equal(q.Labels(), []string{"no", "yes"}) {
		t.Errorf("the classes of a network are %v", q.Labels())
	}
	if spec := p.Outputs()[1]; spec.Name != "probabilities" || spec.Type != tensor.Float {
		t.Errorf("the output is %+v", spec)
	}
}

// The program holds its weights and little more.
func TestBytes(t *testing.T) {
	p, weights := load(t, perceptron(1, 512, 64, 20)), int64(4*(512*64+64+64*20+20))
	if p.Bytes() < weights || p.Bytes() > weights+2048 {
		t.Errorf("it holds %d bytes for %d of weights", p.Bytes(), weights)
	}
	if len(p.constants) != 0 {
		t.Errorf("it also keeps %d tensors", len(p.constants))
	}
}

// Inputs that do not fit give an error with the expected shape or type.
func TestRunRefuses(t *testing.T) {
	p := load(t, perceptron(1, 8, 4, 2))
	for name, c := range map[string]struct {
		in   []tensor.Tensor
		says string
	}{
		"no input":   {nil, "0 inputs"},
		"a type":     {[]tensor.Tensor{*texts("a")}, "of type string; the model wants float"},
		"a width":    {[]tensor.Tensor{*floats([]int{1, 7}, make([]float32, 7)...)}, "[1 7]; the model wants [-1 8]"},
		"a rank":     {[]tensor.Tensor{*floats([]int{8}, make([]float32, 8)...)}, "[8]; the model wants"},
		"a lie":      {[]tensor.Tensor{*floats([]int{2, 8}, 1)}, "holds 1 numbers"},
		"a negative": {[]tensor.Tensor{*floats([]int{-2, 8}, 1)}, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := p.Run(c.in, make([]tensor.Tensor, 1)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, want %q", err, c.says)
			}
		})
	}
}

// An error of Load names the part of the graph that is not supported.
func TestLoadRefuses(t *testing.T) {
	x := func() *graph { return newGraph().input("x", tensor.Float, tensor.Any, 2) }
	old, new := x().node("", "Relu", []string{"x"}, []string{"y"}, nil), x().node("", "Relu", []string{"x"}, []string{"y"}, nil)
	old.opset[""], new.opset[""] = 6, 99
	for says, g := range map[string]*graph{
		`operator Conv "Conv y"`: x().node("", "Conv", []string{"x"}, []string{"y"}, nil),
		`operator com.microsoft.NGramRepeatBlock "NGramRepeatBlock y"`: x().node("com.microsoft", "NGramRepeatBlock", []string{"x"}, []string{"y"}, nil),
		"version 6":                 old,
		"version 99":                new,
		"to float16":                x().node("", "Cast", []string{"x"}, []string{"y"}, attributes{"to": 10}),
		"zipmap=False":              x().node(ml, "ZipMap", []string{"x"}, []string{"z"}, nil).node("", "Relu", []string{"z"}, []string{"y"}, nil),
		"Concat y\" for type uint8": x().weight("a", &tensor.Tensor{Type: 2, Shape: []int{8}, Ints: make([]int64, 8)}).node("", "Concat", []string{"a", "a"}, []string{"y"}, attributes{"axis": 0}),
		"norm L7":                   x().node(ml, "Normalizer", []string{"x"}, []string{"y"}, attributes{"norm": "L7"}),
		"type float16":              newGraph().input("x", 10, tensor.Any).node("", "Relu", []string{"x"}, []string{"y"}, nil),
		"a single sum":              x().node(ml, "LinearClassifier", []string{"x"}, []string{"l", "y"}, attributes{"coefficients": []float32{1, 2}, "intercepts": []float32{1}, "classlabels_ints": []int{0, 1}, "post_transform": "SOFTMAX"}),
		"Relu \"Relu y":             newGraph().input("x", tensor.String, tensor.Any).node("", "Relu", []string{"x"}, []string{"y"}, nil),
	} {
		t.Run(says, func(t *testing.T) {
			_, err := Load(g.output("y", tensor.Float, tensor.Any).file())
			if !errors.Is(err, onnx.ErrUnsupported) || !strings.Contains(err.Error(), says) {
				t.Errorf("it says %v, want %q", err, says)
			}
		})
	}
}

// An attribute of the wrong type is an error, and not treated as absent.
func TestAttributeOfAnotherType(t *testing.T) {
	g := newGraph().input("x", tensor.Float, tensor.Any, 1).weight("w", floats([]int{1, 1}, 1))
	g.node("", "Gemm", []string{"x", "w"}, []string{"y"}, attributes{"alpha": 2}).output("y", tensor.Float, tensor.Any, 1)
	if _, err := Load(g.file()); err == nil || !strings.Contains(err.Error(), "attribute alpha is of type 2, not 1") {
		t.Errorf("it says %v", err)
	}
}

// A small file that asks for much work is stopped.
func TestLimits(t *testing.T) {
	wide := newGraph().input("x", tensor.Float, tensor.Any, 1).weight("w", random(rand.New(rand.NewPCG(1, 1)), 1, 1<<16)).
		node("", "Add", []string{"x", "w"}, []string{"y"}, nil).output("y", tensor.Float, tensor.Any, 1<<16).file()
	p := load(t, wide)
	err := p.Run([]tensor.Tensor{*floats([]int{1025, 1}, make([]float32, 1025)...)}, make([]tensor.Tensor, 1))
	if err == nil || !strings.Contains(err.Error(), "fewer rows") {
		t.Errorf("67 million numbers are made: %v", err)
	}
	texts := newGraph().input("x", tensor.Float, tensor.Any, 1).weight("w", random(rand.New(rand.NewPCG(1, 1)), 1, 1<<16)).
		node("", "Add", []string{"x", "w"}, []string{"y"}, nil).node("", "Cast", []string{"y"}, []string{"z"}, attributes{"to": int(tensor.String)}).
		output("z", tensor.String, tensor.Any, 1<<16).file()
	err = load(t, texts).Run([]tensor.Tensor{*floats([]int{128, 1}, make([]float32, 128)...)}, make([]tensor.Tensor, 1))
	if err == nil || !strings.Contains(err.Error(), "fewer rows") {
		t.Errorf("8 million texts, which take 200 MB, are made: %v", err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	g := newGraph().weight("a", random(r, 300, 1)).weight("b", random(r, 1, 300)).node("", "Mul", []string{"a", "b"}, []string{"c"}, nil)
	_, err = Load(g.output("c", tensor.Float, 300, 300).file())
	if err == nil || !strings.Contains(err.Error(), "table of [300 300]") {
		t.Errorf("2 kB become 360 kB of constants: %v", err)
	}
}

// 0 times an infinite weight is NaN, so such rows are not multiplied as sparse rows.
func TestWeightsThatAreNotFinite(t *testing.T) {
	w := make([]float32, 200*2)
	w[7] = float32(math.Inf(1))
	g := newGraph().input("x", tensor.Float, tensor.Any, 200).weight("w", floats([]int{200, 2}, w...)).node("", "MatMul", []string{"x", "w"}, []string{"y"}, nil)
	out := runOnce(t, load(t, g.output("y", tensor.Float, tensor.Any, 2).file()), floats([]int{1, 200}, make([]float32, 200)...))[0]
	if out.Floats[0] != 0 || out.Floats[1] == out.Floats[1] {
		t.Errorf("it answers %v", out.Floats)
	}
}
