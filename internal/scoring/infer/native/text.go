package native

import (
	"fmt"
	"slices"
	"unicode/utf8"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/kernel"
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
