package evaluate

import (
	"cmp"
	"slices"

	"tidemill.dev"
)

// figures computes figures from the pairs. Its classes are the labels that occur as truth or as
// answer. An empty answer is also a class if it occurs, but has no share in the mean of F1.
func (c *count) figures(cells map[pair]int) *tidemill.Figures {
	f := c.classes(cells)
	f.MacroF1 = macroF1(f)
	return f
}

// classes computes the figures without the mean of F1, whose interval costs many draws.
func (c *count) classes(cells map[pair]int) *tidemill.Figures {
	f := &tidemill.Figures{Examples: c.rows}
	place := c.labelIndexes(cells, f)
	var right int
	hits := make([]int, len(f.Classes))
	for at, many := range cells {
		t, s := place[at.truth], place[at.said]
		f.Cells = append(f.Cells, tidemill.Cell{Truth: t, Predicted: s, Count: many})
		f.Classes[t].Support += many
		f.Classes[s].Predicted += many
		if t == s {
			hits[t], right = many, right+many
		}
	}
	slices.SortFunc(f.Cells, func(a, b tidemill.Cell) int {
		return cmp.Or(cmp.Compare(a.Truth, b.Truth), cmp.Compare(a.Predicted, b.Predicted))
	})
	for i := range f.Classes {
		k := &f.Classes[i]
		k.Precision, k.Recall, k.F1 = wilsonShare(hits[i], k.Predicted), wilsonShare(hits[i], k.Support), f1(hits[i], k.Support, k.Predicted)
	}
	f.Accuracy = wilsonShare(right, c.rows)
	return f
}

// labelIndexes returns the index of each label that occurs, in the order of labels.
func (c *count) labelIndexes(cells map[pair]int, f *tidemill.Figures) []int {
	seen := make([]bool, len(c.labels))
	for at := range cells {
		seen[at.truth], seen[at.said] = true, true
	}
	var in []int
	for i, is := range seen {
		if is {
			in = append(in, i)
		}
	}
	slices.SortFunc(in, func(a, b int) int { return cmp.Compare(c.labels[a], c.labels[b]) })
	place := make([]int, len(c.labels))
	for i, n := range in {
		place[n] = i
		f.Classes = append(f.Classes, tidemill.Class{Label: c.labels[n]})
	}
	return place
}

// f1 is the harmonic mean of precision and recall, in a form that is defined for every class that
// occurs.
func f1(hits, support, predicted int) float64 {
	if support+predicted == 0 {
		return 0
	}
	return 2 * float64(hits) / float64(support+predicted)
}
