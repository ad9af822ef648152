package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
	graphs "tidemill.dev/internal/models/lineage/drawing"
)

func compareCommand() command {
	return command{
		name:    "compare",
		args:    "A B",
		summary: "compare two versions: figures, intervals, each label",
		about: `A and B are versions such as intent/bot-42@7. For B, @7 alone means the model of A. A
difference is clear if the 95% intervals do not overlap.

` + atTheGate,
		examples: []example{
			{"tidemill compare intent/bot-42@champion @newest", "the newest version with the champion"},
			{"tidemill compare intent/bot-42@6 @7", "two versions by number"},
			{"tidemill compare intent/bot-42 intent/bot-43", "the champions of two models"},
		},
		make: func() program { return &compare{output: "text"} },
	}
}

type compare struct {
	gate
	output string
}

func (p *compare) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *compare) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if err := wants(positional, "A", "B"); err != nil {
		return err
	}
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
		model, _, _ := strings.Cut(a, "@")
		b = model + b
	}
	return a, b
}

func (p *compare) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	first, second := pairOf(positional)
	a, b, err := lookAtPair(ctx, g, first, second)
	if err != nil {
		return err
	}
	c := compareVersions(&a.version.Version, &b.version.Version, a.version.Measured, b.version.Measured)
	if p.output == "json" {
		return writeIndented(s.stdout, c)
	}
	return c.show(s.stdout)
}

func lookAtPair(ctx context.Context, g *client.Gateway, first, second string) (a, b lookedAt, err error) {
	if a, err = lookAtVersion(ctx, g, first); err != nil {
		return a, b, err
	}
	if b, err = lookAtVersion(ctx, g, second); err != nil {
		return a, b, err
	}
	if a.version.Model == b.version.Model && a.version.Number == b.version.Number {
		return a, b, usagef("both are %s; name another", tidemill.VersionName(a.version.Model, a.version.Number))
	}
	return a, b, nil
}

// comparison is the comparison of two versions.
type comparison struct {
	A       string       `json:"a"`
	B       string       `json:"b"`
	Figures []figurePair `json:"figures"`
	Labels  []labelPair  `json:"labels,omitempty"` // the largest difference first
	Notes   []string     `json:"notes,omitempty"`
}

// figurePair is one figure of both versions; nil if a version lacks it.
type figurePair struct {
	Name  string             `json:"name"`
	A     *tidemill.Estimate `json:"a"`
	B     *tidemill.Estimate `json:"b"`
	Clear bool               `json:"clear"` // whether the intervals are disjoint
}

// labelPair has the figures of one label in both versions.
type labelPair struct {
	Label     string     `json:"label"`
	Recall    figurePair `json:"recall"`
	Precision figurePair `json:"precision"`
	F1        [2]float64 `json:"f1"`
}

func (c *comparison) show(w io.Writer) error {
	fmt.Fprintf(w, "A  %s\nB  %s\n\n", harmless(c.A), harmless(c.B))
	rows := [][]string{{"FIGURE", "A", "B", "B-A", ""}}
	for i := range c.Figures {
		rows = append(rows, figureRow(&c.Figures[i]))
	}
	if err := columns(w, rows); err != nil {
		return err
	}
	if err := c.showLabels(w); err != nil {
		return err
	}
	if len(c.Notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, note := range c.Notes {
		fmt.Fprintf(w, "note: %s\n", harmless(note))
	}
	return nil
}

func figureRow(f *figurePair) []string {
	return []string{harmless(f.Name), pairText(f.A), pairText(f.B), differenceOf(f), clearText(f)}
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
	case f.A == nil || f.B == nil:
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
		row := []string{orDash(cut(harmless(l.Label), 30))}
		for _, f := range []*figurePair{&l.Recall, &l.Precision} {
			row = append(row, shareText(f.A), shareText(f.B), differenceOf(f), clearText(f))
		}
		rows = append(rows, append(row, signed(l.F1[1]-l.F1[0])))
	}
	fmt.Fprintln(w)
	if err := columns(w, rows); err != nil {
		return err
	}
	if left := len(c.Labels) - shownLabels; left > 0 {
		fmt.Fprintf(w, "… and %s that differ less; -o json has all\n", count(left, "label"))
	}
	return nil
}

func shareText(e *tidemill.Estimate) string {
	if e == nil {
		return "-"
	}
	return figure(e.Value)
}

// compareVersions compares two versions by their reports.
func compareVersions(a, b *tidemill.Version, of, with *tidemill.Report) comparison {
	c := comparison{A: tidemill.VersionName(a.Model, a.Number), B: tidemill.VersionName(b.Model, b.Number), Figures: []figurePair{}}
	of, with = orEmpty(of), orEmpty(with)
	if of.Measured != nil || with.Measured != nil {
		c.Figures = append(c.Figures, pairOfFigures("accuracy", of.Measured, with.Measured, func(f *tidemill.Figures) *tidemill.Estimate { return &f.Accuracy }),
			pairOfFigures("macroF1", of.Measured, with.Measured, func(f *tidemill.Figures) *tidemill.Estimate { return &f.MacroF1 }))
	}
	c.Figures = append(c.Figures, otherMetrics(of, with)...)
	if of.Measured != nil && with.Measured != nil {
		c.Labels = pairLabels(of.Measured, with.Measured)
	}
	c.Notes = notesOn(a, b, of, with)
	return c
}

func orEmpty(r *tidemill.Report) *tidemill.Report {
	if r == nil {
		return &tidemill.Report{}
	}
	return r
}

func pairOfFigures(name string, a, b *tidemill.Figures, pick func(*tidemill.Figures) *tidemill.Estimate) figurePair {
	p := figurePair{Name: name}
	if a != nil {
		p.A = pick(a)
	}
	if b != nil {
		p.B = pick(b)
	}
	p.Clear = isClear(p.A, p.B)
	return p
}

// isClear reports whether the intervals are disjoint. This is strict: a difference may be real even
// if they overlap. It is false if neither figure has an interval.
func isClear(a, b *tidemill.Estimate) bool {
	if a == nil || b == nil || a.Low == a.High && b.Low == b.High {
		return false
	}
	return a.High < b.Low || b.High < a.Low
}

// otherMetrics returns the metrics that have no intervals.
func otherMetrics(a, b *tidemill.Report) (pairs []figurePair) {
	names := map[string]float64{}
	for _, r := range []*tidemill.Report{a, b} {
		for name, v := range r.Metrics {
			if a.Measured == nil && b.Measured == nil || name != "accuracy" && name != "macroF1" {
				names[name] = v
			}
		}
	}
	for _, name := range telling(names) {
		p := figurePair{Name: name}
		if v, has := a.Metrics[name]; has {
			p.A = &tidemill.Estimate{Value: v, Low: v, High: v}
		}
		if v, has := b.Metrics[name]; has {
			p.B = &tidemill.Estimate{Value: v, Low: v, High: v}
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// pairLabels compares the labels of both, those with the largest difference of F1 first.
func pairLabels(a, b *tidemill.Figures) []labelPair {
	was := map[string]*tidemill.Class{}
	for i := range a.Classes {
		was[a.Classes[i].Label] = &a.Classes[i]
	}
	var pairs []labelPair
	for i := range b.Classes {
		pairs = append(pairs, pairOfLabel(was[b.Classes[i].Label], &b.Classes[i]))
		delete(was, b.Classes[i].Label)
	}
	for i := range a.Classes {
		if left := &a.Classes[i]; was[left.Label] != nil {
			pairs = append(pairs, pairOfLabel(left, nil))
		}
	}
	slices.SortStableFunc(pairs, func(x, y labelPair) int { return cmp.Compare(y.apart(), x.apart()) })
	return pairs
}

func (l *labelPair) apart() float64 { return math.Abs(l.F1[1] - l.F1[0]) }

func pairOfLabel(a, b *tidemill.Class) labelPair {
	var l labelPair
	if a != nil {
		l.Label, l.F1[0], l.Recall.A, l.Precision.A = a.Label, a.F1, recallOf(a), precisionOf(a)
	}
	if b != nil {
		l.Label, l.F1[1], l.Recall.B, l.Precision.B = b.Label, b.F1, recallOf(b), precisionOf(b)
	}
	l.Recall.Name, l.Precision.Name = "recall", "precision"
	l.Recall.Clear, l.Precision.Clear = isClear(l.Recall.A, l.Recall.B), isClear(l.Precision.A, l.Precision.B)
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

// notesOn says whether both versions were measured on the same data.
func notesOn(a, b *tidemill.Version, of, with *tidemill.Report) (notes []string) {
	switch bees, aes := with.Champion, of.Champion; {
	case a.Model == b.Model && bees != nil && bees.Version == a.Number:
		notes = append(notes, sameData("B", "A", bees))
	case a.Model == b.Model && aes != nil && aes.Version == b.Number:
		notes = append(notes, sameData("A", "B", aes))
	case learntFrom(a) != learntFrom(b):
		notes = append(notes, "each run measured its own version on the data of that time: A on "+orDash(learntFrom(a))+", B on "+orDash(learntFrom(b)))
	}
	for i, r := range []*tidemill.Report{of, with} {
		if r.Measured == nil {
			notes = append(notes, string("AB"[i])+" has no predictions: its run wrote no predictions.csv that can be evaluated")
		}
	}
	return notes
}

func sameData(run, other string, b *tidemill.Beside) string {
	text := fmt.Sprintf("the run of %s measured %s on the same data as its own version", run, other)
	if l := b.Lead; l != nil {
		text += fmt.Sprintf(": the lead of %s in accuracy is %s (95%%: %s to %s)%s", run, signed(l.Value), signed(l.Low), signed(l.High), leadText(l))
	}
	return text
}

// learntFrom names the data that a version was trained on.
func learntFrom(v *tidemill.Version) string {
	text := ""
	for _, in := range v.Inputs {
		if text != "" {
			text += ", "
		}
		text += in.Dataset + in.URI
		if in.Commit != "" {
			text += "@" + cut(in.Commit, shownID)
		}
	}
	return text
}

func whyCommand() command {
	return command{
		name:    "why",
		args:    "KIND/ID",
		summary: "trace the causes and effects of a model, run, commit or event",
		about: `KIND/ID is one of
  run/ID                  the id, or at least its first six letters
  model/NAME[@VERSION]    a number, champion, previous or newest (default champion)
  commit/DATASET@COMMIT   a branch, or the beginning of a commit's id
  event/ID                or event/SOURCE#ID, in quotes; for the input of a scorer,
                          event/STREAM/PARTITION/OFFSET

It shows data, code, node, cause and effects: at most 200 objects, the nearest ones.
Notes at the end list the parts that are left out.

` + atTheGate,
		examples: []example{
			{"tidemill why model/intent/bot-42", "the champion: its verdict, its run, its data, its cause"},
			{"tidemill why run/3k7mzq", "the cause of a run, and its output"},
			{"tidemill why commit/bots/bot-42@main", "the models made from the newest data"},
			{"tidemill why model/intent/bot-42@7 --graph svg --out why.svg", "a picture, for a browser"},
			{"tidemill why model/intent/bot-42@7 -o json", "for a script"},
		},
		make: func() program { return &whyProgram{output: "text"} },
	}
}

type whyProgram struct {
	gate
	output, graph, out string
}

func (p *whyProgram) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	f.text(&p.graph, "graph", "", "FORMAT", "draw it: dot (for Graphviz) or svg (for a browser)")
	f.text(&p.out, "out", "", "FILE", "write to this file")
	p.gate.flags(f)
}

func (p *whyProgram) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	switch {
	case p.graph != "" && p.graph != "dot" && p.graph != "svg":
		return usagef("--graph %q: give dot or svg", p.graph)
	case p.graph != "" && p.output == "json":
		return usagef("--graph %s is not JSON: leave out -o json or --graph", p.graph)
	}
	return wants(positional, "KIND/ID")
}

func (p *whyProgram) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	graph, err := g.Why(ctx, positional[0])
	if err != nil {
		return err
	}
	if p.out == "" {
		return p.write(s.stdout, &graph)
	}
	return p.save(s.stderr, &graph)
}

// save writes the output to the file of --out.
func (p *whyProgram) save(told io.Writer, graph *api.Graph) error {
	f, err := os.Create(p.out)
	if err != nil {
		return fmt.Errorf("write why: %w", err)
	}
	err = p.write(f, graph)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write why to %s: %w", p.out, err)
	}
	_, err = fmt.Fprintf(told, "Written to %s.\n", p.out)
	return err
}

func (p *whyProgram) write(w io.Writer, graph *api.Graph) error {
	switch {
	case p.output == "json":
		return writeIndented(w, graph)
	case p.graph == "dot":
		return graphs.DOT(w, graph, seconds)
	case p.graph == "svg":
		return graphs.SVG(w, graph, seconds)
	}
	return graphs.Tree(w, graph, seconds)
}

// seconds formats a time to the second, with the date if it is not today.
func seconds(t time.Time) string {
	t = t.Local()
	if now := time.Now(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Format("15:04:05")
}
