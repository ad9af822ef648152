package trees

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// stump returns a forest of one node with two leaves.
func stump() *Forest {
	return &Forest{
		Nodes: []Node{{Mode: LessOrEqual, True: 1, False: 2}, {}, {}}, Roots: []int32{0}, Targets: 2,
		Votes: []Vote{{Node: 1, Value: 1}, {Node: 2, Target: 1, Value: 2}},
	}
}

// list returns a tree in which each node has a leaf and the next node.
func list(depth int) *Forest {
	f := &Forest{Roots: []int32{0}, Targets: 1}
	for i := range int32(depth) {
		f.Nodes = append(f.Nodes, Node{Mode: LessOrEqual, True: 2*i + 1, False: 2*i + 2}, Node{})
	}
	f.Nodes = append(f.Nodes, Node{})
	return f
}

// Hostile forests are refused, and the error says what is wrong with which node.
func TestHostileForestsAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Forest){
		"node 0 of the list is the child of two nodes, or part of a cycle": func(f *Forest) { f.Nodes[1], f.Votes = Node{Mode: LessOrEqual, False: 2}, nil },
		"node 1 of the list is the child of two nodes":                     func(f *Forest) { f.Nodes[0].False = 1 },
		"tree 1, node 0 of the list is the child of two nodes":             func(f *Forest) { f.Roots = append(f.Roots, 0) },
		"has no node 3":          func(f *Forest) { f.Nodes[0].False = 3 },
		"has no node -1":         func(f *Forest) { f.Nodes[0].True = -1 },
		"has no node 2147483647": func(f *Forest) { f.Roots[0] = math.MaxInt32 },
		"tree 0, node 0 of the list compares with NaN":    func(f *Forest) { f.Nodes[0].Value = math.NaN() },
		"node 0 of the list asks feature -1":              func(f *Forest) { f.Nodes[0].Feature = -1 },
		"weight 1 is of node 0 of the list, which is not": func(f *Forest) { f.Votes[1].Node = 0 },
		"weight 0 is of node 3 of the list; there are 3":  func(f *Forest) { f.Votes[0].Node = 3 },
		"weight 0 is for target or class 2; there are 2":  func(f *Forest) { f.Votes[0].Target = 2 },
		"weight 0 is for target or class -1":              func(f *Forest) { f.Votes[0].Target = -1 },
		"is 4097 levels deep; at most 4096":               func(f *Forest) { *f = *list(maxDepth + 1) },
	} {
		f := stump()
		change(f)
		if _, err := Build[float32](f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := Build[float64](f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("in float64: %v, want %q", err, want)
		}
	}
	if _, err := Build[float32](stump()); err != nil {
		t.Error(err)
	}
	if _, err := Build[float32](list(maxDepth)); err != nil {
		t.Error(err)
	}
}

// A forest that asks too many different things is valid, and too large for this engine.
func TestTooManyColumns(t *testing.T) {
	f := &Forest{Targets: 1}
	for i := range int32(1 << columnBits) {
		f.Roots = append(f.Roots, int32(len(f.Nodes)))
		f.Nodes = append(f.Nodes, Node{Mode: LessOrEqual, Feature: i, True: 3*i + 1, False: 3*i + 2}, Node{}, Node{})
	}
	if _, err := Build[float32](f); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	f.Roots = f.Roots[1:]
	if _, err := Build[float32](f); err != nil {
		t.Error(err)
	}
}

// Nodes that ask for one number each and have the same child for yes are a set.
func TestAChainOfEqualsIsASet(t *testing.T) {
	f := &Forest{Targets: 1, Roots: []int32{0}, Votes: []Vote{{Node: 3, Value: 1}, {Node: 4, Value: 2}}, Nodes: []Node{
		{Mode: Equal, Value: 4, True: 3, False: 1}, {Mode: Equal, Value: 7, True: 3, False: 2}, {Mode: Equal, Value: 2, True: 3, False: 4}, {}, {},
	}}
	e, err := Build[float32](f)
	if err != nil {
		t.Fatal(err)
	}
	x, sums := []float32{4, 7, 2, 3, float32(math.NaN())}, make([]float32, 5)
	e.Run(new(Scratch), 5, 1, x, sums, make([]bool, 5))
	for i, want := range []float32{1, 1, 1, 2, 2} {
		if sums[i] != want {
			t.Errorf("%v gives %v, want %v", x[i], sums[i], want)
		}
	}
	f.Nodes[2].Feature = 1 // another question, so its child is shared
	if _, err := Build[float32](f); err == nil || !strings.Contains(err.Error(), "child of two nodes") {
		t.Error(err)
	}
	f.Nodes[2].Feature, f.Nodes[2].False = 0, 0
	if _, err := Build[float32](f); err == nil || !strings.Contains(err.Error(), "cycle") {
		t.Error(err)
	}
}
