package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// value is what one operator makes and others take, as far as it is known before
// anything runs.
type value struct {
	kind  tensor.Type
	shape []int          // Any where a side is open; nil if nothing is known
	known *tensor.Tensor // if it is the same in every run
	ref   *ref           // where it lies; steps hold this, and nothing else of it
}

// compiler makes a program of a graph.
type compiler struct {
	model   *onnx.Model
	program *Program
	values  map[string]*value
	takers  map[string][]int // nodes that take a value; an output of the graph counts as -1
	done    []bool           // nodes whose work another has taken over
	left    limits           // for what is computed once and for all
	wrong   error            // what was found of attributes
}

// Load makes a model ready. A graph that this engine does not take is an error
// that wraps onnx.ErrUnsupported.
func Load(data []byte) (*Program, error) {
	m, err := onnx.Read(data)
	if err != nil {
		return nil, err
	}
	c := &compiler{
		model: m, values: map[string]*value{}, takers: map[string][]int{}, done: make([]bool, len(m.Nodes)),
		program: &Program{metadata: m.Metadata, limits: usual},
		left:    limits{numbers: 1<<16 + 2*len(data), products: 1<<20 + 64*len(data)},
	}
	if err := c.compile(); err != nil {
		return nil, fmt.Errorf("load ONNX model: %w", err)
	}
	return c.program, nil
}

func (c *compiler) compile() error {
	if err := c.versions(); err != nil {
		return err
	}
	if err := c.given(); err != nil {
		return err
	}
	if err := c.fold(); err != nil {
		return err
	}
	for i := range c.model.Nodes {
		if c.done[i] {
			continue
		}
		if err := c.emit(i); err != nil {
			return err
		}
	}
	return c.finish()
}

// The versions of operators that we know. Before 7 broadcasting was another, and
// ONNX Runtime takes no older ones either.
const (
	oldest   = 7
	newest   = 28
	newestML = 5
	ml       = "ai.onnx.ml"
)

func (c *compiler) versions() error {
	v, ok := c.model.Opsets[""]
	if !ok && slices.ContainsFunc(c.model.Nodes, func(n onnx.Node) bool { return n.Domain == "" }) {
		return errors.New("it does not say which version of ONNX's operators it means (opset_import)")
	}
	if ok && (v < oldest || v > newest) {
		return fmt.Errorf("version %d of ONNX's operators %w: export for one from %d to %d", v, onnx.ErrUnsupported, oldest, newest)
	}
	if v := c.model.Opsets[ml]; v > newestML {
		return fmt.Errorf("version %d of %s %w: export for one up to %d", v, ml, onnx.ErrUnsupported, newestML)
	}
	return nil
}

// given are the inputs and the weights.
func (c *compiler) given() error {
	for i, s := range c.model.Inputs {
		if !known(s.Type) {
			return fmt.Errorf("input %q: type %s %w", s.Name, typeName(s.Type), onnx.ErrUnsupported)
		}
		c.values[s.Name] = &value{kind: s.Type, shape: s.Shape, ref: &ref{input, i}}
	}
	c.program.inputs = c.model.Inputs
	for name, t := range c.model.Weights {
		if name != "" {
			c.values[name] = constantOf(t)
		}
	}
	for i, n := range c.model.Nodes {
		for _, name := range n.Inputs {
			if name != "" {
				c.takers[name] = append(c.takers[name], i)
			}
		}
	}
	for _, s := range c.model.Outputs {
		c.takers[s.Name] = append(c.takers[s.Name], -1)
	}
	return nil
}

func constantOf(t *tensor.Tensor) *value {
	return &value{kind: t.Type, shape: t.Shape, known: t, ref: &ref{}}
}

// fold computes what is the same in every run: shapes, and weights that an
// exporter turned round.
func (c *compiler) fold() error {
	for i := range c.model.Nodes {
		n := c.node(i)
		if slices.ContainsFunc(n.in, func(v *value) bool { return v == nil || v.known == nil }) || slices.Contains(n.Inputs, "") {
			continue
		}
		c.done[i] = true
		if err := c.emit(i); err != nil {
			return err
		}
		steps := c.program.steps
		c.program.steps = nil
		for _, st := range steps {
			if err := c.compute(st); err != nil {
				return fmt.Errorf("%s: %w", st.what, err)
			}
		}
	}
	return nil
}

// compute runs a step whose inputs are known.
func (c *compiler) compute(st step) error {
	s := &state{program: &Program{}, left: c.left}
	for _, v := range st.reads {
		if v.known != nil {
			*v.ref = ref{constant, len(s.program.constants)}
			s.program.constants = append(s.program.constants, v.known)
		}
	}
	s.cells = make([]tensor.Tensor, len(st.writes))
	for i, v := range st.writes {
		*v.ref = ref{cell, i}
	}
	if err := st.run(s); err != nil {
		return err
	}
	for i, v := range st.writes {
		t := &s.cells[i]
		v.kind, v.shape, v.known = t.Type, t.Shape, t
		*v.ref = ref{}
	}
	for _, v := range st.reads {
		*v.ref = ref{}
	}
	c.left = s.left
	return nil
}

// emit builds the step of a node.
func (c *compiler) emit(i int) error {
	n := c.node(i)
	if slices.Contains(c.model.Functions, n.Domain+"."+n.Op) {
		return fmt.Errorf("%s: a function of the file's own %w", n.what(), onnx.ErrUnsupported)
	}
	build := operator(n.Domain, n.Op)
	if build == nil {
		return fmt.Errorf("operator %s %w", n.what(), onnx.ErrUnsupported)
	}
	for i, name := range n.Inputs {
		if name != "" && n.in[i] == nil {
			return fmt.Errorf("%s: nothing makes its input %q: the operator before it has no such output", n.what(), name)
		}
		if name != "" && !known(n.in[i].kind) {
			return fmt.Errorf("%s for type %s %w", n.what(), typeName(n.in[i].kind), onnx.ErrUnsupported)
		}
	}
	if err := build(c, n); err != nil {
		return fmt.Errorf("%s: %w", n.what(), err)
	}
	return c.wrong
}

// add appends a step.
func (c *compiler) add(what string, reads, writes []*value, run func(*state) error) {
	c.program.steps = append(c.program.steps, step{what: what, reads: reads, writes: writes, run: run})
}
