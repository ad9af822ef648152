package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
)

func modelsShowCommand() command.Command {
	return command.Command{
		Name:    "models show",
		Daily:   true,
		Args:    "MODEL[@VERSION]",
		Summary: "show a model: its versions, why each serves or not, its confusion matrix",
		About: `VERSION is a number, champion, previous (the champion before) or newest. Without it all
versions are listed, and the champion's verdict is shown.

Confusion matrix: the rows are the true labels, the columns the predicted ones. If the
run measured the champion on the same data, the champion's matrix is next to it.

Live: the accuracy of the answers whose truth is known, by the labels of a scorer, next to
the accuracy that the gate judged.`,
		Examples: []command.Example{
			{"tidemill models show intent/bot-42", "all versions, and the verdict of the champion"},
			{"tidemill models show intent/bot-42@newest", "the newest version and its verdict"},
			{"tidemill models show intent/bot-42@7 -o json", "for a script"},
		},
		Make: func() command.Program { return &request{json: true, accept: acceptVersion, do: doModelShow} },
	}
}

func acceptVersion(positional []string) error {
	_, _, err := versionArg(positional[0])
	return err
}

func doModelShow(ctx context.Context, c *call) error {
	model, which, err := versionArg(c.positional[0])
	if err != nil {
		return err
	}
	whole, err := c.g.Model(ctx, model, "")
	if err != nil {
		return err
	}
	n, err := findVersion(&whole, which)
	if err != nil && (which != "" || len(whole.Versions) > 0) {
		return err
	}
	look := lookedAt{model: &whole}
	if n != 0 {
		if look, err = measuredVersion(ctx, c.g, &whole, n); err != nil {
			return err
		}
	}
	if c.json && which != "" {
		return writeIndented(c.Stdout, look.version)
	}
	if c.json {
		return writeIndented(c.Stdout, whole)
	}
	return showModel(c.Stdout, look, which == "", show.ScreenOf(c.Stdout, c.Getenv), time.Now())
}

// showModel prints a model and one version of it, for people.
func showModel(w io.Writer, look lookedAt, all bool, s show.Screen, now time.Time) error {
	if err := sayModel(w, look.model); err != nil {
		return err
	}
	if all {
		if err := tabulateVersions(w, look.model, now); err != nil {
			return err
		}
		showChanges(w, look.model)
	}
	if v := look.version; v != nil {
		showVerdict(w, look.model, v)
		if err := showOrigin(w, v, now); err != nil {
			return err
		}
		showMeasured(w, v.Number, v.Measured, s)
	}
	if err := showLive(w, look, all, s); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, nextForModel(look))
	return err
}

// canaryText says what the canary of a model does, and when it ends.
func canaryText(m *api.ModelWhole) string {
	c := m.Canary
	outcomes := 0
	for i := range m.Live {
		if m.Live[i].Version == c.Version {
			outcomes += m.Live[i].Answers
		}
	}
	ends := "and promoted after " + age(c.Hold)
	if c.Least > 0 {
		ends += fmt.Sprintf(", if it has %s by then; later ones count until %s", show.Count(c.Least, "outcome"), age(c.Until))
	}
	if u := c.Unserved; u != nil {
		return fmt.Sprintf("Canary: scorer %s cannot serve it, at %s: %s\nIt is refused %s after its begin, unless the scorer can serve it by then.", u.Scorer, clock(u.At), u.Error, age(c.Hold))
	}
	return fmt.Sprintf("Canary: it has answered %g%% of the events for %s, with %s so far. It is refused as soon as its answers are surely\nworse than those of version %d, %s.",
		100*c.Share, ago(c.At), show.Count(outcomes, "outcome"), m.Champion, ends)
}

func nextForModel(look lookedAt) string {
	m := look.model
	name := show.Harmless(m.Name)
	newest := m.Which(tidemill.WhichNewest)
	switch v := look.version; {
	case v == nil:
		return ""
	case v.State == tidemill.VersionCanary && m.Canary != nil:
		return fmt.Sprintf("\n%s\nNext: tidemill rollback %s ends that; tidemill promote %[2]s@%[3]d makes it the champion now\n", canaryText(m), name, v.Number)
	case v.State == tidemill.VersionAwaiting && m.Pin != nil:
		return fmt.Sprintf("\nNext: tidemill unpin %s, then tidemill promote %[1]s@%d\n", name, v.Number)
	case v.State == tidemill.VersionAwaiting && v.Judgement != nil && v.Judgement.Lacks:
		return fmt.Sprintf("\nNext: install what is missing, then tidemill promote %s@%d\n", name, v.Number)
	case v.State == tidemill.VersionAwaiting && v.Rollout != "" && v.Judgement != nil && strings.HasPrefix(v.Judgement.Hold, "rollout "+v.Rollout):
		return fmt.Sprintf("\nNext: tidemill rollouts show %s says why the rollout of its change has not gone on\n      tidemill promote %s makes it the champion anyway\n", show.Harmless(v.Recipe), show.Harmless(tidemill.VersionName(m.Name, v.Number)))
	case v.State == tidemill.VersionAwaiting && m.Champion == 0:
		return fmt.Sprintf("\nNext: tidemill promote %s\n", show.Harmless(tidemill.VersionName(m.Name, v.Number)))
	case v.State == tidemill.VersionAwaiting:
		return fmt.Sprintf("\nNext: tidemill promote %s\n      tidemill compare %s@champion @%d\n", show.Harmless(tidemill.VersionName(m.Name, v.Number)), name, v.Number)
	case v.Number != newest:
		return fmt.Sprintf("\nNext: tidemill models show %s@%d shows the newest version\n", name, newest)
	case v.Number == m.Champion && m.Previous != 0:
		return fmt.Sprintf("\nNext: tidemill compare %s@previous @%d\n      tidemill rollback %[1]s makes version %[3]d the champion again\n", name, v.Number, m.Previous)
	}
	return fmt.Sprintf("\nNext: tidemill runs show %s shows how it was made\n", show.ShortID(look.version.Run))
}

const (
	worstShown = 5
	worstAlone = 15 // if there are too many labels for a matrix
)

// showMeasured prints the measurements of a version, and of the champion at that time.
func showMeasured(w io.Writer, version int, r *tidemill.Report, s show.Screen) {
	if r == nil {
		return
	}
	fmt.Fprintln(w)
	if r.Trial != nil {
		fmt.Fprintln(w, show.Harmless(trialText(r.Trial)))
	}
	for _, line := range measuredLines(r) {
		fmt.Fprintln(w, show.Harmless(line))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", show.Harmless(note))
	}
	if f := r.Measured; f != nil && len(f.Classes) > 0 {
		showMatrices(w, version, r, s)
	}
}

// trialText says how a version's model was tried before it was judged.
func trialText(t *tidemill.ServingCheck) string {
	by := "Tried"
	if t.Scorer != "" {
		by += " as scorer " + t.Scorer + " serves it"
	}
	if t.Engine != "" {
		by += ", with engine " + t.Engine
	}
	switch {
	case t.Error != "":
		return by + ": it cannot be served: " + t.Error
	case t.Missing != "":
		return by + ": it cannot be run here: " + t.Missing
	case t.Golden:
		return by + ": it answers its golden request"
	case t.Rows > 0:
		return by + ": it answers " + show.Count(t.Rows, "generated row")
	}
	return by + ": it can be loaded; a row of its inputs has no fixed size, so nothing was asked"
}

// measuredLines describes the figures in words, ours first.
func measuredLines(r *tidemill.Report) []string {
	var lines []string
	if f := r.Measured; f != nil {
		lines = append(lines, fmt.Sprintf("Of %s: accuracy %s, macro-F1 %s", show.Count(f.Examples, "example"), estimateText(&f.Accuracy), estimateText(&f.MacroF1)))
	}
	var others []string
	for _, name := range telling(r.Metrics) {
		if r.Measured == nil || name != "accuracy" && name != "macroF1" && name != "examples" {
			others = append(others, name+" "+number(r.Metrics[name]))
		}
	}
	if len(others) > 0 {
		lines = append(lines, "Reported by its trainer: "+strings.Join(others, ", "))
	}
	for _, name := range telling(r.Claimed) {
		lines = append(lines, fmt.Sprintf("Its trainer reported %s %s, but the measured value is %s", name, number(r.Claimed[name]), number(r.Metrics[name])))
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
		lines = append(lines, fmt.Sprintf("The champion at that time, version %d, on the same data: accuracy %s, macro-F1 %s", b.Version, estimateText(&f.Accuracy), estimateText(&f.MacroF1)))
	case len(b.Metrics) > 0:
		lines = append(lines, fmt.Sprintf("The champion at that time, version %d, on the same data: %s", b.Version, Headline(b.Metrics)))
	}
	if l := b.Lead; l != nil {
		lines = append(lines, fmt.Sprintf("Its lead in accuracy: %s (95%%: %s to %s)%s", signed(l.Value), signed(l.Low), signed(l.High), leadText(l)))
	}
	return lines
}

// leadText says whether a difference is significant.
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

func showMatrices(w io.Writer, version int, r *tidemill.Report, s show.Screen) {
	own := drawMatrix(fmt.Sprintf("version %d", version), r.Measured, s)
	var other picture
	if b := r.Champion; b != nil && b.Measured != nil && len(own.lines) > 0 {
		other = drawMatrix(fmt.Sprintf("version %d, the champion at that time", b.Version), b.Measured, s)
	}
	if lines := beside(own, other, s); len(lines) > 0 {
		fmt.Fprintln(w, "\nConfusion matrix (rows: true, columns: predicted):")
		for _, line := range lines {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	most := worstShown
	if len(own.lines) == 0 {
		most = worstAlone
		fmt.Fprintf(w, "\nThere are %s, too many for a matrix of %d columns of text.\n", show.Count(len(r.Measured.Classes), "label"), s.Width)
	}
	showWorst(w, r.Measured, most, len(own.lines) == 0)
}

// showWorst lists the largest confusions. With all, because there is no matrix, it also lists the
// labels with the lowest recall.
func showWorst(w io.Writer, f *tidemill.Figures, most int, all bool) {
	wrong := worst(f, most)
	if len(wrong) == 0 {
		fmt.Fprintln(w, "\nNo example was misclassified.")
		return
	}
	fmt.Fprintln(w, "\nMisclassified most often:")
	for _, c := range wrong {
		fmt.Fprintf(w, "  %s\n", confusionText(f, c))
	}
	if !all {
		return
	}
	least := slices.DeleteFunc(slices.Clone(f.Classes), func(c tidemill.Class) bool { return c.Support == 0 })
	slices.SortStableFunc(least, func(a, b tidemill.Class) int { return cmp.Compare(a.Recall.Value, b.Recall.Value) })
	fmt.Fprintln(w, "\nLowest recall:")
	for _, c := range least[:min(len(least), worstShown)] {
		fmt.Fprintf(w, "  %s: %.0f%% of %s\n", orDash(show.Cut(show.Harmless(c.Label), 40)), 100*c.Recall.Value, show.Thousands(int64(c.Support)))
	}
}

const (
	longestLabel  = 16 // limit for the label of a row; a column's label is as long as fits
	longestColumn = 9
	recallWidth   = 6
	drawingGap    = 4 // between two drawings in one row
)

// picture is lines of the same visible width. With colours this is less than their length.
type picture struct {
	lines []string
	width int
}

// drawMatrix draws a confusion matrix. Rows are true labels, columns are predicted ones; recall is
// at the end of each row. It is empty if it would be wider than the screen.
func drawMatrix(title string, f *tidemill.Figures, s show.Screen) picture {
	rows := labels(f, longestLabel)
	first := widest(rows)
	cell := columnWidth(f, s.Width-first-recallWidth)
	if cell == 0 {
		return picture{}
	}
	heads := labels(f, cell)
	if repeated(heads) {
		rows, heads = numbered(rows)
		first = widest(rows)
		if cell = columnWidth(f, s.Width-first-recallWidth); cell == 0 {
			return picture{}
		}
	}
	own := first + len(heads)*(cell+1) + recallWidth
	d := picture{width: max(own, min(utf8.RuneCountInString(title), s.Width))}
	d.lines = append(d.lines, padRight(show.Cut(title, d.width), d.width))
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
			line += " " + shaded(padLeft(countText(counts[t][p]), cell), counts[t][p], f.Classes[t].Support, t == p, s.Colours)
		}
		d.lines = append(d.lines, line+padLeft(foundText(&f.Classes[t]), recallWidth)+rest)
	}
	return d
}

// columnWidth returns the width of a column so that all fit; 0 if they do not.
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
		all[i] = show.Cut(orDash(show.Harmless(f.Classes[i].Label)), longest)
	}
	return all
}

// numbered returns numbers as column heads, for labels that look the same when they are cut.
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

// shaded colours a cell, brighter for a larger share of its row: green if the prediction is right,
// red if not.
func shaded(text string, n, of int, right, colours bool) string {
	if !colours || n == 0 || of == 0 {
		return text
	}
	right4, wrong4 := [4]int{22, 28, 34, 40}, [4]int{52, 88, 124, 160} // colours of a terminal with 256, dark to bright
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

// beside joins two drawings side by side if they fit, else one below the other.
func beside(a, b picture, s show.Screen) []string {
	if len(a.lines) == 0 || len(b.lines) == 0 || a.width+drawingGap+b.width > s.Width {
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

// worst returns the largest confusions, largest first.
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

// confusionText describes a confusion in words.
func confusionText(f *tidemill.Figures, c tidemill.Cell) string {
	of := f.Classes[c.Truth]
	return fmt.Sprintf("%s predicted as %s: %s of %s (%.0f%%)", orDash(show.Cut(show.Harmless(of.Label), 40)), orDash(show.Cut(show.Harmless(f.Classes[c.Predicted].Label), 40)),
		show.Thousands(int64(c.Count)), show.Thousands(int64(of.Support)), 100*float64(c.Count)/float64(max(of.Support, 1)))
}
