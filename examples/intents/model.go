package main

import (
	"math"
	"strings"
)

// model predicts intents from the words and pairs of words in a message. Its fields are those of
// the ONNX file, so that both compute the same.
type model struct {
	labels  []string
	singles []spelling // forms of words
	pairs   []spelling // forms of pairs of words
	columns int
	weights []float32 // columns × labels
	bias    []float32 // labels

	lookup map[string]int // column by form; a pair is two words with a blank between them
}

// spelling is one spelling of a word or a pair: "refund" and "refund?" are forms of one word.
type spelling struct {
	text   string // a word, or two words with a blank between them
	column int
}

// index builds lookup from the forms.
func (m *model) index() {
	m.lookup = make(map[string]int, len(m.singles)+len(m.pairs))
	for _, f := range m.singles {
		m.lookup[f.text] = f.column
	}
	for _, f := range m.pairs {
		m.lookup[f.text] = f.column
	}
}

// tokens splits a message as StringNormalizer and StringSplit do. It changes only ASCII letters to
// lower case, because other letters depend on the machine's locale. It splits at each blank, so two
// blanks give an empty token, which is not a word.
func tokens(text string) []string {
	return strings.Split(strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text), " ")
}

// columnCount is the number of times that a column's word or pair is in a message.
type columnCount struct {
	column int
	times  float32
}

// columnCounts does the same as TfIdfVectorizer, without the columns that are zero.
func (m *model) columnCounts(text string) (all []columnCount) {
	words := tokens(text)
	at := map[int]int{}
	add := func(form string) {
		column, known := m.lookup[form]
		if !known {
			return
		}
		i, seen := at[column]
		if !seen {
			i = len(all)
			at[column], all = i, append(all, columnCount{column: column})
		}
		all[i].times++
	}
	for i, w := range words {
		add(w)
		if i > 0 {
			add(words[i-1] + " " + w)
		}
	}
	return all
}

// probabilities returns the probability of each label: Gemm and Softmax.
func (m *model) probabilities(text string) []float64 {
	scores := make([]float64, len(m.labels))
	for k, b := range m.bias {
		scores[k] = float64(b)
	}
	for _, c := range m.columnCounts(text) {
		row := m.weights[c.column*len(m.labels):]
		for k := range scores {
			scores[k] += float64(c.times) * float64(row[k])
		}
	}
	softmax(scores)
	return scores
}

// softmax turns scores into probabilities, in place. It subtracts the maximum first, because large
// scores would overflow.
func softmax(scores []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, s := range scores {
		top = math.Max(top, s)
	}
	for k, s := range scores {
		scores[k] = math.Exp(s - top)
		sum += scores[k]
	}
	for k := range scores {
		scores[k] /= sum
	}
}

// predict returns the most probable label, or the first of several equally probable labels.
func (m *model) predict(text string) string {
	best, top := "", -1.0
	for k, p := range m.probabilities(text) {
		if p > top {
			best, top = m.labels[k], p
		}
	}
	return best
}
