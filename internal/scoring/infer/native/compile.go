package native

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// value is an operator's output, with everything that is known about it before a run.
type value struct {
	kind  tensor.Type
	shape []int          // Any where a dimension is open; nil if the rank is unknown
	known *tensor.Tensor // set if the value is the same in every run
	ref   *ref           // location in a run; steps hold this and nothing else of the value
}

// compiler makes a program from a graph.
type compiler struct {
	model   *onnx.Model
	program *Program
	values  map[string]*value
	takers  map[string][]int // indexes of the nodes that read a value; -1 is an output of the graph
	done    []bool           // nodes that another node's step includes
	left    *limits          // limits for constant folding
	wrong   error            // first problem with an attribute
}

// Load compiles a model. The error wraps onnx.ErrUnsupported if this engine does not
// support the graph.
func Load(data []byte) (*Program, error) {
	m, err := onnx.Read(data)
	if err != nil {
		return nil, err
	}
	p, err := compile(m, &limits{numbers: 1<<16 + 2*len(data), products: 1<<20 + 64*len(data)})
	if err != nil {
		return nil, fmt.Errorf("load ONNX model: %w", err)
	}
	return p, nil
}

// compile compiles a graph, which may be the body of another one. All graphs of a file share the limits.
func compile(m *onnx.Model, left *limits) (*Program, error) {
	c := &compiler{
		model: m, values: map[string]*value{}, takers: map[string][]int{}, done: make([]bool, len(m.Nodes)),
		program: &Program{metadata: m.Metadata, labels: m.ClassNames(), limits: usual}, left: left,
	}
	return c.program, c.compile()
}

func (c *compiler) compile() error {
	if err := c.versions(); err != nil {
		return err
	}
	if err := c.declareInputs(); err != nil {
		return err
	}
	if err := c.foldConstants(); err != nil {
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

// Supported versions of the operators. Before version 7 broadcasting was different, and
// ONNX Runtime does not support those versions either.
const (
	oldest   = 7
	newest   = 28
	newestML = 5
	ml       = "ai.onnx.ml"
)

func (c *compiler) versions() error {
	v, ok := c.model.Opsets[""]
	if !ok && slices.ContainsFunc(c.model.Nodes, func(n onnx.Node) bool { return n.Domain == "" }) {
		return errors.New("it does not give the version of its ONNX operators (opset_import)")
	}
	if ok && (v < oldest || v > newest) {
		return fmt.Errorf("version %d of ONNX's operators %w: export for one from %d to %d", v, onnx.ErrUnsupported, oldest, newest)
	}
	if v := c.model.Opsets[ml]; v > newestML {
		return fmt.Errorf("version %d of %s %w: export for one up to %d", v, ml, onnx.ErrUnsupported, newestML)
	}
	return nil
}

// declareInputs declares the inputs and the weights.
func (c *compiler) declareInputs() error {
	for i, s := range c.model.Inputs {
		if !isSupported(s.Type) {
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

// foldConstants computes everything that is the same in every run, such as shapes and weights
// that an exporter transposed.
func (c *compiler) foldConstants() error {
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
	s := &state{program: &Program{}, left: *c.left}
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
	*c.left = s.left
	return nil
}

// emit builds the step of a node.
func (c *compiler) emit(i int) error {
	n := c.node(i)
	if slices.Contains(c.model.Functions, n.Domain+"."+n.Op) {
		return fmt.Errorf("%s: a function of the file's own %w", n.describe(), onnx.ErrUnsupported)
	}
	of, known := find(n)
	if !known {
		return fmt.Errorf("operator %s %w", n.describe(), onnx.ErrUnsupported)
	}
	for i, name := range n.Inputs {
		if name != "" && n.in[i] == nil {
			return fmt.Errorf("%s: nothing makes its input %q: the operator before it has no such output", n.describe(), name)
		}
		if name != "" && !isSupported(n.in[i].kind) {
			return fmt.Errorf("%s for type %s %w", n.describe(), typeName(n.in[i].kind), onnx.ErrUnsupported)
		}
	}
	if err := of.add(c, n); err != nil {
		return fmt.Errorf("%s: %w", n.describe(), err)
	}
	return c.wrong
}

// add appends a step.
func (c *compiler) add(what string, reads, writes []*value, run func(*state) error) {
	c.program.steps = append(c.program.steps, step{what: what, reads: reads, writes: writes, run: run})
}

// finish assigns a location to every value and frees the compiler's data.
func (c *compiler) finish() error {
	if err := c.declareOutputs(); err != nil {
		return err
	}
	c.live()
	c.constants()
	p := c.program
	for i := range p.steps {
		p.steps[i].reads, p.steps[i].writes = nil, nil
	}
	p.bytes += int64(unsafe.Sizeof(*p)) + 256*int64(len(p.steps))
	for key, text := range p.metadata {
		p.bytes += 2*textSize + int64(len(key)+len(text))
	}
	for _, label := range p.labels {
		p.bytes += textSize + int64(len(label))
	}
	return nil
}

// declareOutputs makes values the graph's outputs. A value that is an input, a constant or
// another output already is copied.
func (c *compiler) declareOutputs() error {
	for i, s := range c.model.Outputs {
		v := c.values[s.Name]
		if v == nil || !isSupported(v.kind) {
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

// live assigns cells to values and reuses each cell after the last step that reads it.
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
				delete(last, v.ref) // a step may read a value twice
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

// constants keeps the constants that steps read unchanged. The others are already part of a step.
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

// textSize is the memory of a text besides its letters.
const textSize = 16

// sizeOf returns the memory of a tensor.
func sizeOf(t *tensor.Tensor) int64 {
	n := int64(unsafe.Sizeof(*t)) + 8*int64(len(t.Shape)) + 4*int64(len(t.Floats)) + 8*int64(len(t.Doubles)) + 8*int64(len(t.Ints))
	for _, s := range t.Strings {
		n += textSize + int64(len(s))
	}
	return n
}
