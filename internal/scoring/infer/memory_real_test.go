//go:build real

package infer

import (
	"encoding/binary"
	"testing"

	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// whole is an attribute, and wholes a constant, with one whole number.
func whole(name string, v int64) wire {
	return wire{}.part(5, wire{}.text(1, name).number(3, uint64(v)).number(20, 2))
}

func wholes(name string, v int64) wire {
	return wire{}.number(1, 1).number(2, 7).text(8, name).part(9, binary.LittleEndian.AppendUint64(nil, uint64(v)))
}

// holding returns a model of 157 bytes that ONNX Runtime expands to n floats when it loads the model.
func holding(n int64) []byte {
	return modelOf(wire{}.part(1, node("ConstantOfShape", []string{"s"}, "big")).part(1, append(node("Cast", []string{"x"}, "n"), whole("to", 7)...)).
		part(1, node("Gather", []string{"big", "n"}, "y")).text(2, "fold").part(5, wholes("s", n)).part(11, floatsOf("x", 1)).part(12, floatsOf("y", 1)))
}

// taking returns a model that takes memory for x floats while it runs.
func taking() []byte {
	return modelOf(wire{}.part(1, append(node("Cast", []string{"x"}, "n"), whole("to", 7)...)).part(1, node("Reshape", []string{"n", "flat"}, "s")).
		part(1, node("ConstantOfShape", []string{"s"}, "big")).part(1, node("ReduceSum", []string{"big"}, "sum")).part(1, node("Add", []string{"x", "sum"}, "y")).
		text(2, "taking").part(5, wholes("flat", -1)).part(11, floatsOf("x", 1)).part(12, floatsOf("y", 1)))
}

// The attack: a small file held the memory of the process, and other models could not be asked.
func TestRealMemoryThatAnotherModelHolds(t *testing.T) {
	p := sandbox.Open(sandbox.Options{Room: 96 << 20})
	defer p.Close()
	load := func(name string, file []byte) *sandbox.Program {
		m, err := p.Load(name, file, func() ([]byte, error) { return file, nil })
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	ask := func(m *sandbox.Program, x float32) error {
		return m.Run([]tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 1}, Floats: []float32{x}}}, make([]tensor.Tensor, 1))
	}
	m, held := load("taking", taking()), load("holding", holding(14e6))
	for range 3 {
		if err := ask(held, 1); err != nil {
			t.Error(err)
		}
		if err := ask(m, 14e6); err != nil {
			t.Errorf("a model that gets memory when it is alone: %v", err)
		}
	}
	if err := ask(m, 100e6); err == nil {
		t.Error("a model that takes more than there is has answered")
	}
}
