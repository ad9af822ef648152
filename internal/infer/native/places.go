package native

import (
	"fmt"
	"slices"
	"unsafe"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// finish gives every value its place, and lets go of what was needed to compile.
func (c *compiler) finish() error {
	if err := c.answer(); err != nil {
		return err
	}
	c.live()
	c.constants()
	p := c.program
	for i := range p.steps {
		p.steps[i].reads, p.steps[i].writes = nil, nil
	}
	p.bytes += int64(unsafe.Sizeof(*p)) + 256*int64(len(p.steps))
	return nil
}

// answer makes outputs of values. One that is an input, a constant or another
// output already is copied.
func (c *compiler) answer() error {
	for i, s := range c.model.Outputs {
		v := c.values[s.Name]
		if v == nil || !known(v.kind) {
			return fmt.Errorf("output %q: its type %w", s.Name, onnx.ErrUnsupported)
		}
		if v.known != nil || v.ref.place != nowhere {
			to := &value{kind: v.kind, shape: v.shape, ref: &ref{}}
			c.copy("output "+s.Name, v, to)
			v = to
		}
		*v.ref = ref{output, i}
		if s.Type = v.kind; s.Shape == nil {
			s.Shape = v.shape
		}
		c.program.outputs = append(c.program.outputs, s)
	}
	return nil
}

// live gives cells to values, and takes them back behind the last step that reads
// them.
func (c *compiler) live() {
	steps := c.program.steps
	last := map[*ref]int{}
	for i, st := range steps {
		for _, v := range slices.Concat(st.reads, st.writes) {
			last[v.ref] = i
		}
	}
	var free []int
	for i, st := range steps {
		for _, v := range st.writes {
			if v.ref.place == nowhere {
				*v.ref = ref{cell, c.cell(&free)}
			}
		}
		for _, v := range slices.Concat(st.reads, st.writes) {
			if at, live := last[v.ref]; live && at == i && v.ref.place == cell {
				free = append(free, v.ref.at)
				delete(last, v.ref) // it may stand there twice
			}
		}
	}
}

func (c *compiler) cell(free *[]int) int {
	if n := len(*free); n > 0 {
		at := (*free)[n-1]
		*free = (*free)[:n-1]
		return at
	}
	c.program.cells++
	return c.program.cells - 1
}

// constants keeps those that a step reads as they are; the others went into steps.
func (c *compiler) constants() {
	p := c.program
	for _, st := range p.steps {
		for _, v := range st.reads {
			if v.known != nil && v.ref.place == nowhere {
				*v.ref = ref{constant, len(p.constants)}
				p.constants = append(p.constants, v.known)
				p.bytes += sizeOf(v.known)
			}
		}
	}
}

// sizeOf is the memory of a tensor.
func sizeOf(t *tensor.Tensor) int64 {
	n := int64(unsafe.Sizeof(*t)) + 8*int64(len(t.Shape)) + 4*int64(len(t.Floats)) + 8*int64(len(t.Doubles)) + 8*int64(len(t.Ints))
	for _, s := range t.Strings {
		n += 16 + int64(len(s))
	}
	return n
}
