package onnx

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

func (r *reader) graph(f field) error {
	err := r.each(f, func(f field) error {
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
	// Before version 4 of the format weights were inputs too.
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
	if err := r.take(nodeSize); err != nil {
		return err
	}
	var n Node
	err := r.each(f, func(f field) (err error) {
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
	if err := r.take(attributeSize); err != nil {
		return err
	}
	name, a, err := r.attribute(f)
	if err != nil {
		return fmt.Errorf("attribute %s: %w", name, err)
	}
	if _, twice := n.Attributes[name]; twice {
		return fmt.Errorf("attribute %s stands there twice", name)
	}
	if n.Attributes == nil {
		n.Attributes = map[string]Attribute{}
	}
	n.Attributes[name] = a
	return nil
}

func (r *reader) attribute(f field) (name string, a Attribute, err error) {
	err = r.each(f, func(f field) (err error) {
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
		case 7:
			a.Floats, err = r.floats(a.Floats, f)
		case 8:
			a.Ints, err = r.integers(a.Ints, f)
		case 9:
			a.Texts, err = r.texts(a.Texts, f)
		case 20:
			var kind int64
			kind, err = f.integer()
			a.Type = int(kind)
		}
		return err
	})
	return name, a, err
}

// port is an input or an output of the graph.
func (r *reader) port(to *[]tensor.Spec, f field) error {
	var s tensor.Spec
	err := r.each(f, func(f field) (err error) {
		switch f.number {
		case 1:
			s.Name, err = r.text(f)
		case 2:
			err = r.each(f, func(f field) error {
				if f.number != 1 { // a sequence, a map: of no type that we have
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
	return r.each(f, func(f field) error {
		switch f.number {
		case 1:
			n, err := f.integer()
			s.Type = tensor.Type(n)
			return err
		case 2:
			s.Shape = []int{}
			return r.each(f, func(f field) error { return r.dimension(s, f) })
		}
		return nil
	})
}

func (r *reader) dimension(s *tensor.Spec, f field) error {
	if f.number != 1 {
		return nil
	}
	size := int64(tensor.Any)
	err := r.each(f, func(f field) (err error) {
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
