package evaluate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

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

// count is how often each pair of labels occurs so far.
type count struct {
	rows          int
	labels        []string // labels in the order in which they occur; the first is empty and means no answer
	numbers       map[string]int32
	own, champion map[pair]int
	silent        int // number of rows without an answer of the champion
	better, worse int // numbers of rows that only this version has right, and that only the champion has right
}

// pair is a true label and an answer, as indexes of count.labels.
type pair struct{ truth, said int32 }

func newCount() *count {
	return &count{labels: []string{""}, numbers: map[string]int32{"": 0}, own: map[pair]int{}, champion: map[pair]int{}}
}

func (c *count) add(r row) error {
	if r.truth == "" {
		return badLine(r.line, "the truth is empty; leave out such rows")
	}
	var at [3]int32
	for i, text := range []string{r.truth, r.predicted, r.champion} {
		n, err := c.number(r.line, text)
		if err != nil {
			return err
		}
		at[i] = n
	}
	c.rows++
	c.own[pair{at[0], at[1]}]++
	c.champion[pair{at[0], at[2]}]++
	if r.champion == "" {
		c.silent++
	}
	switch right, other := at[0] == at[1], at[0] == at[2]; {
	case right && !other:
		c.better++
	case other && !right:
		c.worse++
	}
	if len(c.own) > maxCells || len(c.champion) > maxCells {
		return badFile("has more than %d different pairs of truth and answer, which no report can hold; write the rows of the classes that matter", maxCells)
	}
	return nil
}

// number returns a label's index.
func (c *count) number(line int, text string) (int32, error) {
	n, known := c.numbers[text]
	switch {
	case known:
		return n, nil
	case len(text) > maxLabel:
		return 0, badLine(line, "a label is longer than %d bytes", maxLabel)
	case len(c.labels) > maxLabels:
		return 0, c.tooMany()
	}
	n = int32(len(c.labels))    // at most maxLabels
	text = string([]byte(text)) // copy, so that the rest of its line is not kept in memory
	c.labels, c.numbers[text] = append(c.labels, text), n
	return n, nil
}

func (c *count) tooMany() error {
	if numbers, _ := c.isNumeric(); numbers {
		return badFile("holds numbers, more than %d different ones: %s", maxLabels, ofRegression)
	}
	return badFile("has more than %d labels; are these the predictions of a classifier?", maxLabels)
}

const ofRegression = "classes are counted, and how far a number is off is not; write such figures into metrics.json"

// isNumeric reports whether all labels are numbers, and whether one has a fraction.
func (c *count) isNumeric() (all, fraction bool) {
	for _, text := range c.labels[1:] {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return false, false
		}
		fraction = fraction || x != math.Trunc(x)
	}
	return true, fraction
}

const fewNumbers = 50

// isRegression reports whether the labels are predictions of a quantity. A matrix of them would
// have a class for each row. Grades such as 1.5 are few, and count as classes.
func (c *count) isRegression() bool {
	all, fraction := c.isNumeric()
	different := len(c.labels) - 1
	return all && fraction && (different > fewNumbers || different > c.rows)
}

func (c *count) predictions() (Predictions, error) {
	switch {
	case c.rows == 0:
		return Predictions{}, badFile("has a header and no rows")
	case c.isRegression():
		return Predictions{}, badFile("holds numbers, %d different ones in %d rows: %s", len(c.labels)-1, c.rows, ofRegression)
	}
	p := Predictions{Own: c.figures(c.own)}
	if label, one := onlyTruth(p.Own); one {
		p.Notes = append(p.Notes, fmt.Sprintf("the truth of each row of %s is %q, so no figure is about the other classes", FileName, label))
	}
	p.note(unanswered(c.own), c.rows, "predicted")
	if c.silent == c.rows {
		return p, nil
	}
	p.Champion, p.Lead = c.figures(c.champion), leadInterval(c.better, c.worse, c.rows)
	p.note(c.silent, c.rows, "champion")
	return p, nil
}

// onlyTruth returns the true label of all rows, if they have the same one.
func onlyTruth(f *tidemill.Figures) (label string, one bool) {
	for _, c := range f.Classes {
		if c.Support > 0 && one {
			return "", false
		}
		if c.Support > 0 {
			label, one = c.Label, true
		}
	}
	return label, one
}

func unanswered(cells map[pair]int) (n int) {
	for at, many := range cells {
		if at.said == 0 {
			n += many
		}
	}
	return n
}

func (p *Predictions) note(silent, rows int, column string) {
	if silent > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d of %d rows of %s have nothing in the column %s, which counts as wrong", silent, rows, FileName, column))
	}
}
