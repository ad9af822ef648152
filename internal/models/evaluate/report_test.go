package evaluate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev"
)

// rows have 3 of 4 answers right, and 2 of 4 of the champion's.
const rows = "truth,predicted,champion\na,a,a\na,a,b\nb,b,b\nb,a,a\n"

func TestReportWithoutPredictions(t *testing.T) {
	t.Parallel()
	r := Report(nil, nil, map[string]float64{"accuracy": 0.9, "by.class.f1": 0.5, "champion": 3}, 0)
	if !reflect.DeepEqual(r.Metrics, map[string]float64{"accuracy": 0.9, "by.class.f1": 0.5, "champion": 3}) {
		t.Errorf("metrics %v", r.Metrics)
	}
	if r.Claimed != nil || r.Measured != nil || r.Champion != nil || r.Notes != nil {
		t.Errorf("%+v", r)
	}
	if r := Report(nil, nil, nil, 0); r.Metrics == nil || len(r.Metrics) != 0 {
		t.Errorf("of nothing: %+v", r)
	}
}

// Our figures replace the trainer's, which are kept if they differ by more than rounding does.
func TestOursOverTheirs(t *testing.T) {
	t.Parallel()
	p := mustRead(t, rows)
	r := Report(&p, nil, map[string]float64{"accuracy": 0.7504, "macroF1": 0.9, "loss": 0.1, "examples": 5, "champion.accuracy": 0.8, "champion.loss": 0.2}, 6)
	macro, theirs := p.Own.MacroF1.Value, p.Champion.MacroF1.Value
	if want := map[string]float64{"accuracy": 0.75, "macroF1": macro, "loss": 0.1, "examples": 4}; !reflect.DeepEqual(r.Metrics, want) {
		t.Errorf("metrics %v, want %v", r.Metrics, want)
	}
	if want := map[string]float64{"macroF1": 0.9, "examples": 5, "champion.accuracy": 0.8}; !reflect.DeepEqual(r.Claimed, want) {
		t.Errorf("claimed %v, want %v", r.Claimed, want)
	}
	if want := map[string]float64{"accuracy": 0.5, "macroF1": theirs, "loss": 0.2, "examples": 4}; r.Champion == nil || r.Champion.Version != 6 || !reflect.DeepEqual(r.Champion.Metrics, want) {
		t.Errorf("champion %+v, want %v", r.Champion, want)
	}
	if r.Measured != p.Own || r.Champion.Measured != p.Champion || r.Champion.Lead != p.Lead || p.Lead.Value != 0.25 {
		t.Errorf("%+v", r)
	}
	want := []string{
		fmt.Sprintf("metrics.json says that macroF1 is 0.9; by predictions.csv it is %v, which counts", math.Round(macro*1e6)/1e6),
		"metrics.json says that examples is 5; by predictions.csv it is 4, which counts",
		"metrics.json says that champion.accuracy is 0.8; by predictions.csv it is 0.5, which counts",
	}
	if !reflect.DeepEqual(r.Notes, want) {
		t.Errorf("notes %q, want %q", r.Notes, want)
	}
}

func TestReportOfTheChampion(t *testing.T) {
	t.Parallel()
	both, alone := mustRead(t, rows), mustRead(t, "truth,predicted\na,a\na,b\nb,b\n")
	claims := map[string]float64{"champion.f1": 0.4}
	for _, c := range []struct {
		name    string
		p       *Predictions
		claimed map[string]float64
		given   int
		version int // 0 if there is none
		note    string
	}{
		{"none given, none measured", &alone, nil, 0, 0, ""},
		{"none given, a column", &both, nil, 0, 0, "the run was given no champion, so its figures of one do not count"},
		{"none given, a claim", nil, claims, 0, 0, "the run was given no champion, so its figures of one do not count"},
		{"given, measured by us", &both, nil, 6, 6, ""},
		{"given, claimed", &alone, claims, 6, 6, ""},
		{"given, not measured", &alone, nil, 6, 0, "the run was given version 6, the champion, and has not measured it: predictions.csv has no answers in a column champion, and metrics.json no object champion"},
	} {
		r := Report(c.p, nil, c.claimed, c.given)
		if (r.Champion != nil) != (c.version != 0) || r.Champion != nil && r.Champion.Version != c.version || strings.Join(r.Notes, "\n") != c.note {
			t.Errorf("%s: %+v, notes %q", c.name, r.Champion, r.Notes)
		}
		if c.version == 0 && len(r.Claimed) != 0 {
			t.Errorf("%s: claimed %v", c.name, r.Claimed)
		}
	}
}

func TestReportOfWhatCannotBeCounted(t *testing.T) {
	t.Parallel()
	_, err := Read(strings.NewReader("truth\na\n"))
	r := Report(nil, fmt.Errorf("measure the run: %w", err), map[string]float64{"accuracy": 0.9}, 0)
	if len(r.Notes) != 1 || r.Notes[0] != `predictions.csv line 1: there is no column predicted; the header names "truth"` || r.Metrics["accuracy"] != 0.9 || r.Measured != nil {
		t.Errorf("%+v", r)
	}
	if r := Report(nil, errors.New("it is a folder"), nil, 0); len(r.Notes) != 1 || r.Notes[0] != "it is a folder" {
		t.Errorf("%+v", r)
	}
}

// Values that are not finite are left out, because a report is JSON.
func TestNoMeasures(t *testing.T) {
	t.Parallel()
	p := mustRead(t, rows)
	r := Report(&p, nil, map[string]float64{"a": math.NaN(), "accuracy": math.Inf(1), "champion.b": math.Inf(-1)}, 6)
	if _, is := r.Metrics["a"]; is || len(r.Notes) != 3 || r.Notes[0] != "a of metrics.json is NaN, which is not finite, and is left out" || r.Claimed != nil {
		t.Errorf("%+v", r)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func within(t *testing.T, what string, got tidemill.Estimate, low, high, slack float64) {
	t.Helper()
	if math.Abs(got.Low-low) > slack || math.Abs(got.High-high) > slack {
		t.Errorf("%s is %+v, want from %.6f to %.6f", what, got, low, high)
	}
}

// Wilson's bounds by his formula, computed elsewhere; 81 of 263 is the example of Newcombe (1998),
// with the bounds 0.2553 and 0.3662.
func TestWilson(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hits, n   int
		low, high float64
	}{
		{81, 263, 0.2552885198782742, 0.36620957698280004},
		{196, 300, 0.5978480299293977, 0.7049414588950748},
		{10, 10, 0.7224672001371107, 1},
		{0, 10, 0, 0.2775327998628892},
		{0, 0, 0, 1},
	} {
		within(t, fmt.Sprintf("%d of %d", c.hits, c.n), wilsonShare(c.hits, c.n), c.low, c.high, 1e-12)
	}
}

// The pairs of Agresti and Min (2005), table 1: 1600 voters were asked twice. 944 approved at first
// and 880 later; 150 only at first and 86 only later. Wald's interval there is (-0.059, -0.021);
// with a half added to each cell it hardly moves. By hand: (86.5-150.5)/1602 = -0.039950, and half
// of its width is 1.959964·sqrt(237-4096/1602)/1602 = 0.018733.
func TestLead(t *testing.T) {
	t.Parallel()
	e := leadInterval(86, 150, 1600)
	near(t, "the value", e.Value, -0.04)
	within(t, "the lead", *e, -0.039950062-0.018733, -0.039950062+0.018733, 1e-5)
	for _, c := range []struct{ better, worse, n int }{{0, 0, 1}, {1, 0, 1}, {0, 1, 1}, {10, 0, 10}, {1000, 0, 1000}, {0, 1000000, 1000000}} {
		e := leadInterval(c.better, c.worse, c.n)
		if e.Low < -1 || e.Low > e.Value || e.High < e.Value || e.High > 1 || c.better == c.worse && (e.Low >= 0 || e.High <= 0) {
			t.Errorf("%+v has %+v", c, *e)
		}
	}
}

// The same rows as pairs, counted by another program: we have 56 right that the champion has wrong,
// and it has 74 right that we have wrong.
func TestLeadOfRows(t *testing.T) {
	t.Parallel()
	got := mustRead(t, formula()).Lead
	if want := leadInterval(56, 74, 300); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	near(t, "the lead", got.Value, 0.6533333333333333-0.7133333333333334)
}

// The expected bounds are from a bootstrap over the rows, 4000 draws of numpy with scikit-learn's
// f1_score: 0.5940 to 0.7024, and 0.5959 to 0.6499 for the champion.
func TestIntervalOfMacroF1(t *testing.T) {
	t.Parallel()
	p := mustRead(t, formula())
	within(t, "our macro-F1", p.Own.MacroF1, 0.5940, 0.7024, 0.01)
	within(t, "the champion's", p.Champion.MacroF1, 0.5959, 0.6499, 0.01)
	if again := mustRead(t, formula()); !reflect.DeepEqual(again, p) {
		t.Error("the same rows have other figures the second time")
	}
}

// If all draws are equal, a bootstrap would give an interval of width 0.
func TestMacroF1OfFewAndAlike(t *testing.T) {
	t.Parallel()
	all := mustRead(t, "truth,predicted\n"+strings.Repeat("a,a\nb,b\n", 5)).Own
	within(t, "all of ten right", all.MacroF1, 0.7224672, 1, 1e-6)
	none := mustRead(t, "truth,predicted\n"+strings.Repeat("a,b\nb,a\n", 5)).Own
	within(t, "none of ten", none.MacroF1, 0, 0.2775328, 1e-6)
	one := mustRead(t, "truth,predicted\na,a\n").Own
	if one.MacroF1.Value != 1 || one.MacroF1.Low != one.Accuracy.Low || one.Classes[0].Recall.Low > 0.21 {
		t.Errorf("of one row: %+v", one)
	}
}

// Small and large cells are drawn with the right mean and spread.
func TestDice(t *testing.T) {
	t.Parallel()
	cells := []tidemill.Cell{{Count: 1}, {Count: 7}, {Count: 29}, {Count: 30}, {Count: 100_000}}
	d, counts := newDice(cells), make([]float64, len(cells))
	const draws = 20_000
	sums, squares := make([]float64, len(cells)), make([]float64, len(cells))
	for range draws {
		d.roll(counts)
		for i, n := range counts {
			sums[i], squares[i] = sums[i]+n, squares[i]+n*n
		}
	}
	for i, c := range cells {
		want, mean := float64(c.Count), sums[i]/draws
		spread := squares[i]/draws - mean*mean
		if math.Abs(mean-want) > 5*math.Sqrt(want/draws) || math.Abs(spread/want-1) > 0.06 {
			t.Errorf("%d comes %.3f times with a variance of %.3f", c.Count, mean, spread)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ q, want float64 }{{0, 1}, {1, 5}, {0.5, 3}, {0.25, 2}, {0.1, 1.4}} {
		near(t, fmt.Sprint(c.q), quantile([]float64{1, 2, 3, 4, 5}, c.q), c.want)
	}
}
