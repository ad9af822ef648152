package main

import (
	"math"
	"strings"
)

// model tells intents apart by the words and pairs of words in a message. Its
// fields are those of the ONNX file, so that what is computed here and there is
// the same.
type model struct {
	labels  []string
	singles []form // how words may be written
	pairs   []form // and pairs of them
	columns int
	weights []float32 // columns × labels
	bias    []float32 // labels

	lookup map[string]int // column by form; the words of a pair stand with a blank between
}

// form is a way of writing what counts in a column: "refund" and "refund?" are
// one word.
type form struct {
	text   string // no blank in a word, one in a pair
	column int
}

// index is to be called once the forms are known.
func (m *model) index() {
	m.lookup = make(map[string]int, len(m.singles)+len(m.pairs))
	for _, f := range m.singles {
		m.lookup[f.text] = f.column
	}
	for _, f := range m.pairs {
		m.lookup[f.text] = f.column
	}
}

// tokens takes a message apart as StringNormalizer and StringSplit do: capital
// letters of ASCII alone, since other ones depend on the machine's locale, and
// at each blank. Between two blanks there is an empty token, which is no word.
func tokens(text string) []string {
	return strings.Split(strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text), " ")
}

// count is how often a column's word or pair is in a message.
type count struct {
	column int
	times  float32
}

// counts does what TfIdfVectorizer does; columns that count nothing are left out.
func (m *model) counts(text string) (all []count) {
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
			at[column], all = i, append(all, count{column: column})
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

// probabilities are those of the labels: Gemm and Softmax.
func (m *model) probabilities(text string) []float64 {
	scores := make([]float64, len(m.labels))
	for k, b := range m.bias {
		scores[k] = float64(b)
	}
	for _, c := range m.counts(text) {
		row := m.weights[c.column*len(m.labels):]
		for k := range scores {
			scores[k] += float64(c.times) * float64(row[k])
		}
	}
	softmax(scores)
	return scores
}

// softmax turns scores into probabilities, in place. It takes the greatest away
// first, or great scores would overflow.
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

// predict is the most probable label; of equals the first.
func (m *model) predict(text string) string {
	best, top := "", -1.0
	for k, p := range m.probabilities(text) {
		if p > top {
			best, top = m.labels[k], p
		}
	}
	return best
}
