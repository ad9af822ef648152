package native

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode/utf8"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

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
