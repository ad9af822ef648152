package pick

import (
	"errors"

	"tidemill.dev/broker"
	"tidemill.dev/internal/infer/tensor"
)

// ErrLength says that an event may be sound, but that its arrays are of another
// length than those of the rows before it, where a model leaves the length open:
// it can be read into the first row of other tensors.
var ErrLength = errors.New("is of another length than the events that are read beside it")

// Read reads an event into a row of the tensors that Begin has made ready. Rows
// are read in their order. After an error, which says what is missing or of
// another kind, the row may be used again. Texts point into the event, or into
// the tensors. It allocates nothing once the tensors have had their size.
//
// Where a model leaves a length open, the first row says it for all: of another
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
	end := r.visit(p.root, skipSpace(r.b, 0))
	if end < 0 || skipSpace(r.b, end) != len(r.b) || !r.complete() {
		return r.fault(v)
	}
	return nil
}

// reader is one reading of an event.
type reader struct {
	plan *Plan
	in   []tensor.Tensor
	row  int
	b    []byte // JSON

	found [maxInputs / 64]uint64 // slots
	at    int                    // where the next value of the slot goes
}

// visit reads what is wanted at a place of the document or below it, and returns
// where that ends, or -1 if it is no JSON. A place may be visited twice, since a
// member may stand twice: the last counts, with all that is below it.
func (r *reader) visit(n *node, i int) int {
	for _, s := range n.under {
		r.found[s/64] &^= 1 << (s % 64)
	}
	end := 0
	for _, s := range n.slots {
		end = r.take(s, n, i)
	}
	switch {
	case len(n.under) == 0 || end < 0 || i >= len(r.b):
	case r.b[i] == '{':
		return r.object(n, i)
	case r.b[i] == '[':
		return r.list(n, i)
	}
	if len(n.slots) == 0 {
		return skipValue(r.b, i, n.depth)
	}
	return end
}

// take reads a slot. A value of another kind is passed: it may be that another
// follows.
func (r *reader) take(s int, n *node, i int) int {
	if end := r.slot(s, i); end >= 0 {
		r.found[s/64] |= 1 << (s % 64)
		return end
	}
	r.found[s/64] &^= 1 << (s % 64)
	return skipValue(r.b, i, n.depth)
}

func (r *reader) object(n *node, i int) int {
	i, more := enter(r.b, i, '}', n.depth+1)
	for more {
		if i >= len(r.b) || r.b[i] != '"' {
			return -1
		}
		name := scanString(r.b, i)
		at := skipColon(r.b, name.end)
		if at < 0 {
			return -1
		}
		if to := n.member(r.b, i, name); to != nil {
			at = r.visit(to, at)
		} else {
			at = skipValue(r.b, at, n.depth+1)
		}
		if at < 0 {
			return -1
		}
		i, more = next(r.b, at, '}')
	}
	return i
}

func (n *node) member(b []byte, i int, name scanned) *node {
	for k := range n.members {
		if m := &n.members[k]; name.is(b, i, m.name) {
			return m.to
		}
	}
	return nil
}

func (r *reader) list(n *node, i int) int {
	i, more := enter(r.b, i, ']', n.depth+1)
	for k := 0; more; k++ {
		if to := n.element(k); to != nil {
			i = r.visit(to, i)
		} else {
			i = skipValue(r.b, i, n.depth+1)
		}
		if i < 0 {
			return -1
		}
		i, more = next(r.b, i, ']')
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

// complete tells whether every slot was found that is in the data.
func (r *reader) complete() bool { return r.missing() < 0 }

// missing is the first that was not, -1 if all were.
func (r *reader) missing() int {
	for s := range r.plan.slots {
		if r.plan.slots[s].at.attribute == "" && r.found[s/64]>>(s%64)&1 == 0 {
			return s
		}
	}
	return -1
}
