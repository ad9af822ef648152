package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"tidemill.dev"
)

const (
	longestLabel  = 16 // of a row; a column's is as long as fits
	longestColumn = 9
	recallWidth   = 6
	drawingGap    = 4 // between two drawings beside each other
)

// picture is lines of text of the same width as a reader sees them, which is not
// their length where there are colours.
type picture struct {
	lines []string
	width int
}

// drawMatrix draws a confusion matrix: what examples are stands before the rows,
// what they were said to be above the columns, and behind each row how many of it
// were found. It is empty where it would be wider than the screen.
func drawMatrix(title string, f *tidemill.Figures, s screen) picture {
	rows := labels(f, longestLabel)
	first := widest(rows)
	cell := columnWidth(f, s.width-first-recallWidth)
	if cell == 0 {
		return picture{}
	}
	heads := labels(f, cell)
	if repeated(heads) {
		rows, heads = numbered(rows)
		first = widest(rows)
		if cell = columnWidth(f, s.width-first-recallWidth); cell == 0 {
			return picture{}
		}
	}
	own := first + len(heads)*(cell+1) + recallWidth
	d := picture{width: max(own, min(utf8.RuneCountInString(title), s.width))}
	d.lines = append(d.lines, padRight(cut(title, d.width), d.width))
	rest := strings.Repeat(" ", d.width-own)
	head := padRight("", first)
	for _, h := range heads {
		head += " " + padLeft(h, cell)
	}
	d.lines = append(d.lines, head+padLeft("found", recallWidth)+rest)
	counts := grid(f)
	for t, row := range rows {
		line := padRight(row, first)
		for p := range heads {
			line += " " + shaded(padLeft(countText(counts[t][p]), cell), counts[t][p], f.Classes[t].Support, t == p, s.colours)
		}
		d.lines = append(d.lines, line+padLeft(foundText(&f.Classes[t]), recallWidth)+rest)
	}
	return d
}

// columnWidth is that of one column, so that all fit; 0 if they do not.
func columnWidth(f *tidemill.Figures, room int) int {
	if len(f.Classes) == 0 {
		return 0
	}
	digits := 1
	for _, c := range f.Cells {
		digits = max(digits, len(fmt.Sprint(c.Count)))
	}
	longest := min(widest(labels(f, longestLabel)), longestColumn)
	cell := min(room/len(f.Classes)-1, max(longest, digits))
	if cell < max(digits, len(fmt.Sprint(len(f.Classes)))) {
		return 0
	}
	return cell
}

func labels(f *tidemill.Figures, longest int) []string {
	all := make([]string, len(f.Classes))
	for i := range f.Classes {
		all[i] = cut(orDash(harmless(f.Classes[i].Label)), longest)
	}
	return all
}

// numbered stands for labels that cannot be told apart where they are cut.
func numbered(rows []string) (numberedRows, heads []string) {
	digits := len(fmt.Sprint(len(rows)))
	for i, row := range rows {
		heads = append(heads, fmt.Sprint(i+1))
		numberedRows = append(numberedRows, fmt.Sprintf("%*d %s", digits, i+1, row))
	}
	return numberedRows, heads
}

func repeated(all []string) bool {
	sorted := slices.Sorted(slices.Values(all))
	return len(slices.Compact(sorted)) < len(all)
}

func widest(all []string) int {
	width := 0
	for _, text := range all {
		width = max(width, utf8.RuneCountInString(text))
	}
	return width
}

func padRight(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func padLeft(text string, width int) string {
	return strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))) + text
}

func grid(f *tidemill.Figures) [][]int {
	all := make([][]int, len(f.Classes))
	for i := range all {
		all[i] = make([]int, len(f.Classes))
	}
	for _, c := range f.Cells {
		if c.Truth < len(all) && c.Predicted < len(all) {
			all[c.Truth][c.Predicted] = c.Count
		}
	}
	return all
}

func countText(n int) string {
	if n == 0 {
		return "·"
	}
	return fmt.Sprint(n)
}

func foundText(c *tidemill.Class) string {
	if c.Support == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*c.Recall.Value)
}

// shaded paints a cell the more the larger its share of the row is: green what is
// right, red what is not.
func shaded(text string, n, of int, right, colours bool) string {
	if !colours || n == 0 || of == 0 {
		return text
	}
	right4, wrong4 := [4]int{22, 28, 34, 40}, [4]int{52, 88, 124, 160} // of a terminal's 256 colours, dark to bright
	shade := min(4*n/of, 3)
	colour := wrong4[shade]
	if right {
		colour = right4[shade]
	}
	ink := 231
	if right && shade == 3 {
		ink = 16 // white on bright green is hard to read
	}
	return fmt.Sprintf("\x1b[38;5;%d;48;5;%dm%s\x1b[0m", ink, colour, text)
}

// beside puts two drawings beside each other where they fit, else below.
func beside(a, b picture, s screen) []string {
	if len(a.lines) == 0 || len(b.lines) == 0 || a.width+drawingGap+b.width > s.width {
		lines := a.lines
		if len(a.lines) > 0 && len(b.lines) > 0 {
			lines = append(slices.Clone(lines), "")
		}
		return append(lines, b.lines...)
	}
	var lines []string
	for i := range max(len(a.lines), len(b.lines)) {
		left, right := strings.Repeat(" ", a.width), ""
		if i < len(a.lines) {
			left = a.lines[i]
		}
		if i < len(b.lines) {
			right = b.lines[i]
		}
		lines = append(lines, left+strings.Repeat(" ", drawingGap)+right)
	}
	return lines
}

// worst are the largest confusions, the largest first.
func worst(f *tidemill.Figures, most int) []tidemill.Cell {
	var wrong []tidemill.Cell
	for _, c := range f.Cells {
		if c.Truth != c.Predicted && c.Truth < len(f.Classes) && c.Predicted < len(f.Classes) {
			wrong = append(wrong, c)
		}
	}
	slices.SortStableFunc(wrong, func(a, b tidemill.Cell) int { return cmp.Compare(b.Count, a.Count) })
	return wrong[:min(len(wrong), most)]
}

// confusionText says one in words.
func confusionText(f *tidemill.Figures, c tidemill.Cell) string {
	of := f.Classes[c.Truth]
	return fmt.Sprintf("%s said to be %s: %s of %s (%.0f%%)", orDash(cut(harmless(of.Label), 40)), orDash(cut(harmless(f.Classes[c.Predicted].Label), 40)),
		thousands(int64(c.Count)), thousands(int64(of.Support)), 100*float64(c.Count)/float64(max(of.Support, 1)))
}
