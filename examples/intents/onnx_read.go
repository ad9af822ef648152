package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// onnxFile has the parts of an ONNX file that the model needs.
type onnxFile struct {
	labels    []string
	operators []string
	begins    []int // ngram_counts: begin of the words and of the pairs in the pool
	columns   []int
	pool      []string
	tensors   map[string][]float32
}

var (
	errOtherGraph = errors.New("it was written by another trainer: its operators are not those of this one")
	errDamaged    = errors.New("the sizes of its parts do not fit together")
)

// readModel reads a file that this trainer has written.
func readModel(data []byte) (*model, error) {
	r := &onnxFile{tensors: map[string][]float32{}}
	err := protoFields(data).eachField(func(field, _ int, b protoFields) error {
		switch field {
		case 7:
			return b.eachField(r.graph)
		case 14:
			return r.metadata(b)
		}
		return nil
	})
	if err == nil && !slices.Equal(r.operators, []string{"StringNormalizer", "StringSplit", "TfIdfVectorizer", "Gemm", "Softmax"}) {
		err = errOtherGraph
	}
	var m *model
	if err == nil {
		m, err = r.model()
	}
	if err != nil {
		return nil, fmt.Errorf("read model.onnx: %w", err)
	}
	return m, nil
}

// metadata reads the labels; it ignores other metadata.
func (r *onnxFile) metadata(b protoFields) error {
	var name, value string
	err := b.eachField(func(field, _ int, b protoFields) error {
		switch field {
		case 1:
			name = string(b)
		case 2:
			value = string(b)
		}
		return nil
	})
	if err == nil && name == labelsProp {
		err = json.Unmarshal([]byte(value), &r.labels)
	}
	return err
}

func (r *onnxFile) graph(field, _ int, b protoFields) error {
	switch field {
	case 1:
		return b.eachField(func(field, _ int, b protoFields) error {
			switch field {
			case 4:
				r.operators = append(r.operators, string(b))
			case 5:
				return r.attribute(b)
			}
			return nil
		})
	case 5:
		return r.tensor(b)
	}
	return nil
}

func (r *onnxFile) attribute(b protoFields) error {
	var name string
	var numbers []int
	var texts []string
	err := b.eachField(func(field, n int, b protoFields) error {
		switch field {
		case 1:
			name = string(b)
		case 8:
			numbers = append(numbers, n)
		case 9:
			texts = append(texts, string(b))
		}
		return nil
	})
	switch name {
	case "ngram_counts":
		r.begins = numbers
	case "ngram_indexes":
		r.columns = numbers
	case "pool_strings":
		r.pool = texts
	}
	return err
}

func (r *onnxFile) tensor(b protoFields) error {
	var name string
	var values []float32
	err := b.eachField(func(field, _ int, b protoFields) error {
		switch field {
		case 8:
			name = string(b)
		case 9:
			for ; len(b) >= 4; b = b[4:] {
				values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(b)))
			}
		}
		return nil
	})
	r.tensors[name] = values
	return err
}

// model builds the model and checks that its parts fit together.
func (r *onnxFile) model() (*model, error) {
	m := &model{labels: r.labels, weights: r.tensors["weights"], bias: r.tensors["bias"]}
	words := len(r.pool)
	if len(r.begins) == 2 {
		words = r.begins[1]
	}
	if len(r.begins) == 0 || len(m.labels) == 0 || words < 0 || words > len(r.pool) || len(r.columns) != words+(len(r.pool)-words)/2 {
		return nil, errDamaged
	}
	for i, column := range r.columns {
		if column < 0 || column > len(r.pool) {
			return nil, errDamaged
		}
		m.columns = max(m.columns, column+1)
		if i < words {
			m.singles = append(m.singles, spelling{r.pool[i], column})
			continue
		}
		at := words + 2*(i-words)
		m.pairs = append(m.pairs, spelling{strings.Join(r.pool[at:at+2], " "), column})
	}
	if len(m.weights) != m.columns*len(m.labels) || len(m.bias) != len(m.labels) {
		return nil, errDamaged
	}
	m.index()
	return m, nil
}
