package onnx

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// ErrUnsupported means that a graph may be valid, but this engine does not support it.
// The error names the operator.
var ErrUnsupported = errors.New("is not supported by this engine")

// Model is a parsed ONNX file.
type Model struct {
	IR              int64
	Opsets          map[string]int64 // versions by domain; "" is ONNX's own
	Inputs, Outputs []tensor.Spec    // inputs without the weights
	Nodes           []Node           // each node is after those whose outputs it reads
	// Weights of a type that package tensor lacks have no numbers.
	Weights   map[string]*tensor.Tensor
	Metadata  map[string]string
	Functions []string // operators that the file defines itself, as domain.name
}

// Node is an operator with its inputs and outputs.
type Node struct {
	Name, Op, Domain string
	Inputs, Outputs  []string // an empty name is an absent optional input or output
	Attributes       map[string]Attribute
}

// Types of the attributes that are read. An attribute of another type has its type and no value.
const (
	AttributeFloat  = 1
	AttributeInt    = 2
	AttributeText   = 3
	AttributeTensor = 4
	AttributeGraph  = 5
	AttributeFloats = 6
	AttributeInts   = 7
	AttributeTexts  = 8
)

// Attribute is a setting of an operator.
type Attribute struct {
	Type   int // AttributeProto.AttributeType
	Float  float32
	Int    int64
	Text   string
	Tensor *tensor.Tensor
	Graph  *Model // body of a loop; nil if it has bodies itself or reads values from outside
	Floats []float32
	Ints   []int64
	Texts  []string
}

// ClassNames returns the names of a classifier's classes in the order of its scores; nil if the graph
// has none. Exporters write them into the classifier, into a ZipMap after it, or as the list from
// which the label is taken. Of several, the last one counts: an ensemble ends with its own.
func (m *Model) ClassNames() []string {
	for i := range slices.Backward(m.Nodes) {
		if names := m.Nodes[i].classNames(m.Weights); len(names) > 0 {
			return names
		}
	}
	return nil
}

func (n *Node) classNames(weights map[string]*tensor.Tensor) []string {
	names := n.Attributes["classlabels_strings"].Texts
	for _, key := range []string{"classlabels_ints", "classlabels_int64s"} {
		names = append(names, numberNames(n.Attributes[key].Ints)...)
	}
	if len(names) > 0 || n.Op != "ArrayFeatureExtractor" || len(n.Inputs) == 0 || weights[n.Inputs[0]] == nil {
		return names
	}
	list := weights[n.Inputs[0]]
	return append(slices.Clone(list.Strings), numberNames(list.Ints)...)
}

func numberNames(numbers []int64) (names []string) {
	for _, v := range numbers {
		names = append(names, strconv.FormatInt(v, 10))
	}
	return names
}

// standard is the long name of ONNX's own domain. Files use either that or the empty name.
const standard = "ai.onnx"

// domain returns the form of a domain's name that this package uses.
func domain(name string) string {
	if name == standard {
		return ""
	}
	return name
}

func (r *reader) graph(f field) error {
	err := r.readNested(f, func(f field) error {
		switch f.number {
		case 1:
			return r.node(f)
		case 5:
			return r.weight(f)
		case 11:
			return r.port(&r.model.Inputs, f)
		case 12:
			return r.port(&r.model.Outputs, f)
		case 15:
			return fmt.Errorf("sparse weights: %w", ErrUnsupported)
		}
		return nil
	})
	// Before version 4 of the format, weights were inputs too.
	r.model.Inputs = slices.DeleteFunc(r.model.Inputs, func(s tensor.Spec) bool { return r.model.Weights[s.Name] != nil })
	return err
}

func (r *reader) weight(f field) error {
	b, err := f.message()
	if err != nil {
		return err
	}
	name, t, err := r.tensor(b)
	if err != nil {
		return err
	}
	if r.model.Weights[name] != nil {
		return fmt.Errorf("weights %q: there are two of that name", name)
	}
	r.model.Weights[name] = t
	return nil
}

func (r *reader) node(f field) error {
	if err := r.countMemory(nodeSize); err != nil {
		return err
	}
	var n Node
	err := r.readNested(f, func(f field) (err error) {
		switch f.number {
		case 1:
			n.Inputs, err = r.texts(n.Inputs, f)
		case 2:
			n.Outputs, err = r.texts(n.Outputs, f)
		case 3:
			n.Name, err = r.text(f)
		case 4:
			n.Op, err = r.text(f)
		case 5:
			err = r.setting(&n, f)
		case 7:
			n.Domain, err = r.text(f)
		}
		return err
	})
	n.Domain = domain(n.Domain)
	r.model.Nodes = append(r.model.Nodes, n)
	if err != nil {
		return fmt.Errorf("node %d, %s %q: %w", len(r.model.Nodes), n.Op, n.Name, err)
	}
	return nil
}

func (r *reader) setting(n *Node, f field) error {
	if err := r.countMemory(attributeSize); err != nil {
		return err
	}
	name, a, err := r.attribute(f)
	if err != nil {
		return fmt.Errorf("attribute %s: %w", name, err)
	}
	if _, twice := n.Attributes[name]; twice {
		return fmt.Errorf("attribute %s is listed twice", name)
	}
	if n.Attributes == nil {
		n.Attributes = map[string]Attribute{}
	}
	n.Attributes[name] = a
	return nil
}

func (r *reader) attribute(f field) (name string, a Attribute, err error) {
	b, err := f.message()
	if err == nil {
		err = r.countMemory(specSize)
	}
	size := len(b)
	for len(b) > 0 && err == nil {
		switch b[0] { // an element of a list; trees have hundreds of thousands of them
		case 7<<3 | wireFixed32:
			a.Floats, b, err = r.floatList(listOf(a.Floats, size/5), b)
			continue
		case 8<<3 | wireVarint:
			a.Ints, b, err = r.integerList(listOf(a.Ints, size/2), b)
			continue
		}
		if f, b, err = next(b); err == nil {
			name, err = r.part(&a, name, f, size)
		}
	}
	return name, a, err
}

// body reads a graph in a graph; nil if no engine of ours could run it.
func (r *reader) body(f field) (*Model, error) {
	if r.inside {
		return nil, nil
	}
	inner := &reader{left: r.left, known: r.known, inside: true, model: newModel()}
	err := inner.graph(f)
	r.left = inner.left
	if err != nil || inner.model.order() != nil {
		return nil, err
	}
	return inner.model, nil
}

// part reads a part of an attribute of a size.
func (r *reader) part(a *Attribute, name string, f field, size int) (string, error) {
	var err error
	switch f.number {
	case 1:
		name, err = r.text(f)
	case 2:
		a.Float, err = f.float()
	case 3:
		a.Int, err = f.integer()
	case 4:
		a.Text, err = r.text(f)
	case 5:
		var b []byte
		if b, err = f.message(); err == nil {
			_, a.Tensor, err = r.tensor(b)
		}
	case 6:
		a.Graph, err = r.body(f)
	case 7:
		a.Floats, err = r.floats(a.Floats, f)
	case 8:
		a.Ints, err = r.integers(a.Ints, f)
	case 9:
		a.Texts, err = r.texts(listOf(a.Texts, size/(2+min(len(f.bytes), 6))), f)
	case 20:
		var kind int64
		kind, err = f.integer()
		a.Type = int(kind)
	}
	return name, err
}

// listOf makes room for a list before its first element.
func listOf[T any](to []T, most int) []T {
	if to == nil {
		return make([]T, 0, most)
	}
	return to
}

// port reads an input or an output of the graph.
func (r *reader) port(to *[]tensor.Spec, f field) error {
	var s tensor.Spec
	err := r.readNested(f, func(f field) (err error) {
		switch f.number {
		case 1:
			s.Name, err = r.text(f)
		case 2:
			err = r.readNested(f, func(f field) error {
				if f.number != 1 { // a sequence or map has no tensor type
					return nil
				}
				return r.portType(&s, f)
			})
		}
		return err
	})
	*to = append(*to, s)
	return err
}

func (r *reader) portType(s *tensor.Spec, f field) error {
	return r.readNested(f, func(f field) error {
		switch f.number {
		case 1:
			n, err := f.integer()
			s.Type = tensor.Type(n)
			return err
		case 2:
			s.Shape = []int{}
			return r.readNested(f, func(f field) error { return r.dimension(s, f) })
		}
		return nil
	})
}

func (r *reader) dimension(s *tensor.Spec, f field) error {
	if f.number != 1 {
		return nil
	}
	size := int64(tensor.Any)
	err := r.readNested(f, func(f field) (err error) {
		if f.number == 1 {
			size, err = f.integer()
		}
		return err
	})
	if err == nil && (size < tensor.Any || size > maxElements) {
		err = fmt.Errorf("%q has a side of %d", s.Name, size)
	}
	s.Shape = append(s.Shape, int(size))
	return err
}

// order sorts the nodes so that each is after those whose outputs it reads. It fails if an input is
// missing or a name is defined twice. Files usually are sorted already, and then their order stays.
func (m *Model) order() error {
	maker := make(map[string]int, len(m.Nodes)) // node that makes a value; -1 is the file
	for name := range m.Weights {
		maker[name] = -1
	}
	for _, s := range m.Inputs {
		if _, twice := maker[s.Name]; twice || s.Name == "" {
			return fmt.Errorf("input %q: there is none of that name, or two", s.Name)
		}
		maker[s.Name] = -1
	}
	for i, n := range m.Nodes {
		for _, name := range n.Outputs {
			if _, twice := maker[name]; twice && name != "" {
				return fmt.Errorf("%s %q: %q is made twice", n.Op, n.Name, name)
			}
			if name != "" {
				maker[name] = i
			}
		}
	}
	for _, s := range m.Outputs {
		if _, ok := maker[s.Name]; !ok {
			return fmt.Errorf("output %q: nothing makes it", s.Name)
		}
	}
	return m.sort(maker)
}

// sort is Kahn's algorithm: a node follows once all its inputs are made.
func (m *Model) sort(maker map[string]int) error {
	waits := make([]int, len(m.Nodes)) // number of inputs that a node still waits for
	users := make([][]int, len(m.Nodes))
	ready := make([]int, 0, len(m.Nodes))
	inOrder := true
	for i, n := range m.Nodes {
		for _, name := range n.Inputs {
			by, known := maker[name]
			if !known && name != "" {
				return fmt.Errorf("%s %q: nothing makes its input %q", n.Op, n.Name, name)
			}
			if name != "" && by >= 0 {
				waits[i]++
				users[by] = append(users[by], i)
				inOrder = inOrder && by < i
			}
		}
		if waits[i] == 0 {
			ready = append(ready, i)
		}
	}
	if inOrder {
		return nil
	}
	for k := 0; k < len(ready); k++ {
		for _, i := range users[ready[k]] {
			if waits[i]--; waits[i] == 0 {
				ready = append(ready, i)
			}
		}
	}
	if len(ready) != len(m.Nodes) {
		return fmt.Errorf("its nodes wait for each other in a circle")
	}
	sorted := make([]Node, len(ready))
	for k, i := range ready {
		sorted[k] = m.Nodes[i]
	}
	m.Nodes = sorted
	return nil
}
