package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
)

// confusion compares the confusion matrices of two versions.
type confusion struct {
	Own, Theirs, Difference *matrix // Theirs and Difference are nil if there is nothing to compare with
	Pairs                   []confusedPair
	Classes                 int  // number of all classes
	Limited                 bool // whether the matrices have only some of them
	Points                  bool // whether differences are percentage points, because the examples differ
}

// matrix is a table with a row for each true class, and a column for each predicted class.
type matrix struct {
	Examples int
	Labels   []string
	Rows     []matrixRow
}

type matrixRow struct {
	Label string
	Total int // number of examples of the class
	Cells []matrixCell
}

// matrixCell has a number and the class of its shade.
type matrixCell struct{ Text, Class string }

// confusedPair counts the examples of one class that were predicted to be of another.
type confusedPair struct {
	Truth, Predicted string
	Own, Theirs      int
}

// difference returns the difference with its sign.
func (p *confusedPair) difference() string { return signed(float64(p.Own - p.Theirs)) }

const (
	mostClasses = 12 // classes in a matrix
	mostPairs   = 10 // rows in the table of confused pairs
)

// node shows a matrix, which may be nil. Totals adds a column with the number of each class.
func (m *matrix) node(title string, totals bool) Node {
	if m == nil {
		return nil
	}
	return scroll("matrix", h.Caption(say(title), when(m.Examples > 0, say(" "), quiet(say(count(m.Examples)+" examples")))),
		headRow(cell(), each(m.Labels, func(label *string) Node { return head(classText(*label)) }), when(totals, head(say("all")))),
		rows(each(m.Rows, func(r *matrixRow) Node {
			return h.Tr(rowName(classText(r.Label)), each(r.Cells, func(c *matrixCell) Node { return h.Td(when(c.Class != "", h.Class(c.Class)), say(c.Text)) }),
				when(totals, h.Td(h.Class("none"), say(strconv.Itoa(r.Total)))))
		})))
}

// classText shows a class. A model may answer without a label, and a person may say the truth of such an answer.
func classText(label string) Node {
	if label == "" {
		return say("no label")
	}
	return text(label)
}

// counts are the cells of a confusion matrix by the names of the classes.
type counts struct {
	cells   map[[2]string]int
	support map[string]int
}

func countsOf(f *tidemill.Figures) counts {
	c := counts{map[[2]string]int{}, map[string]int{}}
	if f == nil {
		return c
	}
	for _, class := range f.Classes {
		c.support[class.Label] = class.Support
	}
	for _, cell := range f.Cells {
		if cell.Truth < 0 || cell.Predicted < 0 || cell.Truth >= len(f.Classes) || cell.Predicted >= len(f.Classes) {
			continue
		}
		c.cells[[2]string{f.Classes[cell.Truth].Label, f.Classes[cell.Predicted].Label}] += cell.Count
	}
	return c
}

// share returns the part of a class's examples that are in a cell.
func (c counts) share(at [2]string) float64 {
	if c.support[at[0]] == 0 {
		return 0
	}
	return float64(c.cells[at]) / float64(c.support[at[0]])
}

// confusionOf compares the figures of a version with those of another one, which may be nil.
func confusionOf(own, theirs *tidemill.Figures) *confusion {
	a, b := countsOf(own), countsOf(theirs)
	labels := slices.Sorted(maps.Keys(a.support))
	for label := range b.support {
		if _, known := a.support[label]; !known {
			labels = append(labels, label)
		}
	}
	slices.Sort(labels)
	c := &confusion{Classes: len(labels), Pairs: pairsOf(a, b), Points: !maps.Equal(a.support, b.support)}
	if len(labels) > mostClasses {
		c.Limited, labels = true, mostConfused(labels, a, b)
	}
	c.Own = a.matrix(own.Examples, labels)
	if theirs != nil {
		c.Theirs = b.matrix(theirs.Examples, labels)
		c.Difference = c.difference(a, b, labels)
	}
	return c
}

// pairsOf returns the pairs with the most wrong examples of either version, the most first.
func pairsOf(a, b counts) (all []confusedPair) {
	seen := map[[2]string]bool{}
	for _, of := range []counts{a, b} {
		for at := range of.cells {
			if at[0] != at[1] && !seen[at] {
				seen[at] = true
				all = append(all, confusedPair{at[0], at[1], a.cells[at], b.cells[at]})
			}
		}
	}
	slices.SortFunc(all, func(x, y confusedPair) int {
		return cmp.Or(cmp.Compare(max(y.Own, y.Theirs), max(x.Own, x.Theirs)), cmp.Compare(x.Truth, y.Truth), cmp.Compare(x.Predicted, y.Predicted))
	})
	return all[:min(len(all), mostPairs)]
}

// mostConfused returns the labels with the most wrong examples, by name.
func mostConfused(labels []string, all ...counts) []string {
	wrong := map[string]int{}
	for _, c := range all {
		for at, n := range c.cells {
			if at[0] != at[1] {
				wrong[at[0]] += n
				wrong[at[1]] += n
			}
		}
	}
	slices.SortStableFunc(labels, func(x, y string) int { return cmp.Compare(wrong[y], wrong[x]) })
	return slices.Sorted(slices.Values(labels[:mostClasses]))
}

func (c counts) matrix(examples int, labels []string) *matrix {
	m := &matrix{Examples: examples, Labels: labels}
	for _, truth := range labels {
		row := matrixRow{Label: truth, Total: c.support[truth]}
		for _, predicted := range labels {
			at := [2]string{truth, predicted}
			cell := matrixCell{Text: strconv.Itoa(c.cells[at])}
			if c.cells[at] > 0 {
				cell.Class = shade(truth == predicted, c.share(at), 0.1, 0.3, 0.6)
			}
			row.Cells = append(row.Cells, cell)
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

// difference returns the first matrix minus the second. More examples on the diagonal are good; elsewhere
// fewer are.
func (c *confusion) difference(a, b counts, labels []string) *matrix {
	m := &matrix{Labels: labels}
	for _, truth := range labels {
		row := matrixRow{Label: truth, Total: a.support[truth]}
		for _, predicted := range labels {
			at := [2]string{truth, predicted}
			n, points := a.cells[at]-b.cells[at], a.share(at)-b.share(at)
			cell := matrixCell{Text: signed(float64(n))}
			if c.Points {
				cell.Text = signedPoints(points)
			}
			if cell.Text != "0" {
				cell.Class = shade((points > 0) == (truth == predicted), max(points, -points), 0.02, 0.05, 0.1)
			}
			row.Cells = append(row.Cells, cell)
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

// signedPoints writes a difference of two shares in percentage points.
func signedPoints(f float64) string {
	switch s := fmt.Sprintf("%.1f", 100*f); {
	case s == "0.0", s == "-0.0":
		return "0"
	case f > 0:
		return "+" + s
	default:
		return "−" + s[1:]
	}
}

// shade returns the class of a cell: good or bad, in four steps with the given limits.
func shade(good bool, share float64, limits ...float64) string {
	step := 1
	for _, limit := range limits {
		if share >= limit {
			step++
		}
	}
	if good {
		return "good" + strconv.Itoa(step)
	}
	return "bad" + strconv.Itoa(step)
}
