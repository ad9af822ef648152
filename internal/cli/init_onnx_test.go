package cli

import (
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"math"
	"path/filepath"
	"strconv"
	"strings"
)

// fields are the fields of a protocol buffer's message, by number: numbers and texts.
type fields struct {
	numbers map[uint64][]uint64
	texts   map[uint64][]string
}

func (tr *trainer) fieldsOf(data string) fields {
	tr.Helper()
	f := fields{map[uint64][]uint64{}, map[uint64][]string{}}
	for rest := []byte(data); len(rest) > 0; {
		tag, n := binary.Uvarint(rest)
		value, m := binary.Uvarint(rest[max(n, 0):])
		if n <= 0 || m <= 0 {
			tr.Fatalf("%q is no message", data)
		}
		rest = rest[n+m:]
		switch tag & 7 {
		case 0:
			f.numbers[tag>>3] = append(f.numbers[tag>>3], value)
		case 2:
			if value > uint64(len(rest)) {
				tr.Fatalf("%q ends early", data)
			}
			f.texts[tag>>3] = append(f.texts[tag>>3], string(rest[:value]))
			rest = rest[value:]
		default:
			tr.Fatalf("%q has a field of kind %d", data, tag&7)
		}
	}
	return f
}

// linear has the parameters of the model.
type linear struct {
	columns, labels []string
	weights, bias   []float32
}

// model reads model.onnx and checks that it is a valid ONNX graph.
func (tr *trainer) model() (m linear) {
	tr.Helper()
	whole := tr.fieldsOf(string(tr.read("out", "model.onnx")))
	opset := tr.fieldsOf(whole.texts[8][0])
	if whole.numbers[1][0] != 7 || opset.numbers[2][0] != 13 {
		tr.Fatalf("version %v, operators %v", whole.numbers, opset)
	}
	for _, text := range whole.texts[14] {
		pair := tr.fieldsOf(text)
		to := map[string]*[]string{"labels": &m.labels, "columns": &m.columns}[pair.texts[1][0]]
		if to == nil || json.Unmarshal([]byte(pair.texts[2][0]), to) != nil {
			tr.Fatalf("metadata %v", pair)
		}
	}
	graph := tr.fieldsOf(whole.texts[7][0])
	var nodes []string
	for _, text := range graph.texts[1] {
		n := tr.fieldsOf(text)
		nodes = append(nodes, n.texts[4][0]+"("+strings.Join(n.texts[1], " ")+") "+n.texts[2][0])
	}
	if got := strings.Join(nodes, ", "); got != "Gemm(x weights bias) scores, Softmax(scores) probabilities" {
		tr.Fatalf("it computes %s", got)
	}
	for _, text := range graph.texts[5] {
		tensor := tr.fieldsOf(text)
		size := uint64(1)
		for _, n := range tensor.numbers[1] {
			size *= n
		}
		if tensor.numbers[2][0] != 1 || uint64(len(tensor.texts[9][0])) != 4*size {
			tr.Fatalf("tensor %v", tensor)
		}
		values := floats(tensor.texts[9][0])
		if tensor.texts[8][0] == "weights" {
			m.weights = values
		} else {
			m.bias = values
		}
	}
	tr.wantPort(graph.texts[11][0], "x", len(m.columns))
	tr.wantPort(graph.texts[12][0], "probabilities", len(m.labels))
	if len(m.weights) != len(m.columns)*len(m.labels) || len(m.bias) != len(m.labels) {
		tr.Fatalf("%+v", m)
	}
	return m
}

func (tr *trainer) wantPort(text, name string, width int) {
	tr.Helper()
	port := tr.fieldsOf(text)
	tensor := tr.fieldsOf(tr.fieldsOf(port.texts[2][0]).texts[1][0])
	dims := tr.fieldsOf(tensor.texts[2][0]).texts[1]
	if port.texts[1][0] != name || tensor.numbers[1][0] != 1 || len(dims) != 2 || tr.fieldsOf(dims[1]).numbers[1][0] != uint64(width) {
		tr.Fatalf("%s: %v %v", name, port, dims)
	}
}

func floats(raw string) (all []float32) {
	for at := 0; at+4 <= len(raw); at += 4 {
		all = append(all, math.Float32frombits(binary.LittleEndian.Uint32([]byte(raw[at:]))))
	}
	return all
}

// predict returns the label with the greatest score: Gemm and Softmax of a row.
func (m *linear) predict(row map[string]float64) string {
	best, top := "", math.Inf(-1)
	for k, label := range m.labels {
		score := float64(m.bias[k])
		for j, column := range m.columns {
			score += row[column] * float64(m.weights[j*len(m.labels)+k])
		}
		if score > top {
			best, top = label, score
		}
	}
	return best
}

// judged returns the rows that the trainer keeps for the measurement: every fifth row, with the
// files in the order of their names.
func (tr *trainer) judged() (rows []map[string]float64) {
	tr.Helper()
	all, err := csv.NewReader(strings.NewReader(string(tr.read("in", "examples", "messages.csv")))).ReadAll()
	if err != nil {
		tr.Fatal(err)
	}
	for _, cells := range all[1:] {
		row := map[string]float64{}
		for i, name := range all[0][:4] {
			if row[name], err = strconv.ParseFloat(cells[i], 64); err != nil {
				tr.Fatal(err)
			}
		}
		rows = append(rows, row)
	}
	for line := range strings.Lines(string(tr.read("in", "examples", "more.jsonl"))) {
		var cells map[string]any
		if err := json.Unmarshal([]byte(line), &cells); err != nil {
			tr.Fatal(err)
		}
		row := map[string]float64{}
		for name, v := range cells {
			row[name], _ = v.(float64)
		}
		rows = append(rows, row)
	}
	var some []map[string]float64
	for i := 0; i < len(rows); i += 5 {
		some = append(some, rows[i])
	}
	return some
}

// checkModel compares the model's predictions with the trainer's, on the original data.
func (tr *trainer) checkModel(predictions [][]string) {
	tr.Helper()
	m := tr.model()
	for i, row := range tr.judged() {
		if got := m.predict(row); got != predictions[i][1] {
			tr.Errorf("row %d of %s: the model says %s, the trainer %s", i, filepath.Base(tr.dir), got, predictions[i][1])
		}
	}
}
