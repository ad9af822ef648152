package main

import (
	"encoding/binary"
	"math"
	"strings"
)

// onnx is the model as an ONNX file: how often each hashed word occurs goes in,
// how likely each intent is comes out. ONNX is a message of protocol buffers, of
// which so small a graph needs little.
func (c *demoClassifier) onnx() []byte {
	raw := make([]byte, 0, 4*demoWords*len(c.intents))
	for w := range demoWords {
		for i := range c.intents {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(c.weights[i][w])))
		}
	}
	var weights, graph, opset, model message
	weights.number(1, demoWords).number(1, len(c.intents)).number(2, onnxFloat).text(8, "weights").bytes(9, raw)
	graph.bytes(1, onnxNode("MatMul", []string{"words", "weights"}, "scores")).bytes(1, onnxNode("Softmax", []string{"scores"}, "likely"))
	graph.text(2, "intents").bytes(5, weights).bytes(11, onnxValue("words", demoWords)).bytes(12, onnxValue("likely", len(c.intents)))
	opset.text(1, "").number(2, 13)
	model.number(1, 8).text(2, "tidemill demo").bytes(7, graph).bytes(8, opset)
	var labels message
	labels.text(1, "intents").text(2, strings.Join(c.intents, ","))
	model.bytes(14, labels)
	return model
}

const onnxFloat = 1 // TensorProto.FLOAT

func onnxNode(op string, inputs []string, output string) message {
	var m message
	for _, in := range inputs {
		m.text(1, in)
	}
	return *m.text(2, output).text(4, op)
}

// onnxValue is a table of numbers with any number of rows.
func onnxValue(name string, columns int) message {
	var rows, cols, shape, tensor, typ, m message
	rows.text(2, "texts")
	cols.number(1, columns)
	shape.bytes(1, rows).bytes(1, cols)
	tensor.number(1, onnxFloat).bytes(2, shape)
	typ.bytes(1, tensor)
	return *m.text(1, name).bytes(2, typ)
}

// message is one of protocol buffers, as it is written.
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
