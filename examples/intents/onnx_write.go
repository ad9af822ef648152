package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
)

// These are names and versions in the file.
const (
	inputName  = "text"
	outputName = "probabilities"
	labelsProp = "labels" // name of the metadata with the labels, a JSON list
	version    = 9        // version of the format
	opset      = 20       // version of the operators: the first with StringSplit
)

// These are the data types of ONNX in this file.
const (
	typeFloat  = 1
	typeString = 8
)

// onnx returns the model as a file. Its input is any number of original messages:
//
//	text[n] → StringNormalizer → StringSplit → TfIdfVectorizer → Gemm → Softmax → probabilities[n, labels]
//
// StringSplit fills short rows with empty texts. No form is empty, so the other messages of a batch
// do not change a message's probabilities.
func (m *model) onnx() []byte {
	var f protoFields
	f.number(1, version)
	f.text(2, "tidemill examples/intents")
	f.addMessage(7, m.graph)
	f.addMessage(8, func(f *protoFields) {
		f.text(1, "")
		f.number(2, opset)
	})
	labels, _ := json.Marshal(m.labels) // a list of texts cannot fail
	f.addMessage(14, func(f *protoFields) {
		f.text(1, labelsProp)
		f.text(2, string(labels))
	})
	return f
}

func (m *model) graph(f *protoFields) {
	node(f, "StringNormalizer", []string{inputName}, []string{"lower"}, func(f *protoFields) {
		textAttribute(f, "case_change_action", "LOWER")
		textAttribute(f, "locale", "C") // every machine has this locale
	})
	node(f, "StringSplit", []string{"lower"}, []string{"words", "lengths"}, func(f *protoFields) {
		textAttribute(f, "delimiter", " ")
	})
	node(f, "TfIdfVectorizer", []string{"words"}, []string{"counts"}, m.vectorizer)
	node(f, "Gemm", []string{"counts", "weights", "bias"}, []string{"scores"}, nil)
	node(f, "Softmax", []string{"scores"}, []string{outputName}, nil)
	f.text(2, "intents")
	tensor(f, "weights", []int{m.columns, len(m.labels)}, m.weights)
	tensor(f, "bias", []int{len(m.labels)}, m.bias)
	describePort(f, 11, inputName, typeString, 0)
	describePort(f, 12, outputName, typeFloat, len(m.labels))
}

// vectorizer counts words and pairs. Several forms share a column, which has the sum of their
// counts.
func (m *model) vectorizer(f *protoFields) {
	var columns []int
	var pool []string
	for _, form := range m.singles {
		columns, pool = append(columns, form.column), append(pool, form.text)
	}
	for _, form := range m.pairs {
		columns, pool = append(columns, form.column), append(pool, strings.Split(form.text, " ")...)
	}
	longest, begins := 2, []int{0, len(m.singles)}
	if len(m.pairs) == 0 {
		longest, begins = 1, begins[:1]
	}
	textAttribute(f, "mode", "TF")
	numberAttribute(f, "min_gram_length", 1)
	numberAttribute(f, "max_gram_length", longest)
	numberAttribute(f, "max_skip_count", 0)
	numbersAttribute(f, "ngram_counts", begins)
	numbersAttribute(f, "ngram_indexes", columns)
	textsAttribute(f, "pool_strings", pool)
}

func node(f *protoFields, operator string, in, out []string, attributes func(*protoFields)) {
	f.addMessage(1, func(f *protoFields) {
		for _, name := range in {
			f.text(1, name)
		}
		for _, name := range out {
			f.text(2, name)
		}
		f.text(3, out[0])
		f.text(4, operator)
		if attributes != nil {
			attributes(f)
		}
	})
}

// attribute writes an attribute: its name, its value and, in field 20, its type.
func attribute(f *protoFields, name string, kind int, value func(*protoFields)) {
	f.addMessage(5, func(f *protoFields) {
		f.text(1, name)
		value(f)
		f.number(20, kind)
	})
}

func numberAttribute(f *protoFields, name string, n int) {
	attribute(f, name, 2, func(f *protoFields) { f.number(3, n) })
}

func textAttribute(f *protoFields, name, s string) {
	attribute(f, name, 3, func(f *protoFields) { f.text(4, s) })
}

func numbersAttribute(f *protoFields, name string, all []int) {
	attribute(f, name, 7, func(f *protoFields) {
		for _, n := range all {
			f.number(8, n)
		}
	})
}

func textsAttribute(f *protoFields, name string, all []string) {
	attribute(f, name, 8, func(f *protoFields) {
		for _, s := range all {
			f.text(9, s)
		}
	})
}

func tensor(f *protoFields, name string, dims []int, values []float32) {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	f.addMessage(5, func(f *protoFields) {
		for _, n := range dims {
			f.number(1, n)
		}
		f.number(2, typeFloat)
		f.text(8, name)
		f.bytes(9, raw)
	})
}

// describePort describes an input or output with a row for each message. Without a width it has
// only one dimension.
func describePort(f *protoFields, field int, name string, kind, width int) {
	f.addMessage(field, func(f *protoFields) {
		f.text(1, name)
		f.addMessage(2, func(f *protoFields) {
			f.addMessage(1, func(f *protoFields) {
				f.number(1, kind)
				f.addMessage(2, func(f *protoFields) {
					f.addMessage(1, func(f *protoFields) { f.text(2, "messages") })
					if width > 0 {
						f.addMessage(1, func(f *protoFields) { f.number(1, width) })
					}
				})
			})
		})
	})
}
