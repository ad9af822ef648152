package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                  {""},
		"Where IS it?":      {"where", "is", "it?"},
		"two  blanks":       {"two", "", "blanks"},
		"ÜBER\tTab STRASSE": {"Über\ttab", "strasse"}, // the lower case of other letters depends on the locale
	} {
		if got := tokens(text); !slices.Equal(got, want) {
			t.Errorf("%q is %q", text, got)
		}
	}
}

func TestBare(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]string{"refund": "refund", "refund?": "refund", "refund?!": "refund", "no...": "no", "?": "", "3.5": "3.5", "it's": "it's", "": ""} {
		if got := withoutEnding(token); got != want {
			t.Errorf("%q is %q", token, got)
		}
	}
}

// Words count with and without an ending. Pairs count if no comma is between them.
func TestCounts(t *testing.T) {
	t.Parallel()
	m := newModel([]message{{"my refund", "a"}, {"My refund!", "a"}, {"where, where", "b"}, {"where, my", "b"}})
	if m.columns != 4 || !slices.Equal(m.labels, []string{"a", "b"}) { // my, refund, where; my refund
		t.Fatalf("%d columns, %v", m.columns, m.labels)
	}
	for text, want := range map[string][]columnCount{
		"":                     nil,
		"unheard of":           nil,
		"MY refund?":           {{0, 1}, {1, 1}, {3, 1}},
		"my, refund":           {{0, 1}, {1, 1}},
		"my  refund":           {{0, 1}, {1, 1}},
		"where where: where??": {{2, 3}},
	} {
		if got := m.columnCounts(text); !slices.Equal(got, want) {
			t.Errorf("%q counts %v", text, got)
		}
	}
}

func TestSoftmax(t *testing.T) {
	t.Parallel()
	scores := []float64{1000, 1000, -1000}
	softmax(scores)
	if math.Abs(scores[0]-0.5) > 1e-12 || scores[2] != 0 {
		t.Errorf("%v", scores)
	}
}

// A model without pairs has no columns for them, in the file either.
func TestAModelWithoutPairs(t *testing.T) {
	t.Parallel()
	m := newModel([]message{{"yes", "a"}, {"yes", "a"}, {"no", "b"}, {"no", "b"}})
	m.roundWeights([]float64{-1, 1, 1, -1, 0, 0}) // no, yes; bias
	back, err := readModel(m.onnx())
	if err != nil || back.columns != 2 || back.predict("yes!") != "a" || back.predict("No.") != "b" || back.predict("") != "a" {
		t.Errorf("%+v, %v", back, err)
	}
}

// A champion's file may be any bytes.
func FuzzReadModel(f *testing.F) {
	d, err := readData(filepath.Join("data", "bot-shop"))
	if err != nil {
		f.Fatal(err)
	}
	m := newModel(d.learn[:20])
	m.roundWeights(make([]float64, (m.columns+1)*len(m.labels)))
	whole := m.onnx()
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte(nil))
	f.Add([]byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readModel(data)
		if err != nil {
			return
		}
		if p := m.probabilities("where is my order?"); len(p) != len(m.labels) {
			t.Errorf("%d probabilities of %d labels", len(p), len(m.labels))
		}
	})
}

// A graph of another trainer is refused.
func TestReadOtherModels(t *testing.T) {
	t.Parallel()
	var other protoFields
	other.number(1, version)
	other.addMessage(7, func(f *protoFields) { node(f, "Identity", []string{"a"}, []string{"b"}, nil) })
	if _, err := readModel(other); err == nil {
		t.Error("another graph is read")
	}
	m := newModel([]message{{"yes", "a"}, {"yes", "a"}, {"no", "b"}, {"no", "b"}})
	m.roundWeights(make([]float64, 6))
	m.bias = m.bias[:1]
	if _, err := readModel(m.onnx()); err == nil {
		t.Error("a model with too few weights is read")
	}
	if _, err := readChampion(t.TempDir()); err != nil {
		t.Errorf("no champion: %v", err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "model.onnx"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := readChampion(dir); err == nil {
		t.Error("a folder is read as a model")
	}
}
