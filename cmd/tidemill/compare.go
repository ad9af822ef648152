package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/remote"
)

func compareCommand() command {
	return command{
		name:    "compare",
		args:    "A B",
		summary: "hold two versions against each other: figures, intervals, each label",
		about: `Both are named like intent/bot-42@7; of B the @ and what stands behind it will do. A
difference is called clear where the 95% intervals do not meet.

` + atTheGate,
		examples: []example{
			{"tidemill compare intent/bot-42@champion @newest", "the newest with what serves"},
			{"tidemill compare intent/bot-42@6 @7", "two by their numbers"},
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

// pairOf are the two names in full: the second may leave the model out.
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

func lookAtPair(ctx context.Context, g *remote.Gateway, first, second string) (a, b lookedAt, err error) {
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

// comparison is two versions held against each other.
type comparison struct {
	A       string       `json:"a"`
	B       string       `json:"b"`
	Figures []figurePair `json:"figures"`
	Labels  []labelPair  `json:"labels,omitempty"` // the largest difference first
	Notes   []string     `json:"notes,omitempty"`
}

// figurePair is one figure of both. One that a version lacks is nil.
type figurePair struct {
	Name  string             `json:"name"`
	A     *tidemill.Estimate `json:"a"`
	B     *tidemill.Estimate `json:"b"`
	Clear bool               `json:"clear"` // the intervals do not meet
}

// labelPair is one label of both.
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

// plainSigned is a difference of figures of any size.
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
