package onnx

import "fmt"

// order puts the nodes behind what they need, and sees that there is all that they
// need and that no name is given twice. Files keep such an order as a rule, and
// then it stays as it is.
func (m *Model) order() error {
	maker := make(map[string]int, len(m.Nodes)) // of a value; -1 is the file
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

// sort is Kahn's: a node comes as soon as all that it needs has come.
func (m *Model) sort(maker map[string]int) error {
	waits := make([]int, len(m.Nodes)) // for so many
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
