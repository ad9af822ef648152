package evaluate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
)

const (
	bins    = 10
	million = 1e6
)

// Count adds an outcome to the figures of its version. A correction takes back the truth before it. Count reports
// false for a correction of an outcome that was not counted.
func Count(m *tidemill.Measured, o *tidemill.OutcomeData) bool {
	said, truth := labelIndex(m, o.Label), labelIndex(m, o.Truth)
	if o.Revision > 1 {
		if !addCell(m, labelIndex(m, o.Before), said, -1) {
			return false
		}
		m.Corrected++
		if o.Label == o.Before {
			addRight(m, o, -1)
		}
	} else {
		addAnswer(m, o)
	}
	addCell(m, truth, said, 1)
	if o.Right() {
		addRight(m, o, 1)
	}
	m.Folded++
	return true
}

// longestLabel is the length of the longest label in the figures. A truth may be as long as an event, and all figures
// of a version have to fit into a fact.
const longestLabel = 200

// labelIndex returns the index of a label. It is the same for all outcomes: the list of labels only grows,
// and a label that finds it full is another label for ever. Longer labels with the same begin are one label.
func labelIndex(m *tidemill.Measured, label string) int {
	if len(label) > longestLabel {
		label = strings.ToValidUTF8(label[:longestLabel], "") + tidemill.OtherLabel
	}
	label = strings.ToValidUTF8(label, "\uFFFD")
	if i := slices.Index(m.Labels, label); i >= 0 {
		return i
	}
	if len(m.Labels) < tidemill.MeasuredLabels {
		m.Labels = append(m.Labels, label)
		return len(m.Labels) - 1
	}
	if len(m.Labels) == tidemill.MeasuredLabels {
		m.Labels = append(m.Labels, tidemill.OtherLabel)
	}
	return tidemill.MeasuredLabels
}

// addCell changes the count of a cell; false if there are not so many to take back.
func addCell(m *tidemill.Measured, truth, said, n int) bool {
	i, found := slices.BinarySearchFunc(m.Cells, [2]int{truth, said}, func(c [3]int, at [2]int) int {
		return cmp.Or(cmp.Compare(c[0], at[0]), cmp.Compare(c[1], at[1]))
	})
	switch {
	case !found && n < 0:
		return false
	case !found:
		m.Cells = slices.Insert(m.Cells, i, [3]int{truth, said, n})
	case m.Cells[i][2]+n == 0:
		m.Cells = slices.Delete(m.Cells, i, i+1)
	default:
		m.Cells[i][2] += n
	}
	return true
}

func addAnswer(m *tidemill.Measured, o *tidemill.OutcomeData) {
	m.Answers++
	if o.Basis == tidemill.OutcomeAssumed {
		m.Assumed++
	}
	at := o.Answered.UTC()
	if m.First.IsZero() || at.Before(m.First) {
		m.First = at
	}
	if at.After(m.Last) {
		m.Last = at
	}
	if b := binOf(m, o, true); b != nil {
		b.Answers++
		b.Score += scoreMillionths(o)
	}
	if d := dayOf(m, at, true); d != nil {
		d.Answers++
	}
}

func addRight(m *tidemill.Measured, o *tidemill.OutcomeData, n int) {
	m.Right += n
	if b := binOf(m, o, false); b != nil {
		b.Right += n
	}
	if d := dayOf(m, o.Answered.UTC(), false); d != nil {
		d.Right += n
	}
}

func scoreMillionths(o *tidemill.OutcomeData) int64 { return int64(math.Round(o.Score * million)) }

// binOf returns the bin of an answer's score; nil if it has none, or one that is no probability.
func binOf(m *tidemill.Measured, o *tidemill.OutcomeData, begin bool) *tidemill.Bin {
	if !(o.Score > 0 && o.Score <= 1) || m.Bins == nil && !begin {
		return nil
	}
	if m.Bins == nil {
		m.Bins = make([]tidemill.Bin, bins)
	}
	return &m.Bins[min(int(scoreMillionths(o)*bins/million), bins-1)]
}

// dayOf returns the day of an answer; nil if it is older than the days that are kept.
func dayOf(m *tidemill.Measured, at time.Time, begin bool) *tidemill.Day {
	day := at.Format(time.DateOnly)
	i, found := slices.BinarySearchFunc(m.Days, day, func(d tidemill.Day, day string) int { return strings.Compare(d.Day, day) })
	full := len(m.Days) >= tidemill.MeasuredDays
	switch {
	case found:
		return &m.Days[i]
	case !begin || full && i == 0:
		return nil
	}
	m.Days = slices.Insert(m.Days, i, tidemill.Day{Day: day})
	if full {
		m.Days = slices.Delete(m.Days, 0, 1)
		i--
	}
	return &m.Days[i]
}

// LiveFigures returns the accuracy and the confusion of live answers, without the mean of F1.
func LiveFigures(m *tidemill.Measured) *tidemill.Figures {
	c, cells := &count{rows: m.Answers, labels: m.Labels}, map[pair]int{}
	for _, cell := range m.Cells {
		if max(cell[0], cell[1]) < len(m.Labels) && min(cell[0], cell[1]) >= 0 {
			cells[pair{int32(cell[0]), int32(cell[1])}] = cell[2]
		}
	}
	f := c.classes(cells)
	f.Accuracy = wilsonShare(m.Right, m.Answers)
	return f
}

// CalibrationError returns the expected calibration error: by how much the share of right answers differs from
// the mean score, on average over the answers. ok is false if no answer had a score.
func CalibrationError(m *tidemill.Measured) (e float64, ok bool) {
	n := 0
	for _, b := range m.Bins {
		n += b.Answers
		e += math.Abs(float64(b.Right) - float64(b.Score)/million)
	}
	if n == 0 {
		return 0, false
	}
	return e / float64(n), true
}

// CompareLive says how the live accuracy of a version differs from the one that its gate judged; nil if
// that is unknown.
func CompareLive(live tidemill.Estimate, answers int, gate *float64) string {
	text := fmt.Sprintf("live accuracy %.3f over %d %s", live.Value, answers, plural(answers, "answer"))
	if gate == nil {
		return text
	}
	points := 100 * math.Abs(live.Value-*gate)
	switch {
	case points < 0.05:
		return fmt.Sprintf("gate said %.3f, %s: the same", *gate, text)
	case *gate >= live.Low && *gate <= live.High:
		return fmt.Sprintf("gate said %.3f, %s: the difference of %.1f points may be chance", *gate, text, points)
	case live.Value < *gate:
		return fmt.Sprintf("gate said %.3f, %s: %.1f points lower", *gate, text, points)
	}
	return fmt.Sprintf("gate said %.3f, %s: %.1f points higher", *gate, text, points)
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
