package pick

import (
	"errors"
	"fmt"
	"strings"

	"tidemill.dev/internal/infer/tensor"
)

// Field is an input of a model and where it is found.
type Field struct {
	Input string // name of the tensor; may be empty if the model has one
	Path  string // see CheckPath
}

// maxInputs bounds what a reader keeps on its stack.
const maxInputs = 256

// Plan reads events for one set of inputs. It is safe for concurrent use.
type Plan struct {
	slots      []slot // by input
	attributes []int  // slots that are read from attributes
	root       *node  // what is looked for in the data; nil if nothing is
}

// slot is an input and where it is found.
type slot struct {
	tensor.Spec
	at   parsed
	path string
	open bool // a size besides the rows' is the events' to say
}

// node is a place in the data that slots are found at or below.
type node struct {
	depth    int // how many objects and arrays it lies in
	slots    []int
	under    []int // slots, its own not among them
	members  []member
	elements []element
}

type member struct {
	name string
	to   *node
}

type element struct {
	index int
	to    *node
}

// New makes a plan. Inputs that no field names are looked for at data.<name>.
func New(fields []Field, inputs []tensor.Spec) (*Plan, error) {
	if len(inputs) == 0 || len(inputs) > maxInputs {
		return nil, fmt.Errorf("map the inputs of a model: it has %d, and 1 to %d are taken", len(inputs), maxInputs)
	}
	p := &Plan{slots: make([]slot, len(inputs))}
	for i, spec := range inputs {
		s, err := newSlot(spec)
		if err != nil {
			return nil, fmt.Errorf("map input %q: %w", spec.Name, err)
		}
		p.slots[i] = s
	}
	for _, f := range fields {
		if err := p.place(f); err != nil {
			return nil, fmt.Errorf("map input %q: %w", f.Input, err)
		}
	}
	p.compile()
	return p, nil
}

func newSlot(spec tensor.Spec) (slot, error) {
	switch spec.Type {
	case tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String:
	default:
		return slot{}, fmt.Errorf("no event can be read into a tensor of ONNX's type %d; float, double, int32, int64, bool and string are taken", spec.Type)
	}
	if len(spec.Shape) == 0 {
		return slot{}, errors.New("the model takes one number, not rows of them; export it with a first dimension for the batch")
	}
	s := slot{Spec: spec}
	for _, n := range spec.Shape[1:] {
		s.open = s.open || n < 0
	}
	return s, nil
}

// place gives an input its path.
func (p *Plan) place(f Field) error {
	i, err := p.input(f.Input)
	if err != nil {
		return err
	}
	s := &p.slots[i]
	if s.path != "" {
		return fmt.Errorf("it is mapped twice, to %s and to %s", s.path, f.Path)
	}
	s.path = f.Path
	s.at, err = parsePath(f.Path)
	return err
}

func (p *Plan) input(name string) (int, error) {
	if name == "" && len(p.slots) == 1 {
		return 0, nil
	}
	names := make([]string, len(p.slots))
	for i := range p.slots {
		if names[i] = p.slots[i].Name; names[i] == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the model has no such input; it has %s", strings.Join(names, ", "))
}

// compile makes one tree of the paths into the data.
func (p *Plan) compile() {
	for i := range p.slots {
		s := &p.slots[i]
		if s.path == "" {
			s.at.steps = []step{{name: s.Name}}
			s.path = rootData + s.at.steps[0].String()
		}
		if s.at.attribute != "" {
			p.attributes = append(p.attributes, i)
			continue
		}
		if p.root == nil {
			p.root = &node{}
		}
		n := p.root
		for _, at := range s.at.steps {
			n.under = append(n.under, i)
			n = n.child(at)
		}
		n.slots = append(n.slots, i)
	}
}

// child is the node a step away, which is made if it is not there.
func (n *node) child(s step) *node {
	if s.element {
		for _, e := range n.elements {
			if e.index == s.index {
				return e.to
			}
		}
		to := &node{depth: n.depth + 1}
		n.elements = append(n.elements, element{s.index, to})
		return to
	}
	for _, m := range n.members {
		if m.name == s.name {
			return m.to
		}
	}
	to := &node{depth: n.depth + 1}
	n.members = append(n.members, member{s.name, to})
	return to
}
