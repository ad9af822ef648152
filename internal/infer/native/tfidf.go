package native

import (
	"errors"
	"fmt"

	"tidemill.dev/internal/infer/tensor"
)

// textScratch is what counting words needs.
type textScratch struct {
	words   []string
	letters []byte // a text with its letters changed
	numbers []int32
	index   []int32 // columns that count something, and how much; a column may stand there twice
	value   []float32
}

// tfIdf counts the words of a table, each of whose rows is a text.
func (c *compiler) tfIdf(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	x := n.in[0]
	if err := only(x, tensor.String, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
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
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error { return v.table(s, from, to) })
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
	out, err := s.make(to, tensor.Float, shape...)
	if err == nil {
		err = s.multiply(rows, width, min(v.skip+1, width)*v.most)
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

// spread writes what was counted into a row of zeros. In mode IDF a column says
// that there is something, not how often.
func (v *vocabulary) spread(t *textScratch, row []float32) {
	for i, column := range t.index {
		if v.once {
			row[column] = t.value[i]
		} else {
			row[column] += t.value[i]
		}
	}
}
