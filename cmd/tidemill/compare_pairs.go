package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"tidemill.dev"
)

// compareVersions holds two versions against each other, by what was measured of
// each.
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

// isClear reports whether the intervals do not meet, which is a strict word: a
// difference may be no chance where they do. A figure without an interval says
// nothing of chance.
func isClear(a, b *tidemill.Estimate) bool {
	if a == nil || b == nil || a.Low == a.High && b.Low == b.High {
		return false
	}
	return a.High < b.Low || b.High < a.Low
}

// otherMetrics are those that have no intervals.
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

// pairLabels holds the labels of both against each other, the largest difference
// of F1 first.
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

// recallOf is nil where nothing has the label, and precisionOf where nothing was
// said to: neither is defined then.
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

// notesOn says what is to be known of a comparison: whether both were measured on
// the same data.
func notesOn(a, b *tidemill.Version, of, with *tidemill.Report) (notes []string) {
	switch bees, aes := with.Champion, of.Champion; {
	case a.Model == b.Model && bees != nil && bees.Version == a.Number:
		notes = append(notes, sameData("B", "A", bees))
	case a.Model == b.Model && aes != nil && aes.Version == b.Number:
		notes = append(notes, sameData("A", "B", aes))
	case learntFrom(a) != learntFrom(b):
		notes = append(notes, "each was measured by its own run, on the data of then: A's was "+orDash(learntFrom(a))+", B's "+orDash(learntFrom(b)))
	}
	for i, r := range []*tidemill.Report{of, with} {
		if r.Measured == nil {
			notes = append(notes, "of "+string("AB"[i])+" there are no predictions: its run has written no predictions.csv that could be counted")
		}
	}
	return notes
}

func sameData(run, other string, b *tidemill.Beside) string {
	text := fmt.Sprintf("the run of %s has measured %s on the same data as its own", run, other)
	if l := b.Lead; l != nil {
		text += fmt.Sprintf(": the lead of %s in accuracy is %s (95%%: %s to %s)%s", run, signed(l.Value), signed(l.Low), signed(l.High), leadText(l))
	}
	return text
}

// learntFrom names the data that a version came from.
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
