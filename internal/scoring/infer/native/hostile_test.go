package native

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// isRefused fails unless a file is not loaded, or does not answer, with an error that has a text.
func isRefused(t *testing.T, says string, file []byte, in ...*tensor.Tensor) {
	t.Helper()
	p, err := Load(file)
	if err == nil {
		given, out := make([]tensor.Tensor, len(in)), make([]tensor.Tensor, len(p.Outputs()))
		for i := range in {
			given[i] = *in[i]
		}
		err = p.Run(given, out)
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("it is answered with %v, and has to say %q", err, says)
	}
}

// A table without columns takes no memory, and may have two thousand million rows. Its rows are not counted one by one.
func TestRowsOfNothing(t *testing.T) {
	t.Parallel()
	nothing := &tensor.Tensor{Type: tensor.Float, Shape: []int{math.MaxInt32, 1, 0}}
	g := newGraph().input("x", tensor.Float, tensor.Any, 1).weight("nothing", nothing).weight("index", integers(0))
	from := "nothing"
	for i := range 200 {
		to := fmt.Sprint("t", i)
		g.node("", "Gather", []string{from, "index"}, []string{to}, attributes{"axis": 1})
		from = to
	}
	g.node("", "Shape", []string{from}, []string{"y"}, nil).output("y", tensor.Int64, 3)
	out := runOnce(t, load(t, g.file()), floats([]int{1, 1}, 1))
	if got := fmt.Sprint(out[0].Ints); got != "[2147483647 1 0]" {
		t.Errorf("the shape is %s", got)
	}

	body := newGraph()
	body.body.text(2, "body")
	body.node("", "Neg", []string{"row"}, []string{"negative"}, nil).input("row", tensor.Float, 1, 0).output("negative", tensor.Float, 1, 0)
	g = newGraph().input("x", tensor.Float, tensor.Any, 1).weight("nothing", nothing).
		node("", "Scan", []string{"nothing"}, []string{"y"}, attributes{"body": body, "num_scan_inputs": 1}).output("y", tensor.Float, tensor.Any, 1, 0)
	isRefused(t, "more work than a run may do", g.file(), floats([]int{1, 1}, 1))
}

// The bodies of many Scans share the limits of their file, for the numbers that are the same in every run.
func TestBodiesShareLimits(t *testing.T) {
	t.Parallel()
	body := newGraph()
	body.body.text(2, "body")
	body.weight("sides", integers(60_000)).node("", "ConstantOfShape", []string{"sides"}, []string{"zeros"}, nil).
		node("", "Add", []string{"row", "zeros"}, []string{"sums"}, nil).input("row", tensor.Float, 1).output("sums", tensor.Float, 60_000)
	g := newGraph().input("x", tensor.Float, tensor.Any, 1)
	for i := range 20 {
		y := fmt.Sprint("y", i)
		g.node("", "Scan", []string{"x"}, []string{y}, attributes{"body": body, "num_scan_inputs": 1}).output(y, tensor.Float, tensor.Any, 60_000)
	}
	isRefused(t, "more than a run may", g.file(), floats([]int{1, 1}, 1))
}

// ONNX allows each axis once. The second bounds would be counted from the first, and the answer would have numbers of other runs.
func TestAnAxisIsSlicedTwice(t *testing.T) {
	t.Parallel()
	g := newGraph().input("x", tensor.Float, 1, 10).weight("from", integers(5, 5)).weight("to", integers(10, 10)).weight("axes", integers(1, -1)).
		node("", "Slice", []string{"x", "from", "to", "axes"}, []string{"y"}, nil).output("y", tensor.Float, 1, tensor.Any)
	isRefused(t, "twice", g.file(), floats([]int{1, 10}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
}

// A model that counts words with any gap between them has more work than a long text may cost.
func TestWordsFarApart(t *testing.T) {
	t.Parallel()
	for _, skip := range []int{1 << 40, math.MaxInt64} {
		for _, whole := range []bool{false, true} {
			g := newGraph().input("x", tensor.String, tensor.Any).node("", "StringSplit", []string{"x"}, []string{"words", "n"}, nil)
			from := "words"
			if !whole { // another reader of the words keeps them from being counted in one step
				g.node("", "Shape", []string{"words"}, []string{"sides"}, nil).output("sides", tensor.Int64, 2)
			}
			g.node("", "TfIdfVectorizer", []string{from}, []string{"y"}, attributes{"mode": "TF", "min_gram_length": 1, "max_gram_length": math.MaxInt64, "max_skip_count": skip,
				"ngram_counts": []int{0, 1}, "ngram_indexes": []int{0, 1}, "pool_strings": []string{"a", "a", "a"}}).output("y", tensor.Float, tensor.Any, 2)
			isRefused(t, "more than a run may multiply", g.file(), texts(strings.Repeat("a ", 1<<12)))
		}
	}
}

// The file's metadata and the names of its classes stay in memory, and count.
func TestMetadataCounts(t *testing.T) {
	t.Parallel()
	g := newGraph().input("x", tensor.Float, tensor.Any, 1).node("", "Neg", []string{"x"}, []string{"y"}, nil).output("y", tensor.Float, tensor.Any, 1)
	before := load(t, g.file()).Bytes()
	g.meta["log"] = strings.Repeat("l", 1<<20)
	if got := load(t, g.file()).Bytes() - before; got < 1<<20 {
		t.Errorf("metadata of 1 MiB counts as %d bytes", got)
	}
}

// The probabilities of many classes are computed in rounds, as many as there are classes if they do not converge. Each round counts.
func TestPairsThatDoNotConverge(t *testing.T) {
	t.Parallel()
	const classes = 200
	pairs := make([]float32, classes*(classes-1)/2)
	vectors, names := make([]int, classes), make([]int, classes)
	vectors[0] = 1
	for i := range names {
		names[i] = i
	}
	g := newGraph().input("x", tensor.Float, tensor.Any, 1).node(ml, "SVMClassifier", []string{"x"}, []string{"label", "y"}, attributes{
		"support_vectors": []float32{1}, "vectors_per_class": vectors, "coefficients": make([]float32, classes-1), "rho": pairs, "prob_a": pairs, "prob_b": pairs,
		"classlabels_ints": names}).output("label", tensor.Int64, tensor.Any).output("y", tensor.Float, tensor.Any, classes)
	p := load(t, g.file())
	p.limits.products = 20 * classes * classes
	for _, c := range []struct {
		x       float32
		refused bool
	}{{1, false}, {nan, true}} {
		in, out := []tensor.Tensor{*floats([]int{1, 1}, c.x)}, make([]tensor.Tensor, 2)
		if err := p.Run(in, out); (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "more than a run may multiply") {
			t.Errorf("%v is answered with %v", c.x, err)
		}
	}
}

// A Squeeze without axes removes each side of length 1, also one that is open in the file.
func TestAnOpenSideIsSqueezed(t *testing.T) {
	t.Parallel()
	g := newGraph().input("x", tensor.Float, tensor.Any, 1, 3).node("", "Squeeze", []string{"x"}, []string{"flat"}, nil).
		node("", "Flatten", []string{"flat"}, []string{"y"}, nil).output("y", tensor.Float, tensor.Any, tensor.Any)
	p := load(t, g.file())
	for rows, want := range map[int]*tensor.Tensor{1: floats([]int{3, 1}, 1, 2, 3), 2: floats([]int{2, 3}, 1, 2, 3, 4, 5, 6)} {
		out := runOnce(t, p, floats([]int{rows, 1, 3}, []float32{1, 2, 3, 4, 5, 6}[:3*rows]...))
		wantTensor(t, "y", &out[0], want)
	}
}
