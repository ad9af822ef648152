package score

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
)

// proto writes the parts of protobuf that ONNX files need.
type proto []byte

func (p proto) number(field int, x int64) proto {
	return binary.AppendUvarint(binary.AppendUvarint(p, uint64(field)<<3), uint64(x))
}

func (p proto) bytes(field int, b []byte) proto {
	p = binary.AppendUvarint(p, uint64(field)<<3|2)
	return append(binary.AppendUvarint(p, uint64(len(b))), b...)
}

func (p proto) text(field int, s string) proto { return p.bytes(field, []byte(s)) }

func valueInfo(name string, width int) proto {
	rows := proto{}.text(2, "N")
	shape := proto{}.bytes(1, rows).bytes(1, proto{}.number(1, int64(width)))
	of := proto{}.bytes(1, proto{}.number(1, 1).bytes(2, shape))
	return proto{}.text(1, name).bytes(2, of)
}

func weights(name string, data []float32, dims ...int) proto {
	t := proto{}
	for _, d := range dims {
		t = t.number(1, int64(d))
	}
	raw := make([]byte, 0, 4*len(data))
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return t.number(2, 1).text(8, name).bytes(9, raw)
}

func node(op, out string, in ...string) proto {
	n := proto{}
	for _, i := range in {
		n = n.text(1, i)
	}
	return n.text(2, out).text(3, out).text(4, op)
}

// network returns a model with layers of the given widths, Relu between them, Softmax at the
// end, random weights, and labels l0, l1 and so on.
func network(seed uint64, widths ...int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	graph, at := proto{}, "x"
	var inits []proto
	for i := 1; i < len(widths); i++ {
		name := string(rune('a' + i))
		w := make([]float32, widths[i-1]*widths[i])
		for j := range w {
			w[j] = float32(r.NormFloat64()) / 8
		}
		inits = append(inits, weights("w"+name, w, widths[i-1], widths[i]))
		op, out := "Relu", "r"+name
		if i == len(widths)-1 {
			op, out = "Softmax", "y"
		}
		graph = graph.bytes(1, node("MatMul", "m"+name, at, "w"+name)).bytes(1, node(op, out, "m"+name))
		at = out
	}
	graph = graph.text(2, "network")
	for _, w := range inits {
		graph = graph.bytes(5, w)
	}
	last := widths[len(widths)-1]
	graph = graph.bytes(11, valueInfo("x", widths[0])).bytes(12, valueInfo("y", last))
	labels := make([]string, last)
	for i := range labels {
		labels[i] = "l" + string(rune('a'+i))
	}
	return proto{}.number(1, 8).bytes(7, graph).bytes(8, proto{}.number(2, 13)).
		bytes(14, proto{}.text(1, "labels").text(2, strings.Join(labels, ",")))
}
