package main

import (
	"maps"
	"slices"
	"strings"
)

// endings are what may stand behind a word without making it another. ONNX has
// no operator that would take them off, so each word is known with all of them.
var endings = [...]string{"", ".", ",", "?", "!", ";", ":", "...", "??", "!!", "?!"}

// often is how many messages must have a word or a pair for it to count: what
// was written once says nothing of what is written next.
const often = 2

// newModel knows the words of the messages, and has learned nothing yet.
func newModel(messages []message) *model {
	labels, words, pairs := map[string]bool{}, map[string]int{}, map[string]int{}
	for _, msg := range messages {
		labels[msg.intent] = true
		mine := map[string]bool{}
		before := ""
		for _, t := range tokens(msg.text) {
			w := bare(t)
			if w != "" && !mine[w] {
				mine[w] = true
				words[w]++
			}
			if pair := before + " " + w; before != "" && w != "" && !mine[pair] {
				mine[pair] = true
				pairs[pair]++
			}
			before = t
			if w != t { // a pair does not reach over a comma
				before = ""
			}
		}
	}
	m := &model{labels: slices.Sorted(maps.Keys(labels))}
	m.singles = m.formsOf(words)
	m.pairs = m.formsOf(pairs)
	m.index()
	return m
}

// formsOf gives each that is frequent enough a column, in the order of the
// alphabet: the same messages are the same model.
func (m *model) formsOf(seen map[string]int) (all []form) {
	for _, text := range slices.Sorted(maps.Keys(seen)) {
		if seen[text] < often {
			continue
		}
		for _, e := range endings {
			all = append(all, form{text + e, m.columns})
		}
		m.columns++
	}
	return all
}

// bare takes the longest ending off that there is.
func bare(token string) string {
	short := token
	for _, e := range endings {
		if rest, has := strings.CutSuffix(token, e); has && len(rest) < len(short) {
			short = rest
		}
	}
	return short
}
