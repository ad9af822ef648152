package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/models/evaluate"
)

func compareCommand() command.Command {
	return command.Command{
		Name:    "models compare",
		Daily:   true,
		Short:   "compare",
		Args:    "A B",
		Summary: "compare two versions: figures, intervals, each label",
		About: `A and B are versions such as intent/bot-42@7. For B, @7 alone means the model of A. A
difference is clear if the 95% intervals do not overlap.

Figures of the same data come first: one run measured both versions, or both runs had the
same commits and counted the same examples. The other figures follow. They are not
comparable, so no difference is shown.`,
		Examples: []command.Example{
			{"tidemill compare intent/bot-42@champion @newest", "the newest version with the champion"},
			{"tidemill compare intent/bot-42@6 @7", "two versions by number"},
			{"tidemill compare intent/bot-42 intent/bot-43", "the champions of two models"},
		},
		Make: func() command.Program {
			return asking(comparePair, func(s *command.Session, c *comparison) error { return c.show(s.Stdout) }).with(nil, acceptPair)
		},
	}
}

func acceptPair(positional []string) error {
	a, b := pairOf(positional)
	for _, name := range []string{a, b} {
		if _, _, err := versionArg(name); err != nil {
			return err
		}
	}
	return nil
}

// pairOf returns the full names of both versions. The second may omit the model.
func pairOf(positional []string) (a, b string) {
	a, b = positional[0], positional[1]
	if strings.HasPrefix(b, "@") {
		if model, _, err := tidemill.CutVersionName(a); err == nil {
			b = model + b
		}
	}
	return a, b
}

func comparePair(ctx context.Context, g *client.Gateway, positional []string) (comparison, error) {
	first, second := pairOf(positional)
	a, b, err := lookAtPair(ctx, g, first, second)
	if err != nil {
		return comparison{}, err
	}
	return compareVersions(&a.version.Version, &b.version.Version, a.version.Measured, b.version.Measured), nil
}

func lookAtPair(ctx context.Context, g *client.Gateway, first, second string) (a, b lookedAt, err error) {
	if a, err = lookAtVersion(ctx, g, first); err != nil {
		return a, b, err
	}
	if b, err = lookAtVersion(ctx, g, second); err != nil {
		return a, b, err
	}
	if a.version.Model == b.version.Model && a.version.Number == b.version.Number {
		return a, b, command.Usagef("both are %s; name another", tidemill.VersionName(a.version.Model, a.version.Number))
	}
	return a, b, nil
}

// comparison is the comparison of two versions.
type comparison struct {
	A         string       `json:"a"`
	B         string       `json:"b"`
	SameData  string       `json:"sameData,omitempty"`  // reason why figures of both are of the same data; empty if none are
	OtherData string       `json:"otherData,omitempty"` // reason why the other figures are not comparable; empty if all are
	Figures   []figurePair `json:"figures"`             // those of the same data first
	Labels    []labelPair  `json:"labels,omitempty"`    // the largest difference first
	Notes     []string     `json:"notes,omitempty"`
}

// figurePair is one figure of both versions; nil if a version lacks it.
type figurePair struct {
	Name  string             `json:"name"`
	A     *tidemill.Estimate `json:"a"`
	B     *tidemill.Estimate `json:"b"`
	Same  bool               `json:"sameData"` // whether both were measured on the same data
	Clear bool               `json:"clear"`    // whether they are, and the intervals are disjoint
}

// labelPair has the figures of one label in both versions.
type labelPair struct {
	Label     string     `json:"label"`
	Recall    figurePair `json:"recall"`
	Precision figurePair `json:"precision"`
	F1        [2]float64 `json:"f1"`
}

func (c *comparison) show(w io.Writer) error {
	fmt.Fprintf(w, "A  %s\nB  %s\n", show.Harmless(c.A), show.Harmless(c.B))
	same := slices.IndexFunc(c.Figures, func(f figurePair) bool { return !f.Same })
	if same < 0 {
		same = len(c.Figures)
	}
	if err := showFigures(w, "On the same data, because "+c.SameData+":", c.Figures[:same]); err != nil {
		return err
	}
	if err := showFigures(w, "Not comparable, because "+c.OtherData+":", c.Figures[same:]); err != nil {
		return err
	}
	if err := c.showLabels(w); err != nil {
		return err
	}
	if len(c.Notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, note := range c.Notes {
		fmt.Fprintf(w, "note: %s\n", show.Harmless(note))
	}
	return nil
}

// showFigures prints figures below a title.
func showFigures(w io.Writer, title string, figures []figurePair) error {
	if len(figures) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s\n", show.Harmless(title))
	rows := [][]string{{"FIGURE", "A", "B", "B-A", ""}}
	for i := range figures {
		rows = append(rows, figureRow(&figures[i]))
	}
	return show.Columns(w, rows)
}

func figureRow(f *figurePair) []string {
	return []string{show.Harmless(f.Name), pairText(f.A), pairText(f.B), differenceOf(f), clearText(f)}
}

func pairText(e *tidemill.Estimate) string {
	switch {
	case e == nil:
		return "-"
	case e.Low == e.High:
		return number(e.Value)
	}
	return fmt.Sprintf("%s (%s to %s)", figure(e.Value), figure(e.Low), figure(e.High))
}

func differenceOf(f *figurePair) string {
	switch {
	case f.A == nil || f.B == nil || !f.Same:
		return "-"
	case f.A.Low == f.A.High && f.B.Low == f.B.High:
		return plainSigned(f.B.Value - f.A.Value)
	}
	return signed(f.B.Value - f.A.Value)
}

// plainSigned formats a difference of figures of any size.
func plainSigned(v float64) string {
	if v > 0 {
		return "+" + number(v)
	}
	return number(v)
}

func clearText(f *figurePair) string {
	if f.Clear {
		return "clear"
	}
	return ""
}

const shownLabels = 20

func (c *comparison) showLabels(w io.Writer) error {
	if len(c.Labels) == 0 {
		return nil
	}
	rows := [][]string{{"LABEL", "RECALL A", "B", "B-A", "", "PRECISION A", "B", "B-A", "", "F1 B-A"}}
	for i := range c.Labels[:min(len(c.Labels), shownLabels)] {
		l := &c.Labels[i]
		row := []string{orDash(show.Cut(show.Harmless(l.Label), 30))}
		for _, f := range []*figurePair{&l.Recall, &l.Precision} {
			row = append(row, shareText(f.A), shareText(f.B), differenceOf(f), clearText(f))
		}
		rows = append(rows, append(row, l.f1Text()))
	}
	fmt.Fprintln(w)
	if !c.Labels[0].Recall.Same {
		fmt.Fprintln(w, "Not comparable, for the same reason:")
	}
	if err := show.Columns(w, rows); err != nil {
		return err
	}
	if left := len(c.Labels) - shownLabels; left > 0 {
		fmt.Fprintf(w, "… and %s that differ less; -o json has all\n", show.Count(left, "label"))
	}
	return nil
}

// f1Text formats the difference of F1.
func (l *labelPair) f1Text() string {
	if !l.Recall.Same {
		return "-"
	}
	return signed(l.F1[1] - l.F1[0])
}

func shareText(e *tidemill.Estimate) string {
	if e == nil {
		return "-"
	}
	return figure(e.Value)
}

// compareVersions compares two versions by their reports. If the run of one version measured the
// other on the same data, those figures count first.
func compareVersions(a, b *tidemill.Version, of, with *tidemill.Report) comparison {
	c := comparison{A: tidemill.VersionName(a.Model, a.Number), B: tidemill.VersionName(b.Model, b.Number), Figures: []figurePair{}}
	of, with = orEmpty(of), orEmpty(with)
	if c.OtherData = differentData(a, b, of, with); c.OtherData == "" {
		c.SameData = "both runs had " + learntFrom(a)
	}
	whole := c.OtherData == ""
	ofSame, withSame := of, with
	switch bees, aes := with.Champion, of.Champion; {
	case a.Model == b.Model && bees != nil && bees.Version == a.Number:
		c.SameData, ofSame = "the run of B measured A too", reportOf(bees)
		c.Notes = leadNotes("B", bees.Lead)
	case a.Model == b.Model && aes != nil && aes.Version == b.Number:
		c.SameData, withSame = "the run of A measured B too", reportOf(aes)
		c.Notes = leadNotes("A", aes.Lead)
	}
	if c.SameData != "" {
		c.Figures = slices.DeleteFunc(pairFigures(ofSame, withSame, true), func(f figurePair) bool { return f.A == nil || f.B == nil })
	}
	c.addFigures(pairFigures(of, with, whole))
	switch {
	case c.SameData != "" && ofSame.Measured != nil && withSame.Measured != nil:
		c.Labels = pairLabels(ofSame.Measured, withSame.Measured, true)
	case of.Measured != nil && with.Measured != nil:
		c.Labels = pairLabels(of.Measured, with.Measured, whole)
	}
	if slices.IndexFunc(c.Figures, func(f figurePair) bool { return !f.Same }) < 0 {
		c.OtherData = ""
	}
	c.Notes = append(c.Notes, notesOn(of, with)...)
	return c
}

// addFigures adds the figures that the comparison does not have yet.
func (c *comparison) addFigures(more []figurePair) {
	for _, f := range more {
		if !slices.ContainsFunc(c.Figures, func(has figurePair) bool { return has.Name == f.Name }) {
			c.Figures = append(c.Figures, f)
		}
	}
}

// reportOf returns the measurements of a champion as a report.
func reportOf(b *tidemill.Beside) *tidemill.Report {
	return &tidemill.Report{Metrics: b.Metrics, Measured: b.Measured}
}

// pairFigures pairs the figures of two reports by their names.
func pairFigures(of, with *tidemill.Report, same bool) (pairs []figurePair) {
	names := map[string]float64{}
	for _, r := range []*tidemill.Report{of, with} {
		maps.Copy(names, r.Metrics)
		if r.Measured != nil {
			names[evaluate.MetricAccuracy], names[evaluate.MetricMacroF1] = 0, 0
		}
	}
	for _, name := range telling(names) {
		p := figurePair{Name: name, A: estimateOf(of, name), B: estimateOf(with, name), Same: same}
		p.Clear = same && isClear(p.A, p.B)
		pairs = append(pairs, p)
	}
	return pairs
}

// estimateOf returns a figure of a report; nil if the report lacks it. A metric of the trainer has no
// interval.
func estimateOf(r *tidemill.Report, name string) *tidemill.Estimate {
	switch v, has := r.Metrics[name]; {
	case r.Measured != nil && name == evaluate.MetricAccuracy:
		return &r.Measured.Accuracy
	case r.Measured != nil && name == evaluate.MetricMacroF1:
		return &r.Measured.MacroF1
	case has:
		return &tidemill.Estimate{Value: v, Low: v, High: v}
	}
	return nil
}

func orEmpty(r *tidemill.Report) *tidemill.Report {
	if r == nil {
		return &tidemill.Report{}
	}
	return r
}

// isClear reports whether the intervals are disjoint. This is strict: a difference may be real even
// if they overlap. It is false if neither figure has an interval.
func isClear(a, b *tidemill.Estimate) bool {
	if a == nil || b == nil || a.Low == a.High && b.Low == b.High {
		return false
	}
	return a.High < b.Low || b.High < a.Low
}

// pairLabels compares the labels of both, those with the largest difference of F1 first.
func pairLabels(a, b *tidemill.Figures, same bool) []labelPair {
	was := map[string]*tidemill.Class{}
	for i := range a.Classes {
		was[a.Classes[i].Label] = &a.Classes[i]
	}
	var pairs []labelPair
	for i := range b.Classes {
		pairs = append(pairs, pairOfLabel(was[b.Classes[i].Label], &b.Classes[i], same))
		delete(was, b.Classes[i].Label)
	}
	for i := range a.Classes {
		if left := &a.Classes[i]; was[left.Label] != nil {
			pairs = append(pairs, pairOfLabel(left, nil, same))
		}
	}
	slices.SortStableFunc(pairs, func(x, y labelPair) int { return cmp.Compare(y.apart(), x.apart()) })
	return pairs
}

func (l *labelPair) apart() float64 { return math.Abs(l.F1[1] - l.F1[0]) }

func pairOfLabel(a, b *tidemill.Class, same bool) labelPair {
	var l labelPair
	if a != nil {
		l.Label, l.F1[0], l.Recall.A, l.Precision.A = a.Label, a.F1, recallOf(a), precisionOf(a)
	}
	if b != nil {
		l.Label, l.F1[1], l.Recall.B, l.Precision.B = b.Label, b.F1, recallOf(b), precisionOf(b)
	}
	l.Recall.Name, l.Precision.Name = "recall", "precision"
	for _, p := range []*figurePair{&l.Recall, &l.Precision} {
		p.Same, p.Clear = same, same && isClear(p.A, p.B)
	}
	return l
}

// recallOf returns nil if no example has the label, because recall is not defined then. precisionOf
// returns nil if no example was predicted to have it.
func recallOf(c *tidemill.Class) *tidemill.Estimate {
	if c.Support == 0 {
		return nil
	}
	return &c.Recall
}

func precisionOf(c *tidemill.Class) *tidemill.Estimate {
	if c.Predicted == 0 {
		return nil
	}
	return &c.Precision
}

// notesOn says which version has no predictions.
func notesOn(of, with *tidemill.Report) (notes []string) {
	for i, r := range []*tidemill.Report{of, with} {
		if r.Measured == nil {
			notes = append(notes, string("AB"[i])+" has no predictions: its run wrote no predictions.csv that can be evaluated")
		}
	}
	return notes
}

// differentData says why the figures that each run measured of its own version are not of the same
// data; empty if they are.
func differentData(a, b *tidemill.Version, of, with *tidemill.Report) string {
	switch {
	case len(a.Inputs) == 0 || len(b.Inputs) == 0:
		return "the data of a run without inputs is not known"
	case !sameInputs(a.Inputs, b.Inputs):
		return "each run measured its own version on its own data, A on " + learntFrom(a) + ", B on " + learntFrom(b)
	case of.Measured != nil && with.Measured != nil && !sameExamples(of.Measured, with.Measured):
		return fmt.Sprintf("the runs counted different examples of %s, A %s and B %s", learntFrom(a), show.Thousands(int64(of.Measured.Examples)), show.Thousands(int64(with.Measured.Examples)))
	}
	return ""
}

// sameInputs reports whether both runs had the same commits of the same datasets. The bytes of a
// URI may change, so a URI is never the same.
func sameInputs(a, b []tidemill.Input) bool {
	commits := func(all []tidemill.Input) (names []string) {
		for _, in := range all {
			names = append(names, in.Dataset+"@"+in.Commit)
		}
		return slices.Sorted(slices.Values(names))
	}
	uri := func(in tidemill.Input) bool { return in.Dataset == "" || in.Commit == "" }
	return !slices.ContainsFunc(a, uri) && slices.Equal(commits(a), commits(b))
}

// sameExamples reports whether both figures count as many examples of each label. If not, their
// examples cannot be the same.
func sameExamples(a, b *tidemill.Figures) bool {
	of := map[string]int{}
	for _, c := range a.Classes {
		of[c.Label] += c.Support
	}
	for _, c := range b.Classes {
		of[c.Label] -= c.Support
	}
	return a.Examples == b.Examples && !slices.ContainsFunc(slices.Collect(maps.Values(of)), func(n int) bool { return n != 0 })
}

// leadNotes says by how much a version is better than the other one, row by row.
func leadNotes(run string, lead *tidemill.Estimate) []string {
	if lead == nil {
		return nil
	}
	return []string{fmt.Sprintf("row by row, the lead of %s in accuracy is %s (95%%: %s to %s)%s", run, signed(lead.Value), signed(lead.Low), signed(lead.High), leadText(lead))}
}

// learntFrom names the data that a version was trained on.
func learntFrom(v *tidemill.Version) string {
	var all []string
	for _, in := range v.Inputs {
		text := in.Dataset + in.URI
		if in.Outcomes != "" {
			text = show.Count(in.Rows, "outcome") + " of " + in.Outcomes
		}
		if in.Commit != "" {
			text += "@" + show.Cut(in.Commit, show.ShownID)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
