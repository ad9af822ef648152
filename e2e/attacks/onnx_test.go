//go:build slow && linux

package attacks

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// message is a message of protocol buffers, as ONNX files are.
type message []byte

func (m message) number(field int, v int64) message {
	return binary.AppendUvarint(binary.AppendUvarint(m, uint64(field)<<3), uint64(v))
}

func (m message) bytes(field int, v []byte) message {
	return append(binary.AppendUvarint(binary.AppendUvarint(m, uint64(field)<<3|2), uint64(len(v))), v...)
}

func (m message) text(field int, v string) message { return m.bytes(field, []byte(v)) }

// The kinds of ONNX values.
const (
	float32s = 1
	int64s   = 7
	bools    = 9
)

// value describes an input or an output. A dimension below 0 is the number of rows.
func value(name string, kind int64, dims ...int64) message {
	var shape message
	for _, d := range dims {
		if d < 0 {
			shape = shape.bytes(1, message{}.text(2, "n"))
		} else {
			shape = shape.bytes(1, message{}.number(1, d))
		}
	}
	return message{}.text(1, name).bytes(2, message{}.bytes(1, message{}.number(1, kind).bytes(2, shape)))
}

func node(op, inputs, outputs string, attributes ...message) message {
	var m message
	for _, in := range strings.Fields(inputs) {
		m = m.text(1, in)
	}
	for _, out := range strings.Fields(outputs) {
		m = m.text(2, out)
	}
	m = m.text(3, op+" "+outputs).text(4, op)
	for _, a := range attributes {
		m = m.bytes(5, a)
	}
	return m
}

// tensor is a constant. Its data may have another size than its dimensions say.
func tensor(name string, kind int64, data []byte, dims ...int64) message {
	var m message
	for _, d := range dims {
		m = m.number(1, d)
	}
	return m.number(2, kind).text(8, name).bytes(9, data)
}

// model returns a file with a graph that has x as its input and y as its output. The parts are the fields of
// a graph: nodes (1), a name (2) and constants (5).
func model(graph message) string {
	graph = graph.text(2, "g").bytes(11, value("x", float32s, -1, 1)).bytes(12, value("y", float32s, -1, 1))
	return string(message{}.number(1, 8).bytes(7, graph).bytes(8, message{}.number(2, 17)))
}

func nodes(all ...message) (graph message) {
	for _, n := range all {
		graph = graph.bytes(1, n)
	}
	return graph
}

// goodModel answers the number that it is asked.
func goodModel() string { return model(nodes(node("Identity", "x", "y"))) }

// endless returns a model with a loop that ends in the year 10,000. Its name makes its bytes differ.
func endless(name string) string {
	body := nodes(node("Identity", "go", "on"), node("Identity", "v", "w")).text(2, name).
		bytes(11, value("i", int64s)).bytes(11, value("go", bools)).bytes(11, value("v", float32s, -1, 1)).
		bytes(12, value("on", bools)).bytes(12, value("w", float32s, -1, 1))
	attribute := message{}.text(1, "body").bytes(6, body).number(20, 5)
	return model(nodes(node("Loop", "trips yes x", "y", attribute)).
		bytes(5, tensor("trips", int64s, binary.LittleEndian.AppendUint64(nil, 1<<62))).
		bytes(5, tensor("yes", bools, []byte{1})))
}

// expanding returns a model that makes a million bytes of each row in between.
func expanding() string {
	const wide = 1 << 18
	zeros := make([]byte, 4*wide)
	return model(nodes(node("MatMul", "x W", "h"), node("MatMul", "h V", "y")).
		bytes(5, tensor("W", float32s, zeros, 1, wide)).bytes(5, tensor("V", float32s, zeros, wide, 1)))
}

// nested returns a model whose branches are in one another.
func nested(depth int) string {
	graph := nodes(node("Identity", "x", "z")).bytes(12, value("z", float32s, -1, 1))
	for range depth {
		graph = nodes(node("If", "yes", "z", message{}.text(1, "then_branch").bytes(6, graph).number(20, 5))).bytes(12, value("z", float32s, -1, 1))
	}
	return model(graph)
}

// hostileModels returns the ONNX files of the attack, by the keys of their runs.
func hostileModels() map[string]string {
	good := goodModel()
	outside := tensor("W", float32s, nil, 1, 1).number(14, 1).bytes(13, message{}.text(1, "location").text(2, "/etc/passwd"))
	chain := nodes(node("Identity", "x", "n0"))
	for i := range 20_000 {
		at := base64.RawURLEncoding.EncodeToString(binary.AppendUvarint(nil, uint64(i)))
		chain = append(chain, nodes(node("Identity", "n0", "m"+at))...)
	}
	return map[string]string{
		"good":          good,
		"empty":         "",
		"garbage":       strings.Repeat("\xff\x00\x7f", 10_000),
		"cut":           good[:len(good)/2],
		"a-long-field":  "\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"wide-constant": model(nodes(node("MatMul", "x W", "y")).bytes(5, tensor("W", float32s, []byte{0, 0, 0, 0}, 1<<31, 1<<31))),
		"negative":      model(nodes(node("MatMul", "x W", "y")).bytes(5, tensor("W", float32s, []byte{0, 0, 0, 0}, -1, -1))),
		"a-file":        model(nodes(node("MatMul", "x W", "y")).bytes(5, outside)),
		"a-circle":      model(nodes(node("Identity", "y", "z"), node("Identity", "z", "y"))),
		"unknown":       model(nodes(node("System", "x", "y"))),
		"nothing-made":  model(nodes(node("Identity", "x", "z"))),
		"a-chain":       model(append(chain, nodes(node("Identity", "n0", "y"))...)),
		"nested":        nested(500),
		"filled":        model(nodes(node("ConstantOfShape", "s", "y")).bytes(5, tensor("s", int64s, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<20), 1<<20), 2))),
		"expanding":     expanding(),
		"endless-1":     endless("a"),
		"endless-2":     endless("b"),
	}
}
