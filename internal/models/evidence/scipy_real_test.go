//go:build real

package evidence

import (
	"math"
	"math/rand/v2"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// The e-value for a lead of at most 0 is a mixture of ratios of binomial likelihoods, one for each bet.
const script = `
import json, sys
import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom
asked = json.load(sys.stdin)
size, share = np.array(asked["sizes"]), np.array(asked["shares"])
def discordant(won, lost):
    n = won + lost
    return logsumexp(np.log(share) + binom.logpmf(won, n, (1 + size) / 2) - binom.logpmf(won, n, 0.5))
json.dump([discordant(won, lost) for won, lost in asked["counts"]], sys.stdout)
`

// The e-value against "the candidate is not better" is the one that SciPy's binomial distribution gives.
func TestRealEValuesAreSciPys(t *testing.T) {
	var asked struct {
		Sizes  []float64  `json:"sizes"`
		Shares []float64  `json:"shares"`
		Counts [][2]int64 `json:"counts"`
	}
	for _, b := range bets {
		asked.Sizes, asked.Shares = append(asked.Sizes, b.size), append(asked.Shares, b.share)
	}
	r := rand.New(rand.NewPCG(1, 8))
	for range 500 {
		asked.Counts = append(asked.Counts, [2]int64{r.Int64N(1 << r.IntN(14)), r.Int64N(1 << r.IntN(14))})
	}
	var logs []float64
	if err := realservers.AskSciPy(t.Context(), script, asked, &logs); err != nil {
		t.Fatal(err)
	}
	for i, c := range asked.Counts {
		if is := (counts{won: c[0], tied: r.Int64N(1000), lost: c[1]}).logE(0); math.Abs(is-logs[i]) > 1e-7*max(1, math.Abs(is)) {
			t.Errorf("%d won and %d lost: the logarithm of the e-value is %v, SciPy's %v", c[0], c[1], is, logs[i])
		}
	}
}

// A bound is the place where the capital of the bets is 1/alpha: here by a product over all figures, and SciPy's search for a root.
const boundsScript = `
import json, sys
import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp
asked = json.load(sys.stdin)
def bound(capital, low, high, alpha):
    missing = lambda m: capital(m) + np.log(alpha)
    return low if missing(low) < 0 else brentq(missing, low, high, xtol=1e-12)
def lead(won, tied, lost, alpha):
    results, times = np.array([1, 0, -1])[:, None], np.array([won, tied, lost])[:, None]
    def capital(m):
        size = np.minimum(np.array(asked["sizes"]), 0.99 / (1 + m))
        return logsumexp(np.log(asked["shares"]) + (times * np.log1p(size * (results - m))).sum(axis=0))
    return bound(capital, -1 + 1e-12, 1 - 1e-12, alpha)
def mean(figures, alpha):
    x = np.array(figures)[:, None]
    fractions = np.array(asked["fractions"])
    capital = lambda m: logsumexp(np.log1p(fractions * (x - m) / m).sum(axis=0)) - np.log(len(fractions))
    return bound(capital, 1e-9, 1 - 1e-12, alpha)
json.dump({"leads": [lead(*one, alpha) for one in asked["counts"] for alpha in asked["alphas"]],
    "means": [mean(one, alpha) for one in asked["figures"] for alpha in asked["alphas"]]}, sys.stdout)
`

// The bounds of leads and means are those that SciPy finds.
func TestRealBoundsAreSciPys(t *testing.T) {
	asked := struct {
		Sizes     []float64   `json:"sizes"`
		Shares    []float64   `json:"shares"`
		Fractions []float64   `json:"fractions"`
		Alphas    []float64   `json:"alphas"`
		Counts    [][3]int64  `json:"counts"`
		Figures   [][]float64 `json:"figures"`
	}{Fractions: fractions, Alphas: []float64{0.05, 0.0001}}
	for _, b := range bets {
		asked.Sizes, asked.Shares = append(asked.Sizes, b.size), append(asked.Shares, b.share)
	}
	r := rand.New(rand.NewPCG(2, 8))
	var means []*Mean
	for range 100 {
		asked.Counts = append(asked.Counts, [3]int64{r.Int64N(1 << r.IntN(12)), r.Int64N(1 << r.IntN(14)), r.Int64N(1 << r.IntN(12))})
		m, figures := NewMean(0, 1), make([]float64, 1+r.IntN(300))
		for i, most := range rand.New(rand.NewPCG(uint64(len(means)), 9)).Perm(len(figures)) {
			figures[i] = (float64(r.IntN(100+most*3)) + 1e-6) / meanBins // no figure loses by the rounding to bins
			m.Add(figures[i])
		}
		asked.Figures, means = append(asked.Figures, figures), append(means, m)
	}
	var found struct{ Leads, Means []float64 }
	if err := realservers.AskSciPy(t.Context(), boundsScript, asked, &found); err != nil {
		t.Fatal(err)
	}
	bounded := 0
	for i, c := range asked.Counts {
		for j, alpha := range asked.Alphas {
			at := 2*i + j
			if is := (counts{c[0], c[1], c[2]}).lowest(alpha); math.Abs(is-found.Leads[at]) > 1e-8 {
				t.Errorf("%v at %v: the lead is above %v, by SciPy above %v", c, alpha, is, found.Leads[at])
			}
			is := means[i].Lowest(alpha)
			if math.Abs(is-found.Means[at]) > 4e-5 { // the bound is searched to 0.00002
				t.Errorf("%d figures at %v: the mean is above %v, by SciPy above %v", means[i].Len(), alpha, is, found.Means[at])
			}
			if is > 0 {
				bounded++
			}
		}
	}
	if bounded < 100 {
		t.Errorf("only %d means have a bound", bounded)
	}
}
