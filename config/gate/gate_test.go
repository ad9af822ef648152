package gate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
)

// Errors in a clause and their columns. The golden files of config contain other classes of
// errors.
func TestCheck(t *testing.T) {
	t.Parallel()
	const compare = "; compare it, such as metrics.accuracy >= 0.85"
	for _, c := range []struct {
		text   string
		column int
		want   string
	}{
		{"metrics.f1 = 0.5", 12, `"=" is not CEL; write ==`},
		{"metrics.f1 => 0.5", 12, `"=>" is not CEL; write >=`},
		{"metrics.f1 > 0.5 AND true", 18, `"AND" is not CEL; write &&`},
		{"not(metrics.f1 > 1)", 1, "there is no not; write !"},
		{"metric.f1 > 1", 1, "there is no metric; did you mean metrics?"},
		{"1 < zzzzzzz.f1", 5, "there is no zzzzzzz; a clause may name champion, confusion, data, metrics, run"},
		{"1 < avg(metrics.f1)", 5, "there is no avg; a clause may name champion, confusion, data, metrics, run"},
		{"metrics.f1 >", 13, "the clause ends here, where more is expected"},
		{"(metrics.f1 > 1", 16, `a ")" is missing here`},
		{"metrics.f1 > 1)", 15, `")" is not expected here`},
		{"'é' == metrics.x && = 1", 21, `"=" is not CEL; write ==`},
		{"metrics.f1 > 0.5 &&\n  run.secnds > 1", 27, "there is no secnds in run; did you mean seconds?"},
		{"metrics.f1 >\n\n = 1", 16, `"=" is not CEL; write ==`},
		{"champion.lead.lo > 1", 15, "there is no lo in champion.lead; did you mean low?"},
		{"has(run.zzzzzzzzz)", 5, "there is no zzzzzzzzz in run; there are attempt, bytes, causes, files, gpuSeconds, peakMemory, seconds"},
		{"data.examples.size > 1", 15, "there is no size in data.examples; there are bytes, files"},
		{`confusion.matrix["a"]["b"]["c"] > 1`, 28, `confusion.matrix.a.b is a number, and has nothing within`},
		{"run.seconds.x > 1", 13, "run.seconds is a number, and has nothing within"},
		{"metrics.f1", 1, "names a figure and asks nothing of it" + compare},
		{`metrics["f1"]`, 1, "names a figure and asks nothing of it" + compare},
		{"-metrics.f1", 1, "computes a figure and asks nothing of it" + compare},
		{"metrics.f1 * 100", 1, "computes a figure and asks nothing of it" + compare},
		{"size(metrics)", 1, "is of type double, and not true or false" + compare},
		{"'a' + 1 > 2", 5, "+ cannot be applied to (string, double)"},
		{"", 1, "is empty; write a condition such as metrics.accuracy >= 0.85"},
		{" \n", 1, "is empty; write a condition such as metrics.accuracy >= 0.85"},
		{strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), 1, "is nested too deeply; write several clauses"},
		{strings.Repeat("true && ", 300) + "true", 1, "is longer than 2000 bytes; write several clauses"},
	} {
		var wrong *SyntaxError
		if err := Check(c.text); !errors.As(err, &wrong) || wrong.Column != c.column || wrong.Reason != c.want {
			t.Errorf("%.60q: %v\nwant column %d: %s", c.text, err, c.column, c.want)
		}
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	_, err := Compile([]string{"metrics.a > 1", "metrics.a"})
	var wrong *SyntaxError
	if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), "read clause 2 of the gate, metrics.a: column 1: names a figure") {
		t.Error(err)
	}
	var many []string
	for i := range MaxClauses + 1 {
		many = append(many, fmt.Sprintf("metrics.a > %d", i))
	}
	if _, err := Compile(many[:MaxClauses]); err != nil {
		t.Error(err)
	}
	if _, err := Compile(many); err == nil {
		t.Error("a gate has more clauses than it may")
	}
}

// figures returns figures of three classes: 400 examples, 364 correct.
func figures() *tidemill.Figures {
	class := func(label string, p, r, f1 float64, support, predicted int) tidemill.Class {
		return tidemill.Class{Label: label, Support: support, Predicted: predicted, F1: f1,
			Precision: tidemill.Estimate{Value: p}, Recall: tidemill.Estimate{Value: r}}
	}
	return &tidemill.Figures{Examples: 400, Accuracy: tidemill.Estimate{Value: 0.91, Low: 0.88, High: 0.93}, MacroF1: tidemill.Estimate{Value: 0.9},
		Classes: []tidemill.Class{class("cancel", 0.9, 0.95, 0.924, 100, 106), class("greet-late", 0.8, 0.7, 0.747, 100, 88), class("order", 0.97, 0.99, 0.98, 200, 206)},
		Cells: []tidemill.Cell{{Truth: 0, Predicted: 0, Count: 95}, {Truth: 0, Predicted: 1, Count: 5}, {Truth: 1, Predicted: 0, Count: 11}, {Truth: 1, Predicted: 1, Count: 70},
			{Truth: 1, Predicted: 2, Count: 19}, {Truth: 2, Predicted: 2, Count: 199}, {Truth: 2, Predicted: 1, Count: 1}}}
}

// facts returns the facts of version 7, which was measured together with version 6.
func facts() Facts {
	return Facts{
		Report: tidemill.Report{
			Metrics:  map[string]float64{"accuracy": 0.912, "macroF1": 0.9, "by.class.f1": 0.8, "f1-score": 0.81, "by.class": 0.5, "loss": 0, "whole": 3, "a.b.c": 1, "a.b": 2},
			Measured: figures(),
			Champion: &tidemill.Beside{Version: 6, Metrics: map[string]float64{"accuracy": 0.905, "macroF1": 0.88}, Measured: figures(),
				Lead: &tidemill.Estimate{Value: 0.007, Low: -0.01, High: 0.03}},
		},
		Origin:  tidemill.Origin{Attempt: 2, Causes: 3, Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/bot-42", Files: 4, Bytes: 5000}, {Name: "export", URI: "https://data.example/x"}}},
		Seconds: 12.5, Bytes: 2048, Files: 3, GPU: 7, PeakMemory: 1 << 20, Champion: 6, Given: 6,
		Recorded: &tidemill.Report{Metrics: map[string]float64{"accuracy": 0.95, "recall": 0.5}}, On: tidemill.GateOnSame,
	}
}

func judge(t *testing.T, f Facts, clauses ...string) tidemill.Judgement {
	t.Helper()
	g, err := Compile(clauses)
	if err != nil {
		t.Fatalf("%q: %v", clauses, err)
	}
	return g.Judge("intent/bot-42", 7, f)
}

// The allowed expressions; all kinds of numbers behave the same.
func TestLanguage(t *testing.T) {
	t.Parallel()
	for clause, want := range map[string]bool{
		"metrics.accuracy >= 0.85":                                                                true,
		"metrics.accuracy >= 0.92":                                                                false,
		"metrics.accuracy * 100 >= 91":                                                            true,
		"100 * metrics.accuracy - 1 > 91u":                                                        false,
		"metrics.whole == 3 && metrics.whole + 1 == 4 && 7 / 2 > 3":                               true,
		"metrics.loss == 0":                                                                       true,
		"-metrics.accuracy < -0.5":                                                                true,
		"metrics.by.class.f1 == 0.8":                                                              false, // false, because by.class is a number and contains no f1
		`metrics["by.class.f1"] == 0.8 && metrics.by.class == 0.5`:                                true,
		`metrics["f1-score"] > 0.8`:                                                               true,
		"metrics.accuracy >= champion.metrics.accuracy - 0.01":                                    true,
		"champion.lead.value > 0 && champion.lead.low > -0.02":                                    true,
		"champion.version == 6":                                                                   true,
		"confusion.examples >= 400 && confusion.accuracy == 0.91":                                 true,
		`confusion.classes["greet-late"].recall >= 0.75`:                                          false,
		"confusion.classes.order.support == 200":                                                  true,
		`confusion.matrix["greet-late"].order < 20`:                                               true,
		"confusion.matrix.cancel.order < 3 && confusion.matrix.order.cancel == 0":                 true,
		"'order' in confusion.matrix.cancel && champion.confusion.matrix.cancel.order == 0":       true,
		"confusion.matrix.cancel.refund < 3":                                                      false, // no class has this label
		"confusion.matrix.cancel.all(d, confusion.matrix.cancel[d] > 0)":                          true,  // only pairs with rows
		"confusion.classes.all(c, confusion.classes.all(d, confusion.matrix[c][d] < 200))":        true,
		"confusion.classes.all(c, confusion.classes[c].recall > 0.6)":                             true,
		"confusion.classes.exists(c, confusion.classes[c].f1 > champion.confusion.classes[c].f1)": false,
		"confusion.classes.exists_one(c, confusion.classes[c].f1 < 0.8)":                          true,
		"size(confusion.classes) == 3 && confusion.classes.size() * 2 == 6":                       true,
		"size(confusion.classes) % 2 == 1 && int(metrics.whole) % 2 == 1":                         true,
		"[1, 2, 3][1] == 2 && {'a': 1}['a'] == 1":                                                 true,
		"[0.5, metrics.accuracy].all(x, x > 0.4)":                                                 true,
		"has(metrics.f2) ? metrics.f2 > 0.5 : metrics.macroF1 > 0.5":                              true,
		"metrics.accuracy > 0.5 || metrics.nothing > 1":                                           true,
		"data.examples.files > 3 && data.examples.bytes < 6000":                                   true,
		"run.attempt == 2 && run.causes == 3 && run.seconds < 60 && run.gpuSeconds == 7":          true,
		"run.bytes == 2048 && run.files == 3 && run.peakMemory <= 1048576":                        true,
		"metrics.accuracy in [0.912, 1]":                                                          true,
		"true":                                                                                    true,
		"!(metrics.accuracy < 0.5)":                                                               true,
	} {
		if j := judge(t, facts(), clause); j.Passed != want {
			t.Errorf("%s: %+v", clause, j)
		}
	}
}

// The metrics of a gate come in the order of its clauses, each once.
func TestMetricsOfAGate(t *testing.T) {
	t.Parallel()
	for clauses, want := range map[string]string{
		"": "",
		"metrics.recall >= 0.8; metrics.accuracy >= champion.metrics.accuracy - 0.01": "recall accuracy",
		"champion.metrics.loss > metrics.loss && metrics.auc > 0.5":                   "loss auc",
		`metrics["val/f1"] > 0 || metrics.by.class.f1 > 0`:                            "val/f1 by.class.f1",
		"confusion.macroF1 > 0.5; confusion.classes.a.recall > 0.5":                   "macroF1",
		"has(metrics.late) ? metrics.late > 1 : run.seconds < 3600.0":                 "late",
		"data.examples.files > 0; champion.lead.low > 0; champion.version > 1":        "",
		"metrics.a >; metrics.b > 1":                                                  "b",
	} {
		if got := strings.Join(Metrics(strings.Split(clauses, "; ")), " "); got != want {
			t.Errorf("%s names %q, not %q", clauses, got, want)
		}
	}
}

// A label that no class has is a mistake in a clause, and the note names the classes.
func TestALabelThatNoClassHas(t *testing.T) {
	t.Parallel()
	for clause, want := range map[string]string{
		`confusion.matrix["cancel"]["ordre"] < 3`: `there is no ordre in confusion.matrix.cancel; did you mean order?`,
		`confusion.matrix["cancle"]["order"] < 3`: `there is no cancle in confusion.matrix; did you mean cancel?`,
	} {
		j := judge(t, facts(), clause)
		if j.Passed || j.Clauses[0].Note != want {
			t.Errorf("%s: %+v", clause, j.Clauses)
		}
	}
	if j := judge(t, facts(), "confusion.matrix.cancel.order < 3"); j.Clauses[0].Values["confusion.matrix.cancel.order"] != 0 || len(j.Clauses[0].Values) != 1 {
		t.Errorf("%+v", j.Clauses)
	}
}
