package sim

import (
	"encoding/binary"
	"math"
)

// smallModel returns an ONNX model with an input x of two numbers and two labels.
func smallModel(first bool) []byte {
	weights := []float32{4, -4, 0, 0}
	if !first {
		weights = []float32{-4, 4, 0, 0}
	}
	var raw []byte
	for _, f := range weights {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	value := func(name string) []byte {
		shape := join(field(1, text(2, "n")), field(1, number(1, 2)))
		return join(text(1, name), field(2, field(1, join(number(1, 1), field(2, shape)))))
	}
	node := func(op, output string, inputs ...string) []byte {
		var n []byte
		for _, in := range inputs {
			n = append(n, text(1, in)...)
		}
		return append(n, join(text(2, output), text(4, op))...)
	}
	graph := join(field(1, node("MatMul", "sums", "x", "w")), field(1, node("Softmax", "likely", "sums")), text(2, "g"),
		field(5, join(number(1, 2), number(1, 2), number(2, 1), text(8, "w"), field(9, raw))), field(11, value("x")), field(12, value("likely")))
	return join(number(1, 8), field(7, graph), field(8, join(text(1, ""), number(2, 13))), field(14, join(text(1, "labels"), text(2, "yes,no"))))
}

// These write protocol buffers, the format of ONNX.

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func number(at, v int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)<<3), uint64(v))
}

func field(at int, v []byte) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)<<3|2), uint64(len(v))), v...)
}

func text(at int, v string) []byte { return field(at, []byte(v)) }
