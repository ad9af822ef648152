package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/onnx"
)

// vocabulary is what a TfIdfVectorizer knows: sequences of words, and the column
// that each counts in. They stand in a tree: a word of the first level is a node of
// its own number, and a longer sequence is found from the node of what comes before
// its last word.
type vocabulary struct {
	texts   *wordTable // numbers of words; one of the two is empty
	ints    *numberTable
	longer  *numberTable // by node and word
	columns []int32      // by node; -1 if it counts in none
	factors []float32    // by node; nil if each counts 1

	least, most, skip int // words in a sequence, and how many may be left out between
	once              bool
	width             int // columns
}

// unknown is the number of a word that is not in the vocabulary.
const unknown = -1

// maxColumns bounds a row of counts.
const maxColumns = 1 << 26

func vocabularyOf(n *node) (*vocabulary, error) {
	pool := len(n.texts("pool_strings")) + len(n.ints("pool_int64s"))
	v := &vocabulary{
		texts: newWordTable(len(n.texts("pool_strings"))), ints: newNumberTable(len(n.ints("pool_int64s"))), longer: newNumberTable(pool),
		least: int(n.integer("min_gram_length", 0)), most: int(n.integer("max_gram_length", 0)), skip: int(n.integer("max_skip_count", 0)),
	}
	indexes, weights := n.ints("ngram_indexes"), n.floats("weights")
	if v.least < 1 || v.most < v.least || v.skip < 0 {
		return nil, fmt.Errorf("it counts sequences of %d to %d words with %d between", v.least, v.most, v.skip)
	}
	if len(indexes) == 0 || slices.Min(indexes) < 0 || slices.Max(indexes) >= maxColumns {
		return nil, errors.New("ngram_indexes are not those of columns")
	}
	if len(weights) != 0 && len(weights) != len(indexes) {
		return nil, fmt.Errorf("there are %d weights for %d sequences", len(weights), len(indexes))
	}
	v.width = int(slices.Max(indexes)) + 1
	switch mode := n.text("mode", ""); mode {
	case "TF":
		weights = nil
	case "IDF":
		v.once = true
	case "TFIDF":
	default:
		return nil, fmt.Errorf("mode %q %w", mode, onnx.ErrUnsupported)
	}
	return v, v.learn(n.ints("ngram_counts"), n.words(v), indexes, weights)
}

// words are the numbers of the words in the pool, which the vocabulary learns.
func (n *node) words(v *vocabulary) (all []int32) {
	for _, s := range n.texts("pool_strings") {
		all = append(all, v.texts.add(s))
	}
	for _, i := range n.ints("pool_int64s") {
		all = append(all, v.ints.add(uint64(i), int32(v.ints.n)))
	}
	v.columns = slices.Repeat([]int32{unknown}, len(v.texts.ends)+v.ints.n)
	return all
}

// learn reads the pool: first the single words, then the pairs, and so on, from
// where begins says.
func (v *vocabulary) learn(begins []int64, pool []int32, indexes []int64, weights []float32) error {
	if len(v.texts.ends) > 0 && v.ints.n > 0 {
		return errors.New("its pool is of texts and of numbers")
	}
	if weights != nil {
		v.factors = make([]float32, len(v.columns))
	}
	known := 0
	for i, begin := range begins {
		end := int64(len(pool))
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		if begin < 0 || end < begin || end > int64(len(pool)) || (end-begin)%int64(i+1) != 0 {
			return fmt.Errorf("ngram_counts %v do not fit a pool of %d", begins, len(pool))
		}
		for words := range slices.Chunk(pool[begin:end], i+1) {
			if known == len(indexes) {
				return fmt.Errorf("there are more sequences than ngram_indexes: %d", known)
			}
			node := v.node(words)
			if v.columns[node] != unknown {
				return errors.New("a sequence stands there twice")
			}
			v.columns[node] = int32(indexes[known])
			if weights != nil {
				v.factors[node] = weights[known]
			}
			known++
		}
	}
	if known != len(indexes) {
		return fmt.Errorf("there are %d sequences and %d ngram_indexes", known, len(indexes))
	}
	return nil
}

// node is that of a sequence, which is made if there is none.
func (v *vocabulary) node(words []int32) int32 {
	at := words[0]
	for _, w := range words[1:] {
		next := v.longer.add(edge(at, w), int32(len(v.columns)))
		if int(next) == len(v.columns) {
			v.columns = append(v.columns, unknown)
			if v.factors != nil {
				v.factors = append(v.factors, 0)
			}
		}
		at = next
	}
	return at
}

func edge(node, word int32) uint64 { return uint64(node)<<32 | uint64(word) }

// count adds to t what there is of the vocabulary in a row of words.
func (v *vocabulary) count(t *textScratch, words []int32) {
	t.index, t.value = t.index[:0], t.value[:0]
	least := v.least
	for step := 1; step <= min(v.skip+1, len(words)); step++ {
		for i := range words {
			v.from(t, words[i:], step, least)
		}
		if least == 1 { // single words leave none out between them
			least = 2
		}
		if least > v.most || v.longer.n == 0 {
			return
		}
	}
}

// from counts the sequences that begin with the first word.
func (v *vocabulary) from(t *textScratch, words []int32, step, least int) {
	node := words[0]
	for n := 1; node != unknown; n++ {
		if n >= least && v.columns[node] != unknown {
			t.index = append(t.index, v.columns[node])
			t.value = append(t.value, v.factor(node))
		}
		at := n * step
		if n == v.most || at >= len(words) || words[at] == unknown {
			return
		}
		node, _ = v.longer.find(edge(node, words[at]))
	}
}

func (v *vocabulary) factor(node int32) float32 {
	if v.factors == nil {
		return 1
	}
	return v.factors[node]
}

// bytes is the memory that it takes.
func (v *vocabulary) bytes() int64 {
	return 4*int64(len(v.columns)+len(v.factors)) + v.texts.bytes() + v.ints.bytes() + v.longer.bytes()
}
