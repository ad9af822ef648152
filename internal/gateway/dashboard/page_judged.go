package dashboard

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// judged is a version with its judgement, compared with another version.
type judged struct {
	Version   api.ModelVersion
	Model     fold.Model
	Against   int  // version to compare with; 0 for none
	Same      bool // whether both were measured on the same examples by the same run
	Lead      *tidemill.Estimate
	Compared  []comparedMetric
	Confusion *confusion // nil if the run has written no predictions
	Numbers   []int      // versions to choose from, newest first
}

func loadJudged(v *visit) (*judged, error) {
	whole, err := askModel(v, chosen(v))
	if err != nil {
		return nil, err
	}
	j := judged{Version: whole.All[0], Model: whole.Model}
	for _, held := range slices.Backward(whole.Versions) {
		j.Numbers = append(j.Numbers, held.Number)
	}
	j.Numbers = j.Numbers[:min(len(j.Numbers), mostVersions)]
	other, err := j.findOther(v)
	if err != nil {
		return nil, err
	}
	j.compare(other)
	return &j, nil
}

func showJudged(v *visit, j *judged) Node {
	version := strconv.Itoa(j.Version.Number)
	title := "Version " + version
	if j.Against != 0 {
		title += " against version " + strconv.Itoa(j.Against)
	}
	return list(h.H2(say(title)), j.form(v),
		h.P(badge(j.Version.State), say(" made by run "), runLink(j.Version.Run), say(". "), anchor(whyURL("model/"+j.Model.Name+"@"+version), say("Why does it exist?"))),
		showJudgement(j.Version.Judgement), j.trialEnd(), showTrial(j.Version.Measured), j.lead(), j.metrics(), j.sameExamples(), j.confusion())
}

// form chooses the versions to compare.
func (j *judged) form(v *visit) Node {
	choices := func(label, name string, chosen int) Node {
		return h.Label(say(label+" "), h.Select(h.Name(name), each(j.Numbers, func(n *int) Node {
			return h.Option(when(*n == chosen, h.Selected()), say(strconv.Itoa(*n)))
		})))
	}
	return filter("/ui/model", hidden("name", v.Q("name")), choices("Version", "version", j.Version.Number), choices("against", "against", j.Against), submitButton("Compare"))
}

func showJudgement(j *tidemill.Judgement) Node {
	if j == nil {
		return nothing(say("It has not been judged yet."))
	}
	result := func(passed bool, otherwise string) Node {
		if passed {
			return badge("passed")
		}
		return badge(otherwise)
	}
	parts := h.P(result(j.Passed, "refused"), say(" "+titled(j.Sentence)), when(j.Lacks, say(" Something has to be installed before it can be promoted.")))
	if len(j.Clauses) == 0 {
		return list(parts, note(say("The recipe has no gate.")))
	}
	return list(parts, scroll("", heads("Clause of the gate", "Result", "Values", "Note"), rows(each(j.Clauses, func(c *tidemill.Clause) Node {
		return h.Tr(rowName(h.Code(say(titled(c.Text)))), cell(result(c.Passed, "failed")), cell(each(sortedMetrics(c.Values, nil), func(m *metric) Node {
			return h.Div(g.El("bdi", h.Class("none"), say(word(m.Name))), say(" "+number(m.Value)))
		})), cell(say(titled(c.Note))))
	}))))
}

// trialEnd says how the trial of the version ended.
func (j *judged) trialEnd() Node {
	if j.Version.Judgement == nil || j.Version.Judgement.Trial == nil {
		return nil
	}
	end := j.Version.Judgement.Trial
	return h.P(say("Its trial on the stream: "), badge(end.Outcome), when(end.Labelled > 0, say(", lead "+signedPoints(end.Lead.Value)+" points ("+signedPoints(end.Lead.Low)+" to "+signedPoints(end.Lead.High)+") on "+count(end.Labelled)+" labelled events")),
		say(". "), anchor(trialURL(j.Model.Name, j.Version.Number), say("Its evidence")))
}

// showTrial says whether scorers can serve a version, and what its measurement left out.
func showTrial(r *tidemill.Report) Node {
	if r == nil {
		return nil
	}
	var all g.Group
	if t := r.Trial; t != nil {
		all = append(all, when(t.Error != "", h.Div(h.Class("problem"), h.P(h.Strong(say("No scorer can serve it."))), h.P(say(titled(t.Error))))),
			when(t.Missing != "", h.P(badge("waiting"), say(" To serve it, this is missing: "+titled(t.Missing)))),
			when(t.Warning != "", h.P(badge("waiting"), say(" "+titled(t.Warning)))))
	}
	if n := len(r.Notes); n > 0 {
		all = append(all, details(strconv.Itoa(n)+" "+one(n, "note", "notes")+" of the measurement", h.Ul(each(r.Notes, func(text *string) Node { return h.Li(say(titled(*text))) }))))
	}
	return all
}

func (j *judged) lead() Node {
	if j.Lead == nil {
		return nil
	}
	return h.P(say("Lead in accuracy: "), h.Strong(say(signed(j.Lead.Value))), say(", and with 95 % confidence between "+signed(j.Lead.Low)+" and "+signed(j.Lead.High)+"."))
}

// heads are the titles of the columns with both versions and their difference.
func (j *judged) heads(both bool, titles ...string) Node {
	titles = append(titles, "#Version "+strconv.Itoa(j.Version.Number))
	if both {
		titles = append(titles, "#Version "+strconv.Itoa(j.Against), "#Difference")
	}
	return heads(titles...)
}

func (j *judged) metrics() Node {
	if len(j.Compared) == 0 {
		return nil
	}
	value := func(of *float64, b bounds) Node {
		shown := dash()
		if of != nil {
			shown = say(number(*of))
		}
		return figure(shown, when(b.known(), say(" "), quiet(say(number(b.Low)+" to "+number(b.High)))))
	}
	return scroll("narrow", j.heads(j.Against != 0, "Metric"), rows(each(j.Compared, func(c *comparedMetric) Node {
		return row(titled(c.Name), rowName(text(c.Name)), value(c.Own, c.Bounds), when(j.Against != 0, value(c.Theirs, c.TheirBounds), figure(say(c.difference()))))
	})))
}

func (j *judged) sameExamples() Node {
	switch {
	case j.Against == 0:
		return nil
	case j.Same:
		return note(say(fmt.Sprintf("The run of version %d measured both on the same examples.", j.Version.Number)))
	}
	return note(say("Each was measured by its own run, perhaps on other examples."))
}

func (j *judged) confusion() Node {
	c := j.Confusion
	if c == nil {
		return note(say("Its run has written no predictions.csv, so there is no confusion matrix."))
	}
	about := "Rows: true class. Columns: predicted class."
	if c.Limited {
		about += fmt.Sprintf(" The matrices show the %d classes of %d with the most wrong examples.", len(c.Own.Labels), c.Classes)
	}
	if c.Difference != nil && c.Points {
		about += " The versions were measured on other examples, so the difference is in percentage points of each class."
	}
	return list(h.H3(say("Confusion")), note(say(about)),
		h.Div(h.Class("matrices"), c.Own.node(fmt.Sprintf("Version %d", j.Version.Number), true), c.Theirs.node(fmt.Sprintf("Version %d", j.Against), true), c.Difference.node("Difference", false)),
		when(len(c.Pairs) > 0, h.H3(say("Most confused")), scroll("narrow", j.heads(c.Theirs != nil, "True class", "Predicted class"), rows(each(c.Pairs, func(p *confusedPair) Node {
			return h.Tr(rowName(classText(p.Truth)), cell(classText(p.Predicted)), figure(say(count(p.Own))), when(c.Theirs != nil, figure(say(count(p.Theirs))), figure(say(p.difference()))))
		})))))
}

// findOther returns the report of the version to compare with: the requested one, or else the champion or
// the one before. The run of a version measures its champion on the same data, so those figures come first.
func (j *judged) findOther(v *visit) (*tidemill.Report, error) {
	which := v.query("against")
	switch {
	case which != "":
		j.Against = j.Model.Which(which)
		if j.Against == 0 {
			j.Against, _ = strconv.Atoi(which) // a dropped version, which the API reports
		}
	case j.Model.Champion != 0 && j.Model.Champion != j.Version.Number:
		j.Against = j.Model.Champion
	case j.Model.Previous != 0 && j.Model.Previous != j.Version.Number && j.Model.Find(j.Model.Previous) != nil:
		j.Against = j.Model.Previous
	}
	if j.Against == 0 || j.Against == j.Version.Number {
		j.Against = 0
		return nil, nil
	}
	if b := j.Version.Measured.Champion; b != nil && b.Version == j.Against {
		j.Same, j.Lead = true, b.Lead
		return &tidemill.Report{Metrics: b.Metrics, Measured: b.Measured}, nil
	}
	whole, err := askModel(v, strconv.Itoa(j.Against))
	if err != nil {
		return nil, err
	}
	return whole.All[0].Measured, nil
}

func (j *judged) compare(other *tidemill.Report) {
	own := j.Version.Measured
	j.Compared = comparedMetrics(own, other)
	var theirs *tidemill.Figures
	if other != nil {
		theirs = other.Measured
	}
	if own.Measured != nil {
		j.Confusion = confusionOf(own.Measured, theirs)
	}
}

// comparedMetric is a metric of two versions.
type comparedMetric struct {
	Name        string
	Own, Theirs *float64
	Bounds      bounds
	TheirBounds bounds
}

// difference returns the difference with its sign; empty if one of the values is not known.
func (c *comparedMetric) difference() string {
	if c.Own == nil || c.Theirs == nil {
		return ""
	}
	return signed(*c.Own - *c.Theirs)
}

// signed writes a difference with its sign; 0 has none.
func signed(f float64) string {
	const tenThousand = 1e4 // more digits than of the metrics themselves say nothing
	if math.Abs(f) < 1 {
		f = math.Round(f*tenThousand) / tenThousand
	}
	if f == 0 {
		return number(0)
	}
	return withSign(f, number(math.Abs(f)))
}

func comparedMetrics(own, theirs *tidemill.Report) (all []comparedMetric) {
	values := own.Metrics
	if theirs != nil {
		values = map[string]float64{}
		for _, r := range []*tidemill.Report{own, theirs} {
			for name := range r.Metrics {
				values[name] = 0
			}
		}
	}
	for _, m := range sortedMetrics(values, []string{metricAccuracy, metricMacroF1}) {
		c := comparedMetric{Name: m.Name, Bounds: intervalOf(own, m.Name), TheirBounds: intervalOf(theirs, m.Name)}
		if value, ok := own.Metrics[m.Name]; ok {
			c.Own = &value
		}
		if theirs != nil {
			if value, ok := theirs.Metrics[m.Name]; ok {
				c.Theirs = &value
			}
		}
		all = append(all, c)
	}
	return all[:min(len(all), mostVersions)]
}

// liveShown has the live figures of a model's versions.
type liveShown struct {
	All    []api.LiveFigures
	Model  string
	Chosen *api.LiveFigures // figures of the version that the page is about; nil if it has none
	Graph  graph            // accuracy of that version by day
}

func loadLive(v *visit) (*liveShown, error) {
	whole, err := askModel(v, "")
	if err != nil {
		return nil, err
	}
	l := liveShown{All: whole.Live, Model: whole.Name}
	chosen := whole.Which(chosen(v))
	for i := range l.All {
		if l.All[i].Version == chosen {
			l.Chosen = &l.All[i]
			l.Graph = liveGraph(l.Chosen)
			break
		}
	}
	return &l, nil
}

// liveGraph draws the accuracy of each day, and the accuracy that the gate judged.
func liveGraph(f *api.LiveFigures) graph {
	own, gate := curve{Name: "live accuracy"}, curve{Name: "the gate's accuracy"}
	for _, d := range f.Days {
		at, err := time.Parse(time.DateOnly, d.Day)
		if err != nil || d.Answers == 0 {
			continue
		}
		x := float64(at.Unix())
		own.Points = append(own.Points, point{x, float64(d.Right) / float64(d.Answers)})
		if f.Gate != nil {
			gate.Points = append(gate.Points, point{x, *f.Gate})
		}
	}
	return graph{Title: "Live accuracy by day", Sentence: "of version " + strconv.Itoa(f.Version) + " in scorer " + word(f.Scorer) + ", in UTC", Times: true, Curves: []curve{own, gate}}
}

func showLive(v *visit, l *liveShown) Node {
	if len(l.All) == 0 {
		return nil
	}
	parts := list(h.H2(say("Live")), liveTable(v, l.Model, l.All))
	f := l.Chosen
	if f == nil {
		return parts
	}
	matrices := confusionOf(&tidemill.Figures{Examples: f.Answers, Classes: f.Classes, Cells: f.Cells}, nil)
	if len(f.Days) > 1 {
		parts = list(parts, lineChart(l.Graph))
	}
	return list(parts, h.Div(h.Class("side even"), matrices.Own.node("Answers of version "+strconv.Itoa(f.Version)+" (rows: true, columns: answered)", true), calibration(f)))
}

// liveTable lists figures, each beside the accuracy that the gate judged.
func liveTable(v *visit, model string, all []api.LiveFigures) Node {
	return scroll("rows", heads("#Version", "Scorer", "#Answers", "#Live accuracy", "95 %", "#Gate", "Difference", "#Calibration error", "Last answer"), rows(each(all, func(f *api.LiveFigures) Node {
		gate, off := "?", "?"
		if f.Gate != nil {
			gate = number(*f.Gate)
		}
		if f.CalibrationError != nil {
			off = number(*f.CalibrationError)
		}
		return row(strconv.Itoa(f.Version)+" "+f.Scorer, h.Th(h.Scope("row"), h.Class("num"), modelLink(model, f.Version)), cell(scorerLink(f.Scorer)), figure(say(count(f.Answers))),
			figure(say(number(f.Accuracy.Value))), cell(say(number(f.Accuracy.Low)+" to "+number(f.Accuracy.High))), figure(say(gate)), cell(say(titled(f.Sentence))), figure(say(off)), cell(v.ago(f.Last)))
	})))
}

// calibration compares the scores with the shares of right answers.
func calibration(f *api.LiveFigures) Node {
	if len(f.Bins) == 0 {
		return nil
	}
	return scroll("narrow", h.Caption(say("Calibration: a score should be the share of right answers")), heads("Score", "#Answers", "#Mean score", "#Right"), rows(each(f.Bins, func(b *api.LiveBin) Node {
		if b.Answers == 0 {
			return nil
		}
		return h.Tr(rowName(say(fmt.Sprintf("%.1f to %.1f", b.From, b.To))), figure(say(count(b.Answers))), figure(say(number(b.Score))), figure(say(percent(float64(b.Right), float64(b.Answers)))))
	})))
}

// keyLive has the live figures of one of a key's models.
type keyLive struct {
	Model string
	Live  []api.LiveFigures
}

func loadKeyLive(v *visit) ([]keyLive, error) {
	models, err := modelsOfKey(v)
	if err != nil {
		return nil, err
	}
	var all []keyLive
	for i := range models {
		whole, err := get[api.ModelWhole](v, "/api/v1/model", map[string][]string{"model": {models[i].Name}})
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		if len(whole.Live) > 0 {
			all = append(all, keyLive{models[i].Name, whole.Live})
		}
	}
	return all, nil
}

func showKeyLive(v *visit, all []keyLive) Node {
	if len(all) == 0 {
		return nil
	}
	return list(h.H2(say("Live")), each(all, func(k *keyLive) Node { return list(h.P(modelLink(k.Model, 0)), liveTable(v, k.Model, k.Live)) }))
}
