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
