package main

import (
	"maps"
	"slices"
	"strings"
)

// endings are the punctuation marks that may follow a word. ONNX has no operator to remove
// punctuation, so each word has a form with each mark.
var endings = [...]string{"", ".", ",", "?", "!", ";", ":", "...", "??", "!!", "?!"}

// minOccurrences is the number of messages that must contain a word or a pair, so that the model
// uses it. A word of a single message would predict nothing.
const minOccurrences = 2

// newModel makes a model with the words of the messages, and without weights.
func newModel(messages []message) *model {
	labels, words, pairs := map[string]bool{}, map[string]int{}, map[string]int{}
	for _, msg := range messages {
		labels[msg.intent] = true
		mine := map[string]bool{}
		before := ""
		for _, t := range tokens(msg.text) {
			w := withoutEnding(t)
			if w != "" && !mine[w] {
				mine[w] = true
				words[w]++
			}
			if pair := before + " " + w; before != "" && w != "" && !mine[pair] {
				mine[pair] = true
				pairs[pair]++
			}
			before = t
			if w != t { // a pair does not cross a comma
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

// formsOf gives a column to each frequent word or pair, in alphabetical order, so that the same
// messages give the same model.
func (m *model) formsOf(seen map[string]int) (all []spelling) {
	for _, text := range slices.Sorted(maps.Keys(seen)) {
		if seen[text] < minOccurrences {
			continue
		}
		for _, e := range endings {
			all = append(all, spelling{text + e, m.columns})
		}
		m.columns++
	}
	return all
}

// withoutEnding removes the longest ending.
func withoutEnding(token string) string {
	short := token
	for _, e := range endings {
		if rest, has := strings.CutSuffix(token, e); has && len(rest) < len(short) {
			short = rest
		}
	}
	return short
}
