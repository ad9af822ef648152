package native

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// question is a model and its input.
type question struct {
	name    string
	file    []byte
	in      []tensor.Tensor
	outputs int
}

// madeUp returns a random question.
func madeUp(r *rand.Rand, i int) *question {
	kinds := []func(*rand.Rand) *question{numbersAtRandom, wordsAtRandom, classifierAtRandom, tablesAtRandom, rowsAtRandom, treesAtRandom}
	q := kinds[i%len(kinds)](r)
	q.name = fmt.Sprintf("%d %s", i, q.name)
	return q
}

// numbersAtRandom returns a chain of layers. Some are products, with and without the nodes that
// may be combined with them.
func numbersAtRandom(r *rand.Rand) *question {
	k, rows := 1+r.IntN(200), 1+r.IntN(9)
	g := newGraph().input("v0", tensor.Float, tensor.Any, k)
	x, at, width := *counts(rows, k, 1+r.IntN(2*k)), "v0", k
	var said []string
	for i := range 1 + r.IntN(6) {
		next := fmt.Sprint("v", i+1)
		op := []string{"Gemm", "MatMul", "Add", "Mul", "Sub", "Div", "Relu", "Sigmoid", "Tanh", "Softmax", "Flatten", "Identity", "Scaler", "Normalizer"}[r.IntN(14)]
		said = append(said, op)
		w, in, domain := "w"+next, []string{at}, ""
		var set attributes
		switch op {
		case "Gemm":
			width = gemmAtRandom(r, g, w, width)
			in, set = []string{at, w, "b" + w}, attributes{"transB": 1, "alpha": float32(0.5), "beta": float32(2)}
		case "MatMul":
			n := 1 + r.IntN(90)
			g.weight(w, random(r, width, n))
			in, width = []string{at, w}, n
		case "Add", "Mul", "Sub", "Div":
			g.weight(w, random(r, [][]int{{width}, {1, width}, {1}, {}}[r.IntN(4)]...))
			if in = []string{at, w}; r.IntN(2) == 0 && op != "Div" {
				slices.Reverse(in)
			}
		case "Scaler":
			domain, set = ml, attributes{"offset": random(r, width).Floats, "scale": random(r, width).Floats}
		case "Normalizer":
			domain, set = ml, attributes{"norm": []string{"MAX", "L1", "L2"}[r.IntN(3)]}
		}
		g.node(domain, op, in, []string{next}, set)
		at = next
	}
	g.output(at, tensor.Float, tensor.Any, width)
	return &question{strings.Join(said, " "), g.file(), []tensor.Tensor{x}, 1}
}

func gemmAtRandom(r *rand.Rand, g *graph, w string, k int) int {
	n := 1 + r.IntN(90)
	g.weight(w, random(r, n, k)).weight("b"+w, random(r, [][]int{{n}, {1, n}, {1}, {}}[r.IntN(4)]...))
	return n
}

// wordsAtRandom returns a text model, sometimes with weights after it.
func wordsAtRandom(r *rand.Rand) *question {
	letters := strings.Split("a b C dd E f G", " ")
	least, skip := 1+r.IntN(2), r.IntN(3)
	most := least + r.IntN(3)
	var pool []string
	var begins, columns []int
	for n := 1; n <= most; n++ {
		begins = append(begins, len(pool))
		seen := map[string]bool{}
		for range r.IntN(6) + 1 {
			words := make([]string, n)
			for i := range words {
				words[i] = strings.ToLower(letters[r.IntN(len(letters))])
			}
			if id := strings.Join(words, " "); !seen[id] {
				seen[id] = true
				pool, columns = append(pool, words...), append(columns, r.IntN(20))
			}
		}
	}
	mode := []string{"TF", "IDF", "TFIDF"}[r.IntN(3)]
	if mode != "TF" { // ONNX Runtime's IDF of a column with several sequences depends on the order of a hash table
		for i := range columns {
			columns[i] = i
		}
	}
	width := slices.Max(columns) + 1
	set := attributes{"mode": mode, "min_gram_length": least, "max_gram_length": most, "max_skip_count": skip, "ngram_counts": begins, "ngram_indexes": columns, "pool_strings": pool}
	if r.IntN(2) == 0 && mode != "TF" {
		set["weights"] = random(r, len(columns)).Floats
	}
	split := attributes{}
	if r.IntN(2) == 0 {
		split["delimiter"] = " "
	}
	if r.IntN(3) == 0 {
		split["maxsplit"] = r.IntN(6)
	}
	g := newGraph().input("text", tensor.String, tensor.Any)
	g.node("", "StringNormalizer", []string{"text"}, []string{"lower"}, attributes{"case_change_action": "LOWER", "locale": "C"})
	g.node("", "StringSplit", []string{"lower"}, []string{"words", "n"}, split)
	g.node("", "TfIdfVectorizer", []string{"words"}, []string{"counts"}, set)
	out := "counts"
	if r.IntN(3) > 0 {
		n := 1 + r.IntN(30)
		g.weight("w", random(r, width, n)).weight("b", random(r, n)).node("", "Gemm", []string{"counts", "w", "b"}, []string{"y"}, nil)
		out, width = "y", n
	}
	if r.IntN(3) == 0 {
		g.node("", "Softmax", []string{out}, []string{"s"}, nil)
		out = "s"
	}
	g.output(out, tensor.Float, tensor.Any, width)
	return &question{"words " + mode, g.file(), []tensor.Tensor{*sentences(r, letters)}, 1}
}

func sentences(r *rand.Rand, letters []string) *tensor.Tensor {
	all := []string{""}
	for range r.IntN(7) {
		var text []string
		for range r.IntN(12) {
			text = append(text, []string{"", " ", "x", "É"}[r.IntN(4)]+letters[r.IntN(len(letters))])
			text = append(text, letters[r.IntN(len(letters))])
		}
		all = append(all, strings.Join(text, " "))
	}
	slices.Reverse(all)
	return texts(append(all, letters[0])...)
}

// classifierAtRandom returns a classifier or a regressor of ai.onnx.ml.
func classifierAtRandom(r *rand.Rand) *question {
	k, classes := 1+r.IntN(60), 2+r.IntN(5)
	post := []string{"NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"}[r.IntN(4)]
	sums := classes
	if r.IntN(4) == 0 {
		classes, sums, post = 2, 1, post[:0]+[]string{"NONE", "LOGISTIC"}[r.IntN(2)]
	}
	set := attributes{"coefficients": random(r, sums, k).Floats, "intercepts": random(r, sums).Floats, "post_transform": post, "multi_class": r.IntN(2)}
	kind := []tensor.Type{tensor.Float, tensor.Double, tensor.Int64, tensor.Int32}[r.IntN(4)]
	in := cast(counts(1+r.IntN(5), k, 30), kind)
	g := newGraph().input("x", kind, tensor.Any, k)
	if r.IntN(4) == 0 && kind == tensor.Float {
		set["targets"] = sums
		delete(set, "multi_class")
		g.node(ml, "LinearRegressor", []string{"x"}, []string{"y"}, set).output("y", tensor.Float, tensor.Any, sums)
		return &question{"regressor " + post, g.file(), []tensor.Tensor{*in}, 1}
	}
	labels := tensor.Int64
	if r.IntN(2) == 0 {
		labels = tensor.String
		var names []string
		for i := range classes {
			names = append(names, fmt.Sprint("class ", i))
		}
		set["classlabels_strings"] = names
	} else {
		set["classlabels_ints"] = r.Perm(classes)
	}
	g.node(ml, "LinearClassifier", []string{"x"}, []string{"label", "y"}, set)
	g.output("label", labels, tensor.Any).output("y", tensor.Float, tensor.Any, classes)
	return &question{fmt.Sprint("classifier ", post, " ", sums), g.file(), []tensor.Tensor{*in}, 2}
}

// cast converts floats to whole numbers.
func cast(t *tensor.Tensor, kind tensor.Type) *tensor.Tensor {
	c := &tensor.Tensor{Type: kind, Shape: t.Shape}
	for _, v := range t.Floats {
		switch kind {
		case tensor.Float:
			c.Floats = append(c.Floats, v)
		case tensor.Double:
			c.Doubles = append(c.Doubles, float64(v)/3)
		default:
			c.Ints = append(c.Ints, int64(v))
		}
	}
	return c
}

// tablesAtRandom combines tables of different shapes, or multiplies stacks.
func tablesAtRandom(r *rand.Rand) *question {
	kind := []tensor.Type{tensor.Float, tensor.Double, tensor.Int64, tensor.Int32}[r.IntN(4)]
	full := make([]int, 1+r.IntN(5))
	for i := range full {
		full[i] = 1 + r.IntN(4)
	}
	op := []string{"Add", "Sub", "Mul", "Div", "MatMul"}[r.IntN(5)]
	a, b := shrunk(r, full), shrunk(r, full)
	if op == "MatMul" {
		m, k, n := 1+r.IntN(5), 1+r.IntN(5), 1+r.IntN(5)
		a, b = append(a, m, k), append(b, k, n)
	}
	if len(a) > 6 || len(b) > 6 {
		a, b = []int{2, 3}, []int{3, 3}
	}
	x, y := cast(random(r, a...), kind), cast(random(r, b...), kind)
	for i := range y.Ints {
		y.Ints[i], x.Ints[i%max(len(x.Ints), 1)] = 1+int64(r.IntN(5)), int64(r.IntN(100)-50)
	}
	g := newGraph().input("a", kind, a...).input("b", kind, b...).node("", op, []string{"a", "b"}, []string{"y"}, nil)
	// ONNX Runtime determines the shape.
	g.body.bytes(12, *new(message).text(1, "y"))
	return &question{fmt.Sprint(op, a, b, kind), g.file(), []tensor.Tensor{*x, *y}, 1}
}

// shrunk returns a shape with some dimensions of length 1, or without some of the first ones.
func shrunk(r *rand.Rand, full []int) []int {
	s := slices.Clone(full)
	for i := range s {
		if r.IntN(3) == 0 {
			s[i] = 1
		}
	}
	return s[r.IntN(len(s)):]
}

// rowsAtRandom returns one operator that changes or searches a table.
func rowsAtRandom(r *rand.Rand) *question {
	shape := []int{1 + r.IntN(4), 1 + r.IntN(5), 1 + r.IntN(6)}
	axis := r.IntN(6) - 3
	g := newGraph().input("x", tensor.Float, shape...)
	g.opset[""] = []int{11, 12, 13, 20}[r.IntN(4)]
	op := []string{"ArgMax", "Softmax", "Concat", "Flatten", "Cast", "Reshape"}[r.IntN(6)]
	in, set, kind := []string{"x"}, attributes{"axis": axis}, tensor.Float
	switch op {
	case "ArgMax":
		set["keepdims"], kind = r.IntN(2), tensor.Int64
	case "Concat":
		in = []string{"x", "x", "x"}
	case "Cast":
		kind = []tensor.Type{tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String}[r.IntN(5)]
		set = attributes{"to": int(kind)}
	case "Reshape":
		set = nil
		g.weight("s", integers([][]int64{{-1}, {0, -1}, {0, 0, -1}, {1, -1, 1, 1}}[r.IntN(4)]...))
		in = []string{"x", "s"}
	}
	g.node("", op, in, []string{"y"}, set)
	var y, typ, holder message
	holder.bytes(1, *typ.number(1, int(kind)))
	g.body.bytes(12, *y.text(1, "y").bytes(2, holder))
	x := random(r, shape...)
	for i := range x.Floats {
		x.Floats[i] *= 100
	}
	return &question{fmt.Sprint(op, shape, axis), g.file(), []tensor.Tensor{*x}, 1}
}
