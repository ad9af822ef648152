package evaluate

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev"
)

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
