package native

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// perceptron returns a network with Relu between its layers and Softmax at the end, as
// exporters write it. The scorers' benchmarks use 512, 64, 20.
func perceptron(seed uint64, sides ...int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	g := newGraph().input("x", tensor.Float, tensor.Any, sides[0])
	at := "x"
	for i, n := range sides[1:] {
		id := fmt.Sprint(i)
		g.weight("w"+id, random(r, n, sides[i])).weight("b"+id, random(r, n))
		g.node("", "Gemm", []string{at, "w" + id, "b" + id}, []string{"h" + id}, attributes{"transB": 1})
		if at = "h" + id; i+2 < len(sides) {
			g.node("", "Relu", []string{at}, []string{"r" + id}, nil)
			at = "r" + id
		}
	}
	g.node("", "Softmax", []string{at}, []string{"y"}, nil)
	return g.output("y", tensor.Float, tensor.Any, sides[len(sides)-1]).file()
}

// intents returns a model as examples/intents writes it, with the given numbers of words and
// labels.
func intents(seed uint64, words, labels int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	var pool []string
	var columns []int
	for i := range words {
		pool, columns = append(pool, wordOf(i)), append(columns, i)
	}
	for i := range words {
		pool, columns = append(pool, wordOf(i), wordOf((i+1)%words)), append(columns, words+i)
	}
	return newGraph().input("text", tensor.String, tensor.Any).
		node("", "StringNormalizer", []string{"text"}, []string{"lower"}, attributes{"case_change_action": "LOWER", "locale": "C"}).
		node("", "StringSplit", []string{"lower"}, []string{"words", "lengths"}, attributes{"delimiter": " "}).
		node("", "TfIdfVectorizer", []string{"words"}, []string{"counts"}, attributes{"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0,
			"ngram_counts": []int{0, words}, "ngram_indexes": columns, "pool_strings": pool}).
		weight("weights", random(r, 2*words, labels)).weight("bias", random(r, labels)).
		node("", "Gemm", []string{"counts", "weights", "bias"}, []string{"scores"}, nil).
		node("", "Softmax", []string{"scores"}, []string{"probabilities"}, nil).
		output("probabilities", tensor.Float, tensor.Any, labels).file()
}

func wordOf(i int) string { return fmt.Sprintf("w%do", i*7919%10007) }

// messages returns texts of ten words. Such a model knows most of the words.
func messages(n, words int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(3, 3))
	all := make([]string, n)
	for i := range all {
		var text []string
		at := r.IntN(words)
		for range 10 {
			if at++; r.IntN(3) == 0 {
				at = r.IntN(words * 3 / 2)
			}
			text = append(text, wordOf(at))
		}
		all[i] = strings.ToUpper(strings.Join(text, " ")[:1]) + strings.Join(text, " ")[1:]
	}
	return texts(all...)
}
