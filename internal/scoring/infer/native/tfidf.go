package native

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// textScratch is the memory for counting words.
type textScratch struct {
	words   []string
	letters []byte // text with its letters changed
	numbers []int32
	index   []int32 // columns with a count, and their counts; a column may occur twice
	value   []float32
}

// tfIdf counts the words of a table in which each row is a text.
func (c *compiler) tfIdf(n *node) error {
	x := n.in[0]
	v, err := vocabularyOf(n)
	if err != nil {
		return err
	}
	if x.kind == tensor.String != (len(v.texts.ends) > 0) {
		return errors.New("its pool is not of the type of its input")
	}
	var shape []int
	if x.shape != nil {
		shape = []int{tensor.Any, v.width}[2-max(1, min(len(x.shape), 2)):]
	}
	y := c.output(n, 0, tensor.Float, shape)
	c.program.bytes += v.bytes()
	from, to := x.ref, y.ref
	c.add(n.describe(), []*value{x}, []*value{y}, func(s *state) error { return v.table(s, from, to) })
	return nil
}

func (v *vocabulary) table(s *state, from, to *ref) error {
	in := s.get(from)
	var room [2]int
	shape := append(room[:0], v.width)
	rows, width := 1, 0
	switch len(in.Shape) {
	case 1:
		width = in.Shape[0]
	case 2:
		rows, width = in.Shape[0], in.Shape[1]
		shape = append(room[:0], rows, v.width)
	default:
		return fmt.Errorf("it takes a table of words, not one of %d sides", len(in.Shape))
	}
	out, err := s.prepare(to, tensor.Float, shape...)
	if err == nil {
		err = s.multiply(rows, width, v.work(width))
	}
	if err != nil {
		return err
	}
	clear(out.Floats)
	for i := range rows {
		v.numbered(&s.text, in, i*width, width)
		v.count(&s.text, s.text.numbers)
		v.spread(&s.text, out.Floats[i*v.width:])
	}
	return nil
}

// numbered looks up the words of a row.
func (v *vocabulary) numbered(t *textScratch, in *tensor.Tensor, at, n int) {
	t.numbers = t.numbers[:0]
	if in.Type == tensor.String {
		for _, word := range in.Strings[at : at+n] {
			number, _ := v.texts.find(word)
			t.numbers = append(t.numbers, number)
		}
		return
	}
	for _, word := range in.Ints[at : at+n] {
		number, _ := v.ints.find(uint64(word))
		t.numbers = append(t.numbers, number)
	}
}

// spread writes the counts into a row of zeros. In mode IDF a column is set once,
// however often its words occur.
func (v *vocabulary) spread(t *textScratch, row []float32) {
	for i, column := range t.index {
		if v.once {
			row[column] = t.value[i]
		} else {
			row[column] += t.value[i]
		}
	}
}

// vocabulary has the word sequences of a TfIdfVectorizer and the column of each. They
// form a tree: a single word is the node with its own number, and a longer sequence is
// found from the node of its words without the last.
type vocabulary struct {
	texts   *wordTable // words' numbers; one of the two tables is nil
	ints    *numberTable
	longer  *numberTable // child node by node and word
	columns []int32      // by node; -1 if it has no column
	factors []float32    // by node; nil if each occurrence counts 1

	least, most, skip int // lengths of the sequences, and the largest gap between their words
	once              bool
	width             int // number of columns
}

// unknown is the number of words that are not in the vocabulary.
const unknown = -1

// maxColumns bounds a row of counts.
const maxColumns = 1 << 26

func vocabularyOf(n *node) (*vocabulary, error) {
	pool := len(n.texts("pool_strings")) + len(n.ints("pool_int64s"))
	v := &vocabulary{
		texts: newWordTable(len(n.texts("pool_strings"))), ints: newNumberTable(len(n.ints("pool_int64s"))), longer: newNumberTable(pool),
		least: n.length("min_gram_length"), most: n.length("max_gram_length"), skip: n.length("max_skip_count"),
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

// length returns an attribute that is a length; a larger one means no limit.
func (n *node) length(name string) int { return int(min(n.integer(name, 0), math.MaxInt32)) }

// words returns the numbers of the words in the pool, which it adds to the vocabulary.
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

// learn reads the pool: first the single words, then the pairs, and so on. begins has
// the start of each length.
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
				return errors.New("a sequence is listed twice")
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

// node returns the node of a sequence and makes it if it is missing.
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

// work returns the number of look-ups for each word of a row.
func (v *vocabulary) work(words int) int { return min(v.skip+1, words) * v.most }

// count adds the occurrences of all sequences in a row of words to t.
func (v *vocabulary) count(t *textScratch, words []int32) {
	t.index, t.value = t.index[:0], t.value[:0]
	least := v.least
	for step := 1; step <= min(v.skip+1, len(words)); step++ {
		for i := range words {
			v.countFrom(t, words[i:], step, least)
		}
		if least == 1 { // single words have no gaps
			least = 2
		}
		if least > v.most || v.longer.n == 0 {
			return
		}
	}
}

// countFrom counts the sequences that begin with the first word.
func (v *vocabulary) countFrom(t *textScratch, words []int32, step, least int) {
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

// bytes returns the memory of the vocabulary.
func (v *vocabulary) bytes() int64 {
	return 4*int64(len(v.columns)+len(v.factors)) + v.texts.bytes() + v.ints.bytes() + v.longer.bytes()
}

// Tables of words and numbers without pointers. A process may hold ten thousand
// vocabularies, and the garbage collector must not follow millions of pointers.

// emptySlot marks an unused slot. A word that is not found has the same number.
const emptySlot = unknown

// wordTable numbers words in the order in which they are added.
type wordTable struct {
	seed    maphash.Seed
	letters []byte   // all words, concatenated
	ends    []uint32 // end of each word
	slots   []int32  // by hash; the length is a power of two, and at most half are used
}

// slotsFor returns the number of slots for some entries.
func slotsFor(n int) int { return 1 << bits.Len(uint(2*n)) }

func newWordTable(words int) *wordTable {
	t := &wordTable{seed: maphash.MakeSeed(), slots: make([]int32, slotsFor(words))}
	for i := range t.slots {
		t.slots[i] = emptySlot
	}
	return t
}

// find returns the number of a word, and otherwise the slot for it.
func (t *wordTable) find(word string) (number int32, slot uint64) {
	last := uint64(len(t.slots) - 1)
	for slot = maphash.String(t.seed, word) & last; ; slot = (slot + 1) & last {
		number = t.slots[slot]
		if number == emptySlot || t.word(number) == word {
			return number, slot
		}
	}
}

// word returns a word without copying.
func (t *wordTable) word(number int32) string {
	begin := uint32(0)
	if number > 0 {
		begin = t.ends[number-1]
	}
	return view(t.letters[begin:t.ends[number]])
}

// add numbers a word, unless it has a number. There must be room.
func (t *wordTable) add(word string) int32 {
	number, slot := t.find(word)
	if number == emptySlot {
		number = int32(len(t.ends))
		t.letters = append(t.letters, word...)
		t.ends = append(t.ends, uint32(len(t.letters)))
		t.slots[slot] = number
	}
	return number
}

func (t *wordTable) bytes() int64 {
	return int64(cap(t.letters)) + 4*int64(cap(t.ends)+len(t.slots))
}

// numberTable maps numbers to numbers in the same way.
type numberTable struct {
	keys   []uint64
	values []int32
	n      int
}

func newNumberTable(entries int) *numberTable {
	t := &numberTable{keys: make([]uint64, slotsFor(entries)), values: make([]int32, slotsFor(entries))}
	for i := range t.values {
		t.values[i] = emptySlot
	}
	return t
}

// find returns the value of a key, and otherwise the slot for it.
func (t *numberTable) find(key uint64) (value int32, slot uint64) {
	last := uint64(len(t.keys) - 1)
	h := key * 0x9e3779b97f4a7c15
	for slot = (h ^ h>>32) & last; ; slot = (slot + 1) & last {
		if value = t.values[slot]; value == emptySlot || t.keys[slot] == key {
			return value, slot
		}
	}
}

// add sets the value of a new key, and returns the key's value. There must be room.
func (t *numberTable) add(key uint64, value int32) int32 {
	had, slot := t.find(key)
	if had != emptySlot {
		return had
	}
	t.keys[slot], t.values[slot] = key, value
	t.n++
	return value
}

func (t *numberTable) bytes() int64 { return 12 * int64(len(t.keys)) }
