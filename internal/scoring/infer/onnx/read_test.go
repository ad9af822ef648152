package onnx

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// message is an encoded protocol buffers message.
type message []byte

func (m *message) number(field, v int) *message {
	*m = binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3), uint64(v))
	return m
}

func (m *message) bytes(field int, v []byte) *message {
	*m = append(binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3|2), uint64(len(v))), v...)
	return m
}

func (m *message) text(field int, v string) *message { return m.bytes(field, []byte(v)) }

// file returns a file with a graph and the other required fields.
func file(graph message) []byte {
	var opset, label, m message
	opset.text(1, "ai.onnx").number(2, 17)
	label.text(1, "labels").text(2, "a,b")
	return *m.number(1, 9).bytes(7, graph).bytes(8, opset).bytes(14, label)
}

func node(op string, in, out string) message {
	var m message
	for _, s := range strings.Fields(in) {
		m.text(1, s)
	}
	for _, s := range strings.Fields(out) {
		m.text(2, s)
	}
	return *m.text(4, op)
}

func port(name string, sides ...int) message {
	var shape, typ, holder, m message
	for _, n := range sides {
		var side message
		if n >= 0 {
			side.number(1, n)
		}
		shape.bytes(1, side)
	}
	holder.bytes(1, *typ.number(1, int(tensor.Float)).bytes(2, shape))
	return *m.text(1, name).bytes(2, holder)
}

func weight(name string, kind tensor.Type, dims ...int) *message {
	m := new(message)
	for _, n := range dims {
		m.number(1, n)
	}
	return m.number(2, int(kind)).text(8, name)
}

func little(v ...float32) (b []byte) {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// small returns a graph with one of most things.
func small() message {
	var g, m message
	attribute := new(message).text(1, "axis").number(3, -1).number(20, AttributeInt)
	m = node("Softmax", "h", "y")
	g.bytes(1, *m.bytes(5, *attribute))
	g.bytes(1, node("MatMul", "x w", "h"))
	g.bytes(5, *weight("w", tensor.Float, 2, 1).bytes(9, little(1.5, -2)))
	g.bytes(11, port("x", -1, 2)).bytes(11, port("w", 2, 1)).bytes(12, port("y", -1, 1))
	return g
}

func TestRead(t *testing.T) {
	m, err := Read(file(small()))
	if err != nil {
		t.Fatal(err)
	}
	if m.IR != 9 || m.Opsets[""] != 17 || m.Metadata["labels"] != "a,b" {
		t.Errorf("version %d, operators %v, metadata %v", m.IR, m.Opsets, m.Metadata)
	}
	if len(m.Inputs) != 1 || m.Inputs[0].Name != "x" || !slices.Equal(m.Inputs[0].Shape, []int{tensor.Any, 2}) {
		t.Errorf("the inputs are %v: a weight is none", m.Inputs)
	}
	if len(m.Nodes) != 2 || m.Nodes[0].Op != "MatMul" || m.Nodes[1].Attributes["axis"].Int != -1 {
		t.Errorf("the nodes are %+v, and not in order", m.Nodes)
	}
	if w := m.Weights["w"]; !slices.Equal(w.Floats, []float32{1.5, -2}) || !slices.Equal(w.Shape, []int{2, 1}) {
		t.Errorf("the weights are %+v", w)
	}
}

// Numbers may be written in several ways.
func TestWeights(t *testing.T) {
	for name, c := range map[string]struct {
		m    *message
		want tensor.Tensor
	}{
		"floats, packed":       {weight("w", tensor.Float, 2).bytes(4, little(1, 2)), tensor.Tensor{Floats: []float32{1, 2}}},
		"doubles":              {weight("w", tensor.Double, 1).bytes(10, binary.LittleEndian.AppendUint64(nil, math.Float64bits(7))), tensor.Tensor{Doubles: []float64{7}}},
		"integers, one a time": {weight("w", tensor.Int64, 2).number(7, 3).number(7, -4), tensor.Tensor{Ints: []int64{3, -4}}},
		"integers, packed":     {weight("w", tensor.Int32, 3).bytes(5, []byte{1, 2, 3}), tensor.Tensor{Ints: []int64{1, 2, 3}}},
		"32 bits":              {weight("w", tensor.Int32, 1).bytes(9, []byte{255, 255, 255, 255}), tensor.Tensor{Ints: []int64{-1}}},
		"64 bits":              {weight("w", tensor.Int64, 1).bytes(9, []byte{254, 255, 255, 255, 255, 255, 255, 255}), tensor.Tensor{Ints: []int64{-2}}},
		"truths":               {weight("w", tensor.Bool, 2).bytes(9, []byte{0, 1}), tensor.Tensor{Ints: []int64{0, 1}}},
		"texts":                {weight("w", tensor.String, 2).text(6, "a").text(6, ""), tensor.Tensor{Strings: []string{"a", ""}}},
		"a single one":         {weight("w", tensor.Float).bytes(9, little(3)), tensor.Tensor{Floats: []float32{3}}},
		"none":                 {weight("w", tensor.Float, 0, 4), tensor.Tensor{}},
		"of no type of ours":   {weight("w", 10, 2).bytes(9, []byte{1, 2, 3, 4}), tensor.Tensor{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadTensor(*c.m)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Floats, c.want.Floats) || !slices.Equal(got.Doubles, c.want.Doubles) || !slices.Equal(got.Ints, c.want.Ints) || !slices.Equal(got.Strings, c.want.Strings) {
				t.Errorf("it is %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	with := func(change func(g *message)) []byte {
		g := small()
		change(&g)
		return file(g)
	}
	entry := func() []byte { var m message; return *m.text(1, "location").text(2, "weights.bin") }
	var bare message
	for says, data := range map[string][]byte{
		"no graph":          *bare.number(1, 9),
		"cut off":           file(small())[:40],
		"in a circle":       with(func(g *message) { g.bytes(1, node("Add", "x b", "a")).bytes(1, node("Add", "x a", "b")) }),
		"nothing makes":     with(func(g *message) { g.bytes(1, node("Add", "x nowhere", "a")) }),
		"made twice":        with(func(g *message) { g.bytes(1, node("Relu", "x", "h")) }),
		"output \"z\"":      with(func(g *message) { g.bytes(12, port("z")) }),
		"two of that":       with(func(g *message) { g.bytes(5, *weight("w", tensor.Float, 0)) }),
		"or two":            with(func(g *message) { g.bytes(11, port("x", 1)) }),
		"there are 4 by":    with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, 3).bytes(9, little(1))) }),
		"there are 1 of":    with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, 3).bytes(4, little(1))) }),
		"have sides":        with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, 1<<20, 1<<21)) }),
		"sides of [-1]":     with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, -1)) }),
		"have 9 dimensions": with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, 1, 1, 1, 1, 1, 1, 1, 1, 1)) }),
		"separate file":     with(func(g *message) { g.bytes(5, *weight("v", tensor.Float, 1).bytes(13, entry())) }),
		"not ONNX's":        with(func(g *message) { g.number(1, 3) }),
		"a side of":         with(func(g *message) { g.bytes(11, port("v", 1<<50)) }),
		"listed twice": with(func(g *message) {
			n := node("Relu", "x", "r")
			g.bytes(1, *n.bytes(5, *new(message).text(1, "a")).bytes(5, *new(message).text(1, "a")))
		}),
		"sparse weights": with(func(g *message) { g.bytes(15, nil) }),
	} {
		t.Run(says, func(t *testing.T) {
			if _, err := Read(data); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("it says %v, want %q", err, says)
			}
		})
	}
}

// A file that is cut off anywhere gives an error or a smaller model, but never a crash.
func TestReadCut(t *testing.T) {
	whole := file(small())
	for n := range whole {
		if m, err := Read(whole[:n]); err == nil && len(m.Nodes) != 2 {
			t.Errorf("of %d bytes it reads %+v", n, m)
		}
	}
}

// The memory for a file is bounded by its size, whatever sizes it declares.
func TestReadIsBounded(t *testing.T) {
	var g message
	for range 200_000 {
		g.bytes(1, nil) // empty nodes
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Read(file(g))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "far more memory") {
		t.Errorf("it says %v", err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 100*uint64(len(g)) {
		t.Errorf("%d bytes are made of %d", made, len(g))
	}
}

// Read accepts a loop's graph, a map and a function that the file defines. Engines decide
// whether they support them.
func TestReadPassesOver(t *testing.T) {
	g := small()
	loop := node("Loop", "x", "l")
	loop.bytes(5, *new(message).text(1, "body").bytes(6, small()).number(20, 5))
	g.bytes(1, loop).bytes(12, *new(message).text(1, "l").bytes(2, *new(message).bytes(4, nil)))
	m, err := Read(append(file(g), *new(message).bytes(25, *new(message).text(1, "Fast").text(10, "mine"))...))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Functions, []string{"mine.Fast"}) || m.Outputs[1].Type != 0 {
		t.Errorf("functions %v, outputs %v", m.Functions, m.Outputs)
	}
	if errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

// FuzzRead reads damaged files.
func FuzzRead(f *testing.F) {
	f.Add(file(small()))
	f.Add([]byte{})
	for i := range 8 {
		whole := file(small())
		whole[len(whole)*i/8] ^= 1 << i
		f.Add(whole)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Read(data)
		if err != nil {
			return
		}
		made := map[string]bool{}
		for name := range m.Weights {
			made[name] = true
		}
		for _, s := range m.Inputs {
			made[s.Name] = true
		}
		for _, n := range m.Nodes {
			for _, name := range n.Inputs {
				if name != "" && !made[name] {
					t.Fatalf("%s takes %q before it is made", n.Op, name)
				}
			}
			for _, name := range n.Outputs {
				made[name] = true
			}
		}
	})
}

// A list of an attribute may be packed, one element a field, or both, and mixed with other fields.
func TestLists(t *testing.T) {
	float := func(v float32) []byte { return append([]byte{7<<3 | 5}, little(v)...) }
	var unpacked, mixed message
	unpacked.text(1, "a").number(8, 1).number(8, 300).number(8, -2)
	unpacked = append(append(unpacked, float(1.5)...), float(-2)...)
	unpacked.text(9, "LEAF").text(9, "LEAF").text(9, "").number(20, 7)
	mixed.bytes(8, binary.AppendUvarint(binary.AppendUvarint(nil, 1), 300)).text(9, "LEAF").number(8, -2).bytes(7, little(1.5)).text(1, "a").text(9, "LEAF")
	mixed = append(mixed, float(-2)...)
	mixed.number(20, 7).text(9, "")
	for name, list := range map[string]message{"unpacked": unpacked, "mixed": mixed} {
		n := node("Op", "x", "y")
		n.bytes(5, list)
		g := message{}
		g.bytes(1, n).bytes(11, port("x", 1)).bytes(12, port("y", 1))
		m, err := Read(file(g))
		if err != nil {
			t.Fatal(name, err)
		}
		a := m.Nodes[0].Attributes["a"]
		if !slices.Equal(a.Ints, []int64{1, 300, -2}) || !slices.Equal(a.Floats, []float32{1.5, -2}) || !slices.Equal(a.Texts, []string{"LEAF", "LEAF", ""}) || a.Type != 7 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for _, cut := range [][]byte{{8 << 3}, {8 << 3, 0x80}, float(1)[:4]} {
		n := node("Op", "x", "y")
		n.bytes(5, append(message{}, cut...))
		g := message{}
		g.bytes(1, n).bytes(11, port("x", 1)).bytes(12, port("y", 1))
		if _, err := Read(file(g)); !errors.Is(err, errCut) {
			t.Errorf("%v: %v", cut, err)
		}
	}
}
