package native

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tidemill.dev/internal/infer/tensor"
)

// splitter takes texts apart. Without a delimiter it does so at blanks, any number
// of which are one, and leaves those at the ends away, as ONNX Runtime does: at
// blanks, not at tabs or ends of lines.
type splitter struct {
	delimiter string
	most      int // how many times; the rest stays as it is
}

func splitterOf(n *node) (splitter, error) {
	most := n.integer("maxsplit", math.MaxInt32)
	if most < 0 {
		return splitter{}, fmt.Errorf("it may split %d times", most)
	}
	return splitter{n.text("delimiter", ""), int(min(most, math.MaxInt32))}, nil
}

// next takes the first word off a text: done is that there is none. A text that
// is empty has no words; one that ends in a delimiter has an empty one at its end.
func (p splitter) next(text string, times int) (word, rest string, more bool) {
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

// trim prepares a text.
func (p splitter) trim(text string) string {
	if p.delimiter == "" {
		return strings.Trim(text, " ")
	}
	return text
}

// words are those of a text, behind those that are there.
func (p splitter) words(to []string, text string) []string {
	text = p.trim(text)
	if text == "" {
		return to
	}
	for times := 0; ; times++ {
		word, rest, more := p.next(text, times)
		to = append(to, word)
		if !more {
			return to
		}
		text = rest
	}
}

// stringSplit makes a table of words, in which short rows are filled up with empty
// ones, and a list of how many words there are.
func (c *compiler) stringSplit(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
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
	c.add(n.what(), []*value{x}, []*value{words, counts}, func(s *state) error { return p.run(s, from, to, count) })
	return nil
}

func (p splitter) run(s *state, from, to, count *ref) error {
	in := s.get(from)
	counts, err := s.make(count, tensor.Int64, in.Shape...)
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
	out, err := s.make(to, tensor.String, append(append(room[:0], in.Shape...), width)...)
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
