package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// caseChange is a change of letters to upper or lower case.
type caseChange uint8

const (
	asIs caseChange = iota
	lowerASCII
	upperASCII
	lowerAll
	upperAll
)

// caseOf reads a node's case change and locale. In the locales C and POSIX only ASCII
// has letters. All other locales use Unicode's simple case mapping.
func caseOf(n *node) (caseChange, error) {
	ascii := slices.Contains([]string{"C", "POSIX"}, n.text("locale", "en_US"))
	switch action := n.text("case_change_action", "NONE"); action {
	case "NONE":
		return asIs, nil
	case "LOWER":
		if ascii {
			return lowerASCII, nil
		}
		return lowerAll, nil
	case "UPPER":
		if ascii {
			return upperASCII, nil
		}
		return upperAll, nil
	default:
		return asIs, fmt.Errorf("case_change_action %s %w", action, onnx.ErrUnsupported)
	}
}

// convert returns a letter in the wanted case.
func (c caseChange) convert(r rune) rune {
	switch {
	case c == lowerASCII && 'A' <= r && r <= 'Z':
		return r + 'a' - 'A'
	case c == upperASCII && 'a' <= r && r <= 'z':
		return r + 'A' - 'a'
	case c == lowerAll:
		return unicode.ToLower(r)
	case c == upperAll:
		return unicode.ToUpper(r)
	}
	return r
}

func (c caseChange) text(s string) string {
	if c == asIs {
		return s
	}
	return strings.Map(c.convert, s)
}

// stringNormalizer changes the case of words and removes stop words. Its input is one row of words.
func (c *compiler) stringNormalizer(n *node) error {
	x := n.in[0]
	if x.kind != tensor.String {
		return fmt.Errorf("it is for texts, not for %s", typeName(x.kind))
	}
	if done, err := c.words(n); done || err != nil {
		return err
	}
	change, err := caseOf(n)
	if err != nil {
		return err
	}
	out := stopWords(n, change)
	y := c.output(n, 0, tensor.String, x.shape)
	from, to := x.ref, y.ref
	c.add(n.describe(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		if rank := len(in.Shape); rank != 1 && (rank != 2 || in.Shape[0] != 1) {
			return errors.New("it takes texts in a row, not in a table")
		}
		var kept []string
		for _, text := range in.Strings {
			if !out(text) {
				kept = append(kept, change.text(text))
			}
		}
		if len(kept) == 0 {
			kept = []string{""}
		}
		var room [2]int
		shape := append(room[:0], in.Shape...)
		shape[len(shape)-1] = len(kept)
		made, err := s.prepare(to, tensor.String, shape...)
		if err == nil {
			copy(made.Strings, kept)
		}
		return err
	})
	return nil
}

// stopWords returns a function that reports whether a word is removed.
func stopWords(n *node, change caseChange) func(string) bool {
	list := n.texts("stopwords")
	if n.integer("is_case_sensitive", 0) != 0 {
		return func(s string) bool { return slices.Contains(list, s) }
	}
	if change == asIs {
		change = lowerAll
	}
	changed := make([]string, len(list))
	for i, s := range list {
		changed[i] = change.text(s)
	}
	return func(s string) bool { return len(changed) > 0 && slices.Contains(changed, change.text(s)) }
}

// splitter splits texts into words. Without a delimiter it splits at runs of spaces and drops those
// at the ends, as ONNX Runtime does. Tabs and line ends do not count as spaces.
type splitter struct {
	delimiter string
	most      int // largest number of splits; the rest stays whole
}

func splitterOf(n *node) (splitter, error) {
	most := n.integer("maxsplit", math.MaxInt32)
	if most < 0 {
		return splitter{}, fmt.Errorf("it may split %d times", most)
	}
	return splitter{n.text("delimiter", ""), int(min(most, math.MaxInt32))}, nil
}

// cutWord cuts the first word off a text; more is false if the text has no word. An empty text has
// no words. A text that ends in a delimiter has an empty word at its end.
func (p splitter) cutWord(text string, times int) (word, rest string, more bool) {
	if p.delimiter != "" {
		if times < p.most {
			if i := strings.Index(text, p.delimiter); i >= 0 {
				return text[:i], text[i+len(p.delimiter):], true
			}
		}
		return text, "", false
	}
	if times < p.most {
		if i := strings.IndexByte(text, ' '); i >= 0 {
			rest = strings.TrimLeft(text[i:], " ")
			return text[:i], rest, rest != ""
		}
	}
	return strings.TrimRight(text, " "), "", false
}

// trim prepares a text for splitting.
func (p splitter) trim(text string) string {
	if p.delimiter == "" {
		return strings.Trim(text, " ")
	}
	return text
}

// words appends the words of a text.
func (p splitter) words(to []string, text string) []string {
	text = p.trim(text)
	if text == "" {
		return to
	}
	for times := 0; ; times++ {
		word, rest, more := p.cutWord(text, times)
		to = append(to, word)
		if !more {
			return to
		}
		text = rest
	}
}

// stringSplit makes a table of words, whose short rows are padded with empty words, and
// a list of the numbers of words.
func (c *compiler) stringSplit(n *node) error {
	x := n.in[0]
	if x.kind != tensor.String {
		return fmt.Errorf("it is for texts, not for %s", typeName(x.kind))
	}
	if done, err := c.words(n); done || err != nil {
		return err
	}
	p, err := splitterOf(n)
	if err != nil {
		return err
	}
	var shape []int
	if x.shape != nil {
		shape = append(slices.Clone(x.shape), tensor.Any)
	}
	words, counts := c.output(n, 0, tensor.String, shape), c.output(n, 1, tensor.Int64, x.shape)
	from, to, count := x.ref, words.ref, counts.ref
	c.add(n.describe(), []*value{x}, []*value{words, counts}, func(s *state) error { return p.run(s, from, to, count) })
	return nil
}

func (p splitter) run(s *state, from, to, count *ref) error {
	in := s.get(from)
	counts, err := s.prepare(count, tensor.Int64, in.Shape...)
	if err != nil {
		return err
	}
	all, width := s.text.words[:0], 0
	for i, text := range in.Strings {
		before := len(all)
		all = p.words(all, text)
		counts.Ints[i] = int64(len(all) - before)
		width = max(width, len(all)-before)
	}
	s.text.words = all
	var room [maxRank + 1]int
	out, err := s.prepare(to, tensor.String, append(append(room[:0], in.Shape...), width)...)
	if err != nil {
		return err
	}
	clear(out.Strings)
	for i, n := range counts.Ints {
		copy(out.Strings[i*width:], all[:n])
		all = all[n:]
	}
	clear(s.text.words)
	return nil
}
