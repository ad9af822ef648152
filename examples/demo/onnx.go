package demo

import (
	"encoding/binary"
	"math"
	"strings"
)

// onnx returns the model as an ONNX file. Its input is texts, its output the likelihood of each
// intent. An ONNX file is a message of protocol buffers; this small graph uses only a few of its
// fields.
//
//	text → StringNormalizer → StringSplit → TfIdfVectorizer → MatMul → Softmax → likely
func (m *model) onnx() []byte {
	raw := make([]byte, 0, 4*len(m.Words)*len(m.Intents))
	for w := range m.Words {
		for i := range m.Intents {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(m.Weights[i][w])))
		}
	}
	var weights, graph, opset, file message
	weights.number(1, len(m.Words)).number(1, len(m.Intents)).number(2, onnxFloat).text(8, "weights").bytes(9, raw)
	for _, node := range []message{
		onnxNode("StringNormalizer", []string{"text"}, []string{"lower"}, onnxText("case_change_action", "LOWER"), onnxText("locale", "C")),
		onnxNode("StringSplit", []string{"lower"}, []string{"words", "lengths"}),
		onnxNode("TfIdfVectorizer", []string{"words"}, []string{"counts"}, m.vectorizer()...),
		onnxNode("MatMul", []string{"counts", "weights"}, []string{"scores"}),
		onnxNode("Softmax", []string{"scores"}, []string{"likely"}),
	} {
		graph.bytes(1, node)
	}
	graph.text(2, "intents").bytes(5, weights).bytes(11, onnxValue("text", onnxString, 0)).bytes(12, onnxValue("likely", onnxFloat, len(m.Intents)))
	opset.text(1, "").number(2, 20) // first version with StringSplit
	file.number(1, 9).text(2, "tidemill demo").bytes(7, graph).bytes(8, opset)
	var labels message
	labels.text(1, "intents").text(2, strings.Join(m.Intents, ","))
	file.bytes(14, labels)
	return file
}

// vectorizer returns the attributes of the node that counts words.
func (m *model) vectorizer() []message {
	columns := make([]int, len(m.Words))
	for i := range columns {
		columns[i] = i
	}
	return []message{onnxText("mode", "TF"), onnxNumber("min_gram_length", 1), onnxNumber("max_gram_length", 1), onnxNumber("max_skip_count", 0),
		onnxNumbers("ngram_counts", []int{0}), onnxNumbers("ngram_indexes", columns), onnxTexts("pool_strings", m.Words)}
}

// The types of values and attributes in this file.
const (
	onnxFloat  = 1
	onnxString = 8

	onnxIsInt     = 2
	onnxIsText    = 3
	onnxIsNumbers = 7
	onnxIsTexts   = 8
)

func onnxNode(op string, inputs, outputs []string, attributes ...message) message {
	var m message
	for _, in := range inputs {
		m.text(1, in)
	}
	for _, out := range outputs {
		m.text(2, out)
	}
	m.text(4, op)
	for _, a := range attributes {
		m.bytes(5, a)
	}
	return m
}

func onnxText(name, v string) message {
	var m message
	return *m.text(1, name).text(4, v).number(20, onnxIsText)
}

func onnxNumber(name string, v int) message {
	var m message
	return *m.text(1, name).number(3, v).number(20, onnxIsInt)
}

func onnxNumbers(name string, all []int) message {
	var m message
	m.text(1, name)
	for _, v := range all {
		m.number(8, v)
	}
	return *m.number(20, onnxIsNumbers)
}

func onnxTexts(name string, all []string) message {
	var m message
	m.text(1, name)
	for _, v := range all {
		m.text(9, v)
	}
	return *m.number(20, onnxIsTexts)
}

// onnxValue describes a table with any number of rows, or a list if it has no columns.
func onnxValue(name string, kind, columns int) message {
	var rows, shape, tensor, typ, m message
	rows.text(2, "texts")
	shape.bytes(1, rows)
	if columns > 0 {
		var cols message
		shape.bytes(1, *cols.number(1, columns))
	}
	tensor.number(1, kind).bytes(2, shape)
	typ.bytes(1, tensor)
	return *m.text(1, name).bytes(2, typ)
}

// message is a message of protocol buffers, as bytes.
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
