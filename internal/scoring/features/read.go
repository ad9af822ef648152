package features

import (
	"errors"
	"math"

	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/jsontensor"
)

// ErrLength means that an event's arrays have another length than those of earlier rows, where the
// model leaves the length open. The event may be fine: it can be the first row of other tensors.
var ErrLength = errors.New("has another length than the other events of its batch")

// Read reads an event into a row of the tensors that Begin prepared. Rows are read in
// order. After an error, which names the missing or mismatched value, the caller may
// use the row again. Texts point into the event or into the tensors. Read allocates
// nothing once the tensors have grown to their size.
//
// Where a model leaves a length open, the first row sets it for all rows. Another
// length is an error that wraps ErrLength.
func (p *Plan) Read(v *broker.View, in []tensor.Tensor, row int) error {
	r := reader{plan: p, in: in, row: row}
	for _, i := range p.attributes {
		if err := r.attribute(v, i); err != nil {
			return err
		}
	}
	if p.root == nil {
		return nil
	}
	if !isJSON(v.DataContentType) {
		return r.opaque(v)
	}
	r.b = v.Data
	end := r.visit(p.root, jsonscan.SkipSpace(r.b, 0))
	isJSON := end >= 0 && jsonscan.SkipSpace(r.b, end) == len(r.b)
	if !isJSON && v.Data != nil || !r.isComplete() && !r.fillDefaults() {
		return r.fault(v)
	}
	return nil
}

// fillDefaults reads the defaults of the slots that were not found. It returns false if one of them
// has no default, or if the event has a value for it that is of another kind.
func (r *reader) fillDefaults() bool {
	for s := range r.plan.slots {
		if r.plan.slots[s].at.attribute != "" || r.found[s/64]>>(s%64)&1 != 0 {
			continue
		}
		if r.wrong[s/64]>>(s%64)&1 != 0 || !r.readDefault(s) {
			return false
		}
		r.found[s/64] |= 1 << (s % 64)
	}
	return true
}

// readDefault reads a slot's default into the row, as if the event had it.
func (r *reader) readDefault(s int) bool {
	def := r.plan.slots[s].def
	if def == nil {
		return false
	}
	if string(def) == DefaultNaN {
		return r.readNaN(s)
	}
	of := r.b
	r.b = def
	end := r.slot(s, 0)
	r.b = of
	return end == len(def)
}

// DefaultNaN is the default NaN, for models that fill in missing numbers themselves.
const DefaultNaN = "NaN"

// readNaN fills a slot's row with NaN. Only numbers with fractions have it.
func (r *reader) readNaN(index int) bool {
	s, t := &r.plan.slots[index], &r.in[index]
	if s.open || s.Type != tensor.Float && s.Type != tensor.Double {
		return false
	}
	r.begin(s, t)
	for at := r.at; at < r.at+width(t); at++ {
		if s.Type == tensor.Float {
			t.Floats[at] = float32(math.NaN())
		} else {
			t.Doubles[at] = math.NaN()
		}
	}
	return true
}

// reader holds the state of reading one event.
type reader struct {
	plan *Plan
	in   []tensor.Tensor
	row  int
	b    []byte // event's data, JSON

	found [maxInputs / 64]uint64 // bit set of the slots that were found
	wrong [maxInputs / 64]uint64 // bit set of the slots whose value is of another kind, and not null
	at    int                    // position of the slot's next value
}

// visit reads the wanted values at a place of the document and below it. It returns the
// end of that place, or -1 if it is not JSON. A place may be visited twice, because a
// member may occur twice. The last one counts, with everything below it.
func (r *reader) visit(n *node, i int) int {
	for _, s := range n.under {
		r.found[s/64] &^= 1 << (s % 64)
		r.wrong[s/64] &^= 1 << (s % 64)
	}
	end := 0
	for _, s := range n.slots {
		end = r.readSlot(s, n, i)
	}
	switch {
	case len(n.under) == 0 || end < 0 || i >= len(r.b):
	case r.b[i] == '{':
		return r.object(n, i)
	case r.b[i] == '[':
		return r.list(n, i)
	}
	if len(n.slots) == 0 {
		return jsonscan.SkipValue(r.b, i, n.depth)
	}
	return end
}

// readSlot reads a slot. It skips a value of another kind, because the right one may follow.
func (r *reader) readSlot(s int, n *node, i int) int {
	if end := r.slot(s, i); end >= 0 {
		r.found[s/64] |= 1 << (s % 64)
		return end
	}
	r.found[s/64] &^= 1 << (s % 64)
	r.wrong[s/64] |= 1 << (s % 64)
	if jsonscan.SkipWord(r.b, i, "null") >= 0 {
		r.wrong[s/64] &^= 1 << (s % 64)
	}
	return jsonscan.SkipValue(r.b, i, n.depth)
}

func (r *reader) object(n *node, i int) int {
	i, more := jsonscan.Enter(r.b, i, '}', n.depth+1)
	for more {
		if i >= len(r.b) || r.b[i] != '"' {
			return -1
		}
		name := jsonscan.ReadString(r.b, i)
		at := jsonscan.SkipColon(r.b, name.End)
		if at < 0 {
			return -1
		}
		if to := n.member(r.b, i, name); to != nil {
			at = r.visit(to, at)
		} else {
			at = jsonscan.SkipValue(r.b, at, n.depth+1)
		}
		if at < 0 {
			return -1
		}
		i, more = jsonscan.Next(r.b, at, '}')
	}
	return i
}

func (n *node) member(b []byte, i int, name jsonscan.String) *node {
	for k := range n.members {
		if m := &n.members[k]; name.Is(b, i, m.name) {
			return m.to
		}
	}
	return nil
}

func (r *reader) list(n *node, i int) int {
	i, more := jsonscan.Enter(r.b, i, ']', n.depth+1)
	for k := 0; more; k++ {
		if to := n.element(k); to != nil {
			i = r.visit(to, i)
		} else {
			i = jsonscan.SkipValue(r.b, i, n.depth+1)
		}
		if i < 0 {
			return -1
		}
		i, more = jsonscan.Next(r.b, i, ']')
	}
	return i
}

func (n *node) element(k int) *node {
	for e := range n.elements {
		if n.elements[e].index == k {
			return n.elements[e].to
		}
	}
	return nil
}

// isComplete reports whether every slot in the data was found.
func (r *reader) isComplete() bool { return r.missing() < 0 }

// missing returns the first slot that was not found, or -1.
func (r *reader) missing() int {
	for s := range r.plan.slots {
		if r.plan.slots[s].at.attribute == "" && r.found[s/64]>>(s%64)&1 == 0 {
			return s
		}
	}
	return -1
}

// slot reads the value at i into its slot's row. It returns the value's end, or -1 if
// the value is of another kind.
func (r *reader) slot(index, i int) int {
	s, t := &r.plan.slots[index], &r.in[index]
	if i >= len(r.b) {
		return -1
	}
	r.begin(s, t)
	if r.b[i] != '[' {
		return r.single(t, i)
	}
	if s.flat(r.b, i) {
		return r.elements(t, i, width(t), nil)
	}
	end := r.array(t, 1, i)
	if end >= 0 && s.open && r.row == 0 {
		t.Resize(r.at)
	}
	return end
}

// begin finds the row's position. The first row resets the open sizes, because a
// previous attempt at it was not read to the end.
func (r *reader) begin(s *slot, t *tensor.Tensor) {
	if s.open && r.row == 0 {
		copy(t.Shape[1:], s.Shape[1:])
	}
	n := max(width(t), 0)
	r.at = r.row * n
	if r.at+n > t.Len() {
		t.Resize(r.at + n)
	}
}

// single reads a value that is not an array. A single value counts as an array of one value.
func (r *reader) single(t *tensor.Tensor, i int) int {
	if !isSingle(t) {
		return -1
	}
	return jsontensor.Value(r.b, i, t, r.at)
}

// isSingle reports whether a row is one value. If the row's shape is still open, isSingle decides
// it for all rows.
func isSingle(t *tensor.Tensor) bool {
	for j, n := range t.Shape[1:] {
		if n < 0 {
			t.Shape[j+1] = 1
		} else if n != 1 {
			return false
		}
	}
	if t.Len() == 0 {
		t.Resize(1) // the first row has just set the size
	}
	return true
}

// flat reports whether an array holds the values of all dimensions in one list, or the
// only value of none.
func (s *slot) flat(b []byte, i int) bool {
	i = jsonscan.SkipSpace(b, i+1)
	return len(s.Shape) == 1 || len(s.Shape) > 2 && !s.open && i < len(b) && b[i] != '['
}

// array reads one dimension of a slot and those below it.
func (r *reader) array(t *tensor.Tensor, dim, i int) int {
	if dim == len(t.Shape)-1 {
		return r.elements(t, i, t.Shape[dim], &t.Shape[dim])
	}
	n := 0
	i, more := jsonscan.Enter(r.b, i, ']', 1)
	for ; more; n++ {
		if i >= len(r.b) || r.b[i] != '[' || t.Shape[dim] >= 0 && n == t.Shape[dim] {
			return -1
		}
		if i = r.array(t, dim+1, i); i < 0 {
			return -1
		}
		i, more = jsonscan.Next(r.b, i, ']')
	}
	return checkSize(&t.Shape[dim], n, i)
}

// checkSize checks a dimension against its size, or sets the size if it is open.
func checkSize(size *int, n, end int) int {
	if *size < 0 {
		*size = n
	}
	if *size != n {
		return -1
	}
	return end
}

// elements reads an array of want values, or of any number if want is negative.
func (r *reader) elements(t *tensor.Tensor, i, want int, size *int) int {
	i, more := jsonscan.Enter(r.b, i, ']', 1)
	read := 0
	for more {
		limit := r.at + want - read
		if want < 0 {
			limit = r.grown(t)
		} else if limit > t.Len() { // the first row has set this size, and its number of lists is open
			t.Resize(limit)
		}
		if limit == r.at {
			return -1
		}
		var n int
		if n, i = jsontensor.Values(r.b, i, t, r.at, limit); i < 0 {
			return -1
		}
		r.at, read = r.at+n, read+n
		more = r.b[i-1] == ','
	}
	if want < 0 {
		return checkSize(size, read, i)
	}
	if read != want {
		return -1
	}
	return i
}

// grown makes room for more values than fit and returns the new capacity.
func (r *reader) grown(t *tensor.Tensor) int {
	if r.at == t.Cap() {
		t.Resize(max(16, 2*r.at))
	}
	t.Resize(t.Cap())
	return t.Cap()
}

// Begin prepares tensors for up to rows rows. From then on, their old values may be overwritten.
func (p *Plan) Begin(in []tensor.Tensor, rows int) {
	for i := range p.slots {
		s, t := &p.slots[i], &in[i]
		t.Type = s.Type
		t.Shape = append(t.Shape[:0], s.Shape...)
		t.Shape[0] = rows
		t.Text = t.Text[:0]
		t.Resize(max(0, rows*width(t)))
	}
}

// End cuts the tensors to the rows that were read.
func (p *Plan) End(in []tensor.Tensor, rows int) {
	for i := range p.slots {
		t := &in[i]
		t.Shape[0] = rows
		for j, n := range t.Shape {
			t.Shape[j] = max(n, 0) // no event has set it
		}
		t.Resize(rows * width(t))
	}
}

// width returns the number of values in a row, or a negative number if no event has set it yet.
func width(t *tensor.Tensor) int {
	n := 1
	for _, size := range t.Shape[1:] {
		if size < 0 {
			return -1
		}
		n *= size
	}
	return n
}
