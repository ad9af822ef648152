package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"tidemill.dev"
)

const (
	worstShown = 5
	worstAlone = 15 // where there are too many labels for a matrix
)

// showMeasured prints what was measured of a version, and of the champion beside
// it.
func showMeasured(w io.Writer, version int, r *tidemill.Report, s screen) {
	if r == nil {
		return
	}
	fmt.Fprintln(w)
	for _, line := range measuredLines(r) {
		fmt.Fprintln(w, harmless(line))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", harmless(note))
	}
	if f := r.Measured; f != nil && len(f.Classes) > 0 {
		showMatrices(w, version, r, s)
	}
}

// measuredLines tell the figures in words, ours first.
func measuredLines(r *tidemill.Report) []string {
	var lines []string
	if f := r.Measured; f != nil {
		lines = append(lines, fmt.Sprintf("Of %s: accuracy %s, macro-F1 %s", count(f.Examples, "example"), estimateText(&f.Accuracy), estimateText(&f.MacroF1)))
	}
	var others []string
	for _, name := range telling(r.Metrics) {
		if r.Measured == nil || name != "accuracy" && name != "macroF1" && name != "examples" {
			others = append(others, name+" "+number(r.Metrics[name]))
		}
	}
	if len(others) > 0 {
		lines = append(lines, "Its trainer says: "+strings.Join(others, ", "))
	}
	for _, name := range telling(r.Claimed) {
		lines = append(lines, fmt.Sprintf("Its trainer says %s %s, and it was measured to be %s", name, number(r.Claimed[name]), number(r.Metrics[name])))
	}
	return append(lines, besideLines(r.Champion)...)
}

func besideLines(b *tidemill.Beside) []string {
	if b == nil {
		return nil
	}
	var lines []string
	switch f := b.Measured; {
	case f != nil:
		lines = append(lines, fmt.Sprintf("The champion of then, version %d, on the same data: accuracy %s, macro-F1 %s", b.Version, estimateText(&f.Accuracy), estimateText(&f.MacroF1)))
	case len(b.Metrics) > 0:
		lines = append(lines, fmt.Sprintf("The champion of then, version %d, on the same data: %s", b.Version, headline(b.Metrics)))
	}
	if l := b.Lead; l != nil {
		lines = append(lines, fmt.Sprintf("Its lead in accuracy: %s (95%%: %s to %s)%s", signed(l.Value), signed(l.Low), signed(l.High), leadText(l)))
	}
	return lines
}

// leadText says what an interval means.
func leadText(l *tidemill.Estimate) string {
	switch {
	case l.Low > 0:
		return ", better beyond chance"
	case l.High < 0:
		return ", worse beyond chance"
	}
	return ", which may be chance"
}

func estimateText(e *tidemill.Estimate) string {
	return fmt.Sprintf("%s (95%%: %s to %s)", figure(e.Value), figure(e.Low), figure(e.High))
}

func signed(v float64) string {
	text := figure(v)
	if strings.Trim(text, "-0.") == "" {
		return "0"
	}
	if v > 0 {
		return "+" + text
	}
	return text
}

func showMatrices(w io.Writer, version int, r *tidemill.Report, s screen) {
	own := drawMatrix(fmt.Sprintf("version %d", version), r.Measured, s)
	var other picture
	if b := r.Champion; b != nil && b.Measured != nil && len(own.lines) > 0 {
		other = drawMatrix(fmt.Sprintf("version %d, the champion of then", b.Version), b.Measured, s)
	}
	if lines := beside(own, other, s); len(lines) > 0 {
		fmt.Fprintln(w, "\nWhat examples are (rows) and were said to be (columns):")
		for _, line := range lines {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	most := worstShown
	if len(own.lines) == 0 {
		most = worstAlone
		fmt.Fprintf(w, "\nThere are %s, too many for a matrix of %d columns of text.\n", count(len(r.Measured.Classes), "label"), s.width)
	}
	showWorst(w, r.Measured, most, len(own.lines) == 0)
}

// showWorst lists the largest confusions and, where there is no matrix, the
// labels that are found least.
func showWorst(w io.Writer, f *tidemill.Figures, most int, all bool) {
	wrong := worst(f, most)
	if len(wrong) == 0 {
		fmt.Fprintln(w, "\nNo example was taken for another.")
		return
	}
	fmt.Fprintln(w, "\nTaken for another most often:")
	for _, c := range wrong {
		fmt.Fprintf(w, "  %s\n", confusionText(f, c))
	}
	if !all {
		return
	}
	least := slices.DeleteFunc(slices.Clone(f.Classes), func(c tidemill.Class) bool { return c.Support == 0 })
	slices.SortStableFunc(least, func(a, b tidemill.Class) int { return cmp.Compare(a.Recall.Value, b.Recall.Value) })
	fmt.Fprintln(w, "\nFound least:")
	for _, c := range least[:min(len(least), worstShown)] {
		fmt.Fprintf(w, "  %s: %.0f%% of %s\n", orDash(cut(harmless(c.Label), 40)), 100*c.Recall.Value, thousands(int64(c.Support)))
	}
}
