package gate

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
)

const (
	enough = "metrics.accuracy >= 0.85"
	better = "metrics.accuracy >= champion.metrics.accuracy - 0.01"
)

// The sentence is the text that people read about a version, sometimes at night and in a hurry.
func TestSentences(t *testing.T) {
	t.Parallel()
	with := func(change ...func(*Facts)) Facts {
		f := facts()
		for _, c := range change {
			c(&f)
		}
		return f
	}
	accuracy := func(value float64) func(*Facts) { return func(f *Facts) { f.Report.Metrics["accuracy"] = value } }
	first := func(f *Facts) { f.Champion, f.Given, f.Report.Champion, f.Recorded = 0, 0, nil, nil }
	unmeasured := func(f *Facts) { f.Report.Champion = nil }
	onRecorded := func(f *Facts) { f.On = tidemill.GateOnRecorded }
	moved := func(f *Facts) { f.Champion = 8 }
	claimed := func(f *Facts) { f.Report.Champion.Measured = nil }
	for _, c := range []struct {
		name    string
		facts   Facts
		clauses []string
		want    string
	}{
		{"no gate", facts(), nil,
			"version 7 of intent/bot-42 passes: its recipe has no gate"},
		{"cannot be served", with(accuracy(0.95), func(f *Facts) { f.Report.Trial = &tidemill.ServingCheck{Scorer: "intents", Error: "it is cut off"} }), nil,
			"version 7 of intent/bot-42 is refused: scorer intents cannot serve it: it is cut off"},
		{"cannot be served, and no scorer serves it", with(func(f *Facts) { f.Report.Trial = &tidemill.ServingCheck{Error: "it is cut off"} }), []string{enough},
			"version 7 of intent/bot-42 is refused: Tidemill cannot serve it: it is cut off"},
		{"passed", facts(), []string{enough, better},
			"version 7 of intent/bot-42 passes: accuracy 0.912 (champion @6: 0.905, measured on the same 400 examples)"},
		{"passed by claims", with(claimed), []string{better},
			"version 7 of intent/bot-42 passes: accuracy 0.912 (champion @6: 0.905, measured on the same data)"},
		{"passed without a look at the champion", facts(), []string{enough, "run.seconds < 60"},
			"version 7 of intent/bot-42 passes: accuracy 0.912, run.seconds 12.5"},
		{"passed by a lead", facts(), []string{"champion.lead.low > -0.02"},
			"version 7 of intent/bot-42 passes: champion.lead.low -0.01; champion @6 is measured on the same 400 examples"},
		{"several figures", facts(), []string{better, "metrics.macroF1 > champion.metrics.macroF1", "metrics.loss < 1", "run.files < 9", "run.bytes < 9000"},
			"version 7 of intent/bot-42 passes: accuracy 0.912 (champion @6: 0.905, measured on the same 400 examples), macroF1 0.9 (champion @6: 0.88), loss 0, and 2 more figures"},
		{"no figures", facts(), []string{"confusion.classes.all(c, confusion.classes[c].recall > 0.6)"},
			"version 7 of intent/bot-42 passes: its gate's only clause holds"},
		{"no figures, two", facts(), []string{"has(metrics.accuracy)", "true"},
			"version 7 of intent/bot-42 passes: all 2 clauses of its gate hold"},
		{"the first version", with(first), []string{enough, better},
			"version 7 of intent/bot-42 passes: accuracy 0.912; there is no champion yet to compare it with"},
		{"the first version, only the champion named", with(first), []string{"champion.lead.value > 0"},
			"version 7 of intent/bot-42 passes: its gate's only clause holds; there is no champion yet to compare it with"},
		{"passed by recorded figures", with(unmeasured, onRecorded, accuracy(0.96)), []string{enough, better},
			"version 7 of intent/bot-42 passes: accuracy 0.96 (champion @6: 0.95, as it was registered, perhaps on other data)"},
		{"recorded allowed, and not needed", with(onRecorded), []string{better},
			"version 7 of intent/bot-42 passes: accuracy 0.912 (champion @6: 0.905, measured on the same 400 examples)"},

		{"failed", with(accuracy(0.79)), []string{enough},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= 0.85, but it is 0.79"},
		{"failed by a hair", with(accuracy(0.8499996)), []string{enough},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= 0.85, but it is 0.8499996"},
		{"failed against the champion", with(accuracy(0.88)), []string{enough, better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but metrics.accuracy is 0.88 and champion.metrics.accuracy is 0.905 (@6, measured on the same 400 examples)"},
		{"failed by recorded figures", with(unmeasured, onRecorded), []string{better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but metrics.accuracy is 0.912 and champion.metrics.accuracy is 0.95 (@6, as it was registered, perhaps on other data)"},
		{"several failed", with(accuracy(0.5)), []string{enough, "run.seconds < 10", "true", better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= 0.85, but it is 0.5; run.seconds < 10, but it is 12.5; metrics.accuracy >= champion.metrics.accuracy - 0.01, but metrics.accuracy is 0.5 and champion.metrics.accuracy is 0.905 (@6, measured on the same 400 examples)"},
		{"four failed", facts(), []string{"run.seconds < 1", "run.seconds < 2", "run.seconds < 3", "run.seconds < 4"},
			"version 7 of intent/bot-42 is refused: its gate asks for run.seconds < 1, but it is 12.5; run.seconds < 2, but it is 12.5; run.seconds < 3, but it is 12.5; and 1 more clause fails"},
		{"five failed", facts(), []string{"run.seconds < 1", "run.seconds < 2", "run.seconds < 3", "run.seconds < 4", "run.seconds < 5"},
			"version 7 of intent/bot-42 is refused: its gate asks for run.seconds < 1, but it is 12.5; run.seconds < 2, but it is 12.5; run.seconds < 3, but it is 12.5; and 2 more clauses fail"},
		{"failed without figures", facts(), []string{"confusion.classes.all(c, confusion.classes[c].recall > 0.8)"},
			"version 7 of intent/bot-42 is refused: its gate asks for confusion.classes.all(c, confusion.classes[c].recall > 0.8), which does not hold"},
		{"a slip of the hand", facts(), []string{"metrics.acuracy >= 0.85"},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.acuracy >= 0.85, but there is no acuracy in metrics; did you mean accuracy?"},
		{"a name with a hyphen", facts(), []string{"metrics.f1_score >= 0.85"},
			`version 7 of intent/bot-42 is refused: its gate asks for metrics.f1_score >= 0.85, but there is no f1_score in metrics; did you mean metrics["f1-score"]?`},
		{"no metrics", with(func(f *Facts) { f.Report.Metrics = nil }), []string{enough},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= 0.85, but there is no accuracy in metrics, which is empty"},
		{"no confusion", with(func(f *Facts) { f.Report.Measured = nil }), []string{"confusion.macroF1 > 0.5"},
			"version 7 of intent/bot-42 is refused: its gate asks for confusion.macroF1 > 0.5, but there is no confusion.macroF1, because no predictions.csv of the run has it"},
		{"no confusion, with a reason", with(func(f *Facts) { f.Report.Measured, f.Report.Notes = nil, []string{"predictions.csv is empty"} }), []string{"confusion.macroF1 > 0.5"},
			"version 7 of intent/bot-42 is refused: its gate asks for confusion.macroF1 > 0.5, but there is no confusion.macroF1, because no predictions.csv of the run has it: predictions.csv is empty"},
		{"no such class", facts(), []string{"confusion.classes.ordr.f1 > 0.5"},
			"version 7 of intent/bot-42 is refused: its gate asks for confusion.classes.ordr.f1 > 0.5, but there is no ordr in confusion.classes; did you mean order?"},
		{"what a URI brought", facts(), []string{"data.export.bytes > 0"},
			"version 7 of intent/bot-42 is refused: its gate asks for data.export.bytes > 0, but the size of export is not known, because it came from a URI"},
		{"an error", facts(), []string{"metrics.accuracy > 'a'"},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy > 'a', but it cannot be decided: it combines a figure with a value that is not a number"},
		{"no condition", facts(), []string{"metrics.accuracy > 0.5 ? metrics.accuracy : true"},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy > 0.5 ? metrics.accuracy : true, but it is neither true nor false; compare it, such as metrics.accuracy >= 0.85"},
		{"the champion not measured", with(unmeasured), []string{enough, better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but its run has not measured the champion: write the column champion in predictions.csv, or say gateOn: recorded"},
		{"another metric of the champion's", facts(), []string{"metrics.accuracy > champion.metrics.recall"},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy > champion.metrics.recall, but there is no recall in champion.metrics; there are accuracy, macroF1"},
		{"a metric that only was recorded", with(onRecorded), []string{"metrics.accuracy > champion.metrics.recall"},
			"version 7 of intent/bot-42 passes: accuracy 0.912, champion.metrics.recall 0.5; champion @6 is as it was registered, perhaps on other data"},
		{"another champion", with(moved), []string{enough, better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but it was measured together with @6, and @8 is the champion now"},
		{"another champion, given and not measured", with(unmeasured, moved), []string{better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but its run was to measure @6, and @8 is the champion now"},
		{"another champion, recorded", with(moved, onRecorded, accuracy(0.96)), []string{better},
			"version 7 of intent/bot-42 passes: accuracy 0.96 (champion @8: 0.95, as it was registered, perhaps on other data)"},
		{"another champion, its version alone", with(moved), []string{"champion.version == 8"},
			"version 7 of intent/bot-42 passes: champion.version 8"},
		{"a champion where there was none", with(first, func(f *Facts) { f.Champion = 8 }), []string{better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but its run was given no champion to measure, and @8 is the champion now"},
		{"recorded, and nothing is", with(unmeasured, onRecorded, func(f *Facts) { f.Recorded = nil }), []string{better},
			"version 7 of intent/bot-42 is refused: its gate asks for metrics.accuracy >= champion.metrics.accuracy - 0.01, but its run has not measured the champion, and what @6 was registered with is not at hand"},
		{"no lead in what was recorded", with(unmeasured, onRecorded), []string{"champion.lead.value > 0"},
			"version 7 of intent/bot-42 is refused: its gate asks for champion.lead.value > 0, but there is no champion.lead, because no predictions.csv of the run has it"},
	} {
		if got := judge(t, c.facts, c.clauses...); got.Sentence != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got.Sentence, c.want)
		}
	}
}

// The complete judgement: each clause with its figures, and which figures of the champion were
// used.
func TestJudgement(t *testing.T) {
	t.Parallel()
	f := facts()
	f.On = tidemill.GateOnRecorded
	got := judge(t, f, enough, better, "metrics.accuracy > champion.metrics.recall", "has(metrics.nothing)")
	want := tidemill.Judgement{Against: 6, Beside: 6, On: tidemill.GateOnRecorded, Lead: &f.Report.Champion.Lead.Value,
		Sentence: "version 7 of intent/bot-42 is refused: its gate asks for has(metrics.nothing), which does not hold",
		Clauses: []tidemill.Clause{
			{Text: enough, Passed: true, Values: map[string]float64{"metrics.accuracy": 0.912}},
			{Text: better, Passed: true, Values: map[string]float64{"metrics.accuracy": 0.912, "champion.metrics.accuracy": 0.905}},
			{Text: "metrics.accuracy > champion.metrics.recall", Passed: true, Values: map[string]float64{"metrics.accuracy": 0.912, "champion.metrics.recall": 0.5},
				Note: "by the figures that version 6 was registered with"},
			{Text: "has(metrics.nothing)"},
		}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, c := range []struct {
		clause string
		on     tidemill.GateOn
	}{{enough, ""}, {better, tidemill.GateOnSame}, {"champion.version > 1", ""}} {
		if got := judge(t, facts(), c.clause); got.On != c.on {
			t.Errorf("%s is decided on %q", c.clause, got.On)
		}
	}
}

// A trial's warning is a clause that holds. A missing part changes no clause, but the judgement notes it.
func TestATrialIsPartOfTheJudgement(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Report.Trial = &tidemill.ServingCheck{Scorer: "intents", Engine: "go", Warning: "it has no label order"}
	plain := judge(t, facts(), enough)
	want := plain
	want.Clauses = append([]tidemill.Clause{{Text: "the model can be served", Passed: true, Note: "warning: it has no label order"}}, plain.Clauses...)
	if got := judge(t, f, enough); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	f.Report.Trial = &tidemill.ServingCheck{Missing: "ONNX Runtime is not installed"}
	plain.Lacks = true
	if got := judge(t, f, enough); !reflect.DeepEqual(got, plain) {
		t.Errorf("got %+v\nwant %+v", got, plain)
	}
}

func TestWithoutAChampion(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Champion, f.Recorded = 0, nil // the champion that the run was given has been retired
	for _, clause := range []string{better, "champion.lead.value > 5", "champion.version > 9", "metrics.nothing > champion.metrics.nothing"} {
		got := judge(t, f, clause).Clauses[0]
		if !got.Passed || got.Note != "there is no champion, so it passes" {
			t.Errorf("%s: %+v", clause, got)
		}
		for name := range got.Values {
			if strings.HasPrefix(name, "champion") {
				t.Errorf("%s reports %s, and there is no champion", clause, name)
			}
		}
	}
}

// Rows without an answer are no class, but the matrix counts them.
func TestRowsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	all, f := facts(), facts()
	m := &tidemill.Figures{Classes: []tidemill.Class{{Predicted: 1}}}
	m.Classes = append(m.Classes, f.Report.Measured.Classes...)
	for _, c := range f.Report.Measured.Cells {
		m.Cells = append(m.Cells, tidemill.Cell{Truth: c.Truth + 1, Predicted: c.Predicted + 1, Count: c.Count})
	}
	m.Cells = append(m.Cells, tidemill.Cell{Truth: 1, Predicted: 0, Count: 1})
	f.Report.Measured = m
	label := m.Classes[1].Label
	for _, c := range []struct {
		f      Facts
		clause string
	}{
		{f, "confusion.classes.all(c, confusion.classes[c].recall > 0)"},
		{f, "confusion.matrix.all(c, c != '')"},
		{f, `confusion.matrix["` + label + `"][""] == 1`},
		{all, `confusion.matrix["` + label + `"][""] == 0`},
	} {
		if got := judge(t, c.f, c.clause); !got.Passed {
			t.Errorf("%s: %+v", c.clause, got.Clauses)
		}
	}
}

// Values that are not numbers do no harm, and are not in the reported values.
func TestNoNumbers(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Report.Metrics["bad"] = math.NaN()
	f.Seconds = math.Inf(1)
	got := judge(t, f, "metrics.bad > 0.5", "run.seconds < 60", "metrics.loss / metrics.loss > 1")
	for _, c := range got.Clauses {
		if c.Passed || len(c.Values) > 1 {
			t.Errorf("%+v", c)
		}
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}

// A clause that compares everything with everything ends, and its note says why.
func TestCostIsBounded(t *testing.T) {
	t.Parallel()
	f := facts()
	for i := range 2000 {
		f.Report.Measured.Classes = append(f.Report.Measured.Classes, tidemill.Class{Label: strings.Repeat("x", i+1)})
	}
	const every = "confusion.classes.all(%, "
	got := judge(t, f, strings.ReplaceAll(every, "%", "a")+strings.ReplaceAll(every, "%", "b")+strings.ReplaceAll(every, "%", "c")+"a + b + c != '')))").Clauses[0]
	if got.Passed || got.Note != "it cannot be decided: it reads too much; simplify it" {
		t.Errorf("%+v", got)
	}
	if got := judge(t, f, "confusion.classes.all(c, confusion.classes[c].recall >= 0)"); !got.Passed {
		t.Errorf("a look at every class of two thousand: %+v", got)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value  float64
		others []float64
		want   string
	}{
		{0.79, nil, "0.79"}, {0.912345, nil, "0.9123"}, {1, nil, "1"}, {-3, nil, "-3"}, {400, nil, "400"}, {1048576, nil, "1048576"}, {12.345678, nil, "12.35"},
		{12345.678, nil, "12345.68"}, {0.00001234567, nil, "1.235e-05"}, {1e20, nil, "1e+20"}, {0.5, []float64{0.5}, "0.5"}, {-0.001, nil, "-0.001"},
		{0.849999, []float64{0.85}, "0.849999"}, {0.85, []float64{0.849999}, "0.85"}, {math.Nextafter(0.3, 1), []float64{0.3}, "0.30000000000000004"},
	} {
		if got := show(c.value, c.others...); got != c.want {
			t.Errorf("%v next to %v is %s, want %s", c.value, c.others, got, c.want)
		}
	}
}

// Any clause is either refused with a column, or decided quickly.
func FuzzClause(f *testing.F) {
	for _, s := range []string{enough, better, "", "a", "metrics", "metrics[", "has(metrics.a)", "[1][5] > 2", "size('a') == 1", "{'a': 1}.a == 1", "metrics.all(m, metrics[m] > 0)",
		"1/0 > 1", "1 % 0 == 1", "metrics['a']['b']['c'] > 1", "timestamp('x') > timestamp('y')", "'a'.matches('(a*)*b')", "data.examples.map(x, x).size() > 1", "b'\\xff' == b'a'",
		"metrics.accuracy.x", "int('9' + '9') > 1u", "type(metrics) == map", "dyn(1)", "metrics.?a > 1", "google.protobuf.Int32Value{value: 1} == 1", "\x00", "\xff", "é.ö", "-9223372036854775808 < 0", "18446744073709551615u > 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := Check(text)
		g, compileErr := Compile([]string{text})
		if (err == nil) != (compileErr == nil) {
			t.Fatalf("%v and %v", err, compileErr)
		}
		if err != nil {
			wrong, is := err.(*SyntaxError)
			if !is || wrong.Column < 1 || wrong.Column > len([]rune(text))+2 || wrong.Reason == "" {
				t.Errorf("%#v", err)
			}
			return
		}
		for _, champion := range []int{0, 6, 8} {
			for _, on := range []tidemill.GateOn{tidemill.GateOnSame, tidemill.GateOnRecorded} {
				fs := facts()
				fs.Champion, fs.On = champion, on
				j := g.Judge("m", 7, fs)
				if again := g.Judge("m", 7, fs); !reflect.DeepEqual(j, again) {
					t.Errorf("%+v, and then %+v", j, again)
				}
				if len(j.Clauses) != 1 || j.Passed != j.Clauses[0].Passed || j.Sentence == "" || len(j.Sentence) > 4000 || strings.ContainsAny(j.Sentence, "\n\t") {
					t.Errorf("%+v", j)
				}
				if slices.ContainsFunc([]string{j.Sentence}, func(s string) bool { return strings.Contains(s, "%!") }) {
					t.Errorf("%s", j.Sentence)
				}
			}
		}
	})
}

// If a clause names a figure that Tidemill would have counted, the note says why it was not
// counted.
func TestAFigureThatWasNotCounted(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Report.Measured, f.Report.Metrics = nil, map[string]float64{}
	f.Report.Notes = []string{"loss of metrics.json is NaN", "predictions.csv has more than 2000 labels"}
	if got := judge(t, f, "metrics.accuracy >= 0.5"); got.Passed || !strings.HasSuffix(got.Clauses[0].Note, "; predictions.csv has more than 2000 labels") {
		t.Errorf("it says %q", got.Clauses[0].Note)
	}
}
