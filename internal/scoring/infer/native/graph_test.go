package native

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// graph builds an ONNX file.
type graph struct {
	body  message
	opset map[string]int
	meta  map[string]string
}

func newGraph() *graph {
	return &graph{opset: map[string]int{"": 20, ml: 3}, meta: map[string]string{}}
}

// file returns the complete file.
func (g *graph) file() []byte {
	var m message
	m.number(1, 9).bytes(7, g.body)
	for _, domain := range slices.Sorted(maps.Keys(g.opset)) { // a file must be the same in each run
		var o message
		m.bytes(8, *o.text(1, domain).number(2, g.opset[domain]))
	}
	for _, k := range slices.Sorted(maps.Keys(g.meta)) {
		var p message
		m.bytes(14, *p.text(1, k).text(2, g.meta[k]))
	}
	return m
}

func (g *graph) input(name string, kind tensor.Type, shape ...int) *graph {
	g.body.bytes(11, port(name, kind, shape))
	return g
}

func (g *graph) output(name string, kind tensor.Type, shape ...int) *graph {
	g.body.bytes(12, port(name, kind, shape))
	return g
}

func port(name string, kind tensor.Type, shape []int) message {
	var sides, typ, holder, m message
	for _, n := range shape {
		var side message
		if n == tensor.Any {
			side.text(2, "rows")
		} else {
			side.number(1, n)
		}
		sides.bytes(1, side)
	}
	typ.number(1, int(kind)).bytes(2, sides)
	holder.bytes(1, typ)
	return *m.text(1, name).bytes(2, holder)
}

// attributes are a node's attributes by name: float32, int, string, *tensor.Tensor, *graph,
// []float32, []int or []string.
type attributes map[string]any

// node appends a node, such as domain "" and op "Add", or domain "ai.onnx.ml" and op "Scaler".
func (g *graph) node(domain, op string, in, out []string, set attributes) *graph {
	var m message
	for _, s := range in {
		m.text(1, s)
	}
	for _, s := range out {
		m.text(2, s)
	}
	m.text(3, op+" "+out[0]).text(4, op).text(7, domain)
	for _, name := range slices.Sorted(maps.Keys(set)) {
		m.bytes(5, attribute(name, set[name]))
	}
	g.body.bytes(1, m)
	return g
}

func attribute(name string, v any) message {
	var a message
	a.text(1, name)
	switch v := v.(type) {
	case float32:
		a.float(2, v).number(20, 1)
	case int:
		a.number(3, v).number(20, 2)
	case string:
		a.text(4, v).number(20, 3)
	case *graph:
		a.bytes(6, v.body).number(20, 5)
	case *tensor.Tensor:
		a.bytes(5, tensorMessage("", v)).number(20, 4)
	case []float32:
		for _, f := range v {
			a.float(7, f)
		}
		a.number(20, 6)
	case []int:
		for _, n := range v {
			a.number(8, n)
		}
		a.number(20, 7)
	case []string:
		for _, s := range v {
			a.text(9, s)
		}
		a.number(20, 8)
	}
	return a
}

// weight appends a weight.
func (g *graph) weight(name string, t *tensor.Tensor) *graph {
	g.body.bytes(5, tensorMessage(name, t))
	return g
}

func tensorMessage(name string, t *tensor.Tensor) message {
	var m message
	for _, n := range t.Shape {
		m.number(1, n)
	}
	m.number(2, int(t.Type)).text(8, name)
	var raw []byte
	for _, v := range t.Floats {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	for _, v := range t.Doubles {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
	}
	for _, v := range t.Ints {
		switch t.Type {
		case tensor.Int64:
			raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
		case 2: // bytes
			raw = append(raw, byte(v))
		default:
			raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
		}
	}
	for _, s := range t.Strings {
		m.text(6, s)
	}
	if t.Type != tensor.String {
		m.bytes(9, raw)
	}
	return m
}

// message is an encoded protocol buffers message.
type message []byte

func (m *message) number(field, v int) *message {
	*m = binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3), uint64(v))
	return m
}

func (m *message) float(field int, v float32) *message {
	*m = binary.LittleEndian.AppendUint32(binary.AppendUvarint(*m, uint64(field)<<3|5), math.Float32bits(v))
	return m
}

func (m *message) bytes(field int, v []byte) *message {
	*m = append(binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3|2), uint64(len(v))), v...)
	return m
}

func (m *message) text(field int, v string) *message { return m.bytes(field, []byte(v)) }

func floats(shape []int, v ...float32) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.Float, Shape: shape, Floats: v}
}

func integers(v ...int64) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.Int64, Shape: []int{len(v)}, Ints: v}
}

func texts(v ...string) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.String, Shape: []int{len(v)}, Strings: v}
}

// random returns random numbers that are the same in each run.
func random(r *rand.Rand, shape ...int) *tensor.Tensor {
	t := floats(shape)
	for range volume(shape) {
		t.Floats = append(t.Floats, float32(r.NormFloat64())/4)
	}
	return t
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 77)) }
