package native

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode/utf8"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// text goes from texts to sums in one step: it changes the case, splits into words,
// counts them, and multiplies the counts by weights. A text has only a few of the
// model's words, so no table of words or counts is ever made.
type text struct {
	change   caseChange
	split    splitter
	words    *vocabulary
	layer    *layer // nil if the counts are the result
	from, to *ref
}

// words includes StringNormalizer, StringSplit, TfIdfVectorizer and a product after
// them, from n on. It reports whether these nodes were included.
func (c *compiler) words(n *node) (bool, error) {
	x := n.in[0]
	if x.known != nil || len(x.shape) != 1 {
		return false, nil
	}
	t, split := &text{from: x.ref}, n
	if n.Op == "StringNormalizer" {
		if split = c.sole(n, "StringSplit"); split == nil || len(split.in) != 1 || len(n.texts("stopwords")) > 0 {
			return false, nil
		}
		var err error
		if t.change, err = caseOf(n); err != nil {
			return false, err
		}
	}
	count := c.sole(split, "TfIdfVectorizer")
	// An empty text in the pool would count the padding of short rows.
	if count == nil || len(count.in) != 1 || len(count.texts("pool_strings")) == 0 || slices.ContainsFunc(count.texts("pool_strings"), func(s string) bool { return s == "" }) {
		return false, nil
	}
	var err error
	if t.split, err = splitterOf(split); err != nil {
		return false, err
	}
	if t.words, err = vocabularyOf(count); err != nil {
		return false, err
	}
	if split != n {
		c.markIncluded(split)
	}
	last := c.weighed(c.markIncluded(count), t)
	if t.layer != nil {
		c.program.bytes += t.layer.bytes()
	}
	y := c.output(last, 0, tensor.Float, []int{tensor.Any, t.width()})
	t.to = y.ref
	c.program.bytes += t.words.bytes()
	c.add(n.describe(), []*value{x}, []*value{y}, t.run)
	return true, nil
}

// weighed includes a product of the counts with weights, and the nodes after it.
func (c *compiler) weighed(count *node, t *text) (last *node) {
	next := c.sole(count, "Gemm", "MatMul")
	if next == nil || t.words.once || len(next.in) < 2 || next.Inputs[0] != count.Outputs[0] {
		return count
	}
	p, ok := productOf(next)
	if !ok || p.k != t.words.width {
		return count
	}
	behind := tail{bias: p.bias}
	last = c.includeTail(c.markIncluded(next), &behind, p.n, 2)
	t.layer = layerOf(p, behind)
	return last
}

// width returns the length of the result's rows.
func (t *text) width() int {
	if t.layer != nil {
		return t.layer.n
	}
	return t.words.width
}

func (t *text) run(s *state) error {
	in := s.get(t.from)
	if len(in.Shape) != 1 {
		return fmt.Errorf("it takes a list of texts, not a table of %v", slices.Clone(in.Shape))
	}
	width := t.width()
	out, err := s.prepare(t.to, tensor.Float, len(in.Strings), width)
	if err != nil || len(out.Floats) == 0 {
		return err
	}
	for i, text := range in.Strings {
		t.read(&s.text, text)
		n := len(s.text.numbers)
		if err := s.multiply(1, n, t.words.work(n)); err != nil {
			return err
		}
		t.words.count(&s.text, s.text.numbers)
		row := out.Floats[i*width : (i+1)*width]
		if l := t.layer; l != nil {
			l.weights.MultiplySparse(s.text.index, s.text.value, l.bias, l.act, row)
		} else {
			clear(row)
			t.words.spread(&s.text, row)
		}
	}
	if t.layer != nil && t.layer.softmax {
		kernel.Softmax(len(in.Strings), width, out.Floats)
	}
	return nil
}

// read looks up the words of a text.
func (t *text) read(scratch *textScratch, text string) {
	if t.change != asIs {
		scratch.letters = t.change.append(scratch.letters[:0], text)
		text = view(scratch.letters) // overwritten by the next text
	}
	scratch.numbers = scratch.numbers[:0]
	if text = t.split.trim(text); text == "" {
		return
	}
	for times := 0; ; times++ {
		word, rest, more := t.split.cutWord(text, times)
		number, _ := t.words.texts.find(word)
		scratch.numbers = append(scratch.numbers, number)
		if !more {
			return
		}
		text = rest
	}
}

// view returns bytes as a text without copying. The bytes must not change while the text is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// append appends a text with its letters changed.
func (c caseChange) append(to []byte, text string) []byte {
	switch c {
	case lowerASCII:
		to = append(to, text...)
		for i, b := range to {
			if 'A' <= b && b <= 'Z' {
				to[i] = b + 'a' - 'A'
			}
		}
	case upperASCII:
		to = append(to, text...)
		for i, b := range to {
			if 'a' <= b && b <= 'z' {
				to[i] = b - 'a' + 'A'
			}
		}
	default:
		for _, r := range text {
			to = utf8.AppendRune(to, c.convert(r))
		}
	}
	return to
}

// tokens finds the words of a text by a regular expression.
type tokens struct {
	expression *regexp.Regexp
	letters    []rune // ranges of the letters of a word, if the expression says nothing else; nil otherwise
	least      int    // shortest word, in letters
	pad        string // fills short rows
	edges      bool   // each row begins and ends with a word that marks it
}

// tokenizer is com.microsoft.Tokenizer, which scikit-learn's exports of TfidfVectorizer have. ONNX
// Runtime has the same language of expressions as Go.
func (c *compiler) tokenizer(n *node) error {
	x := n.in[0]
	text := n.text("tokenexp", "")
	if text == "" || len(n.texts("separators")) > 0 {
		return fmt.Errorf("with separators %w", onnx.ErrUnsupported)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("tokenexp: %w", err)
	}
	t := &tokens{least: int(min(max(n.integer("mincharnum", 1), 1), maxColumns)), pad: n.text("pad_value", ""), edges: n.integer("mark", 0) != 0}
	if tree.Op == syntax.OpPlus && tree.Sub[0].Op == syntax.OpCharClass && tree.Flags&syntax.NonGreedy == 0 {
		t.letters = tree.Sub[0].Rune
	}
	if t.expression, err = regexp.Compile(text); err != nil {
		return fmt.Errorf("tokenexp: %w", err)
	}
	var shape []int
	if x.shape != nil {
		shape = openShape(len(x.shape) + 1)
	}
	y := c.output(n, 0, tensor.String, shape)
	c.program.bytes += int64(512 + 64*len(text))
	from, to := x.ref, y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error { return t.run(s, from, to) })
	return nil
}

func (t *tokens) run(s *state, from, to *ref) error {
	in := s.get(from)
	if rank := len(in.Shape); rank == 0 || rank > 2 {
		return fmt.Errorf("it takes a list or a table of texts, not %v", slices.Clone(in.Shape))
	}
	all, ends, width := s.text.words[:0], s.text.numbers[:0], 0
	defer func() { clear(all); s.text.words, s.text.numbers = all[:0], ends[:0] }()
	for _, text := range in.Strings {
		before := len(all)
		if !utf8.ValidString(text) {
			return errors.New("a text is not valid UTF-8")
		}
		all = t.words(all, text, &s.left.products)
		ends = append(ends, int32(len(all)))
		width = max(width, len(all)-before)
	}
	if t.edges && width > 0 {
		width += 2
	}
	if s.left.products < 0 {
		return errors.New("its expression is more work than a run may do: ask for fewer or shorter texts")
	}
	var room [maxRank + 1]int
	out, err := s.prepare(to, tensor.String, append(append(room[:0], in.Shape...), width)...)
	if err != nil {
		return err
	}
	begin := int32(0)
	for i, end := range ends {
		row := out.Strings[i*width : (i+1)*width]
		if t.edges && width > 0 {
			row[0], row[width-1] = "\x02", "\x03"
			row = row[1 : width-1]
		}
		for k := copy(row, all[begin:end]); k < len(row); k++ {
			row[k] = t.pad
		}
		begin = end
	}
	return nil
}

// letterCost is about how many products take as long as an expression takes for a letter.
const letterCost = 32

// words appends the words of a text, and takes the letters that an expression may read from work. To
// find each word, an expression may read a text to its end.
func (t *tokens) words(to []string, text string, work *int) []string {
	for text != "" && *work >= 0 {
		if t.letters == nil {
			*work -= letterCost * len(text)
		}
		begin, end := t.next(text)
		if begin < 0 {
			break
		}
		if word := text[begin:end]; utf8.RuneCountInString(word) >= t.least {
			to = append(to, word)
		}
		if end == begin { // an expression that matches nothing: go on after a letter
			_, size := utf8.DecodeRuneInString(text[end:])
			end += max(size, 1)
		}
		text = text[min(end, len(text)):]
	}
	return to
}

// next returns the bounds of the first word; -1 if there is none. The usual expressions are a class
// of letters, for which no expression has to be evaluated.
func (t *tokens) next(text string) (begin, end int) {
	if t.letters == nil {
		if at := t.expression.FindStringIndex(text); at != nil {
			return at[0], at[1]
		}
		return -1, -1
	}
	begin = -1
	for i, r := range text {
		switch is := t.isLetter(r); {
		case is && begin < 0:
			begin = i
		case !is && begin >= 0:
			return begin, i
		}
	}
	return begin, len(text)
}

func (t *tokens) isLetter(r rune) bool {
	for i := 0; i < len(t.letters); i += 2 {
		if r <= t.letters[i+1] {
			return r >= t.letters[i]
		}
	}
	return false
}
