//go:build real

package drift

import (
	"math"
	"math/rand/v2"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// SciPy's marginal likelihoods are those of beta-binomial distributions; the binomial coefficients cancel.
const script = `
import json, sys
from scipy.special import betaln, gammaln
from scipy.stats import betabinom
def choose(n, k):
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
def factor(r, of, k, n):
    own = betabinom.logpmf(r, of, .5, .5) + betabinom.logpmf(k, n, .5, .5)
    same = betaln(r + k + .5, of + n - r - k + .5) - betaln(.5, .5) + choose(of, r) + choose(n, k)
    return own - same
json.dump([factor(*asked) for asked in json.load(sys.stdin)], sys.stdout)
`

// A factor is the ratio of the marginal likelihoods that SciPy computes.
func TestRealFactorsAreSciPys(t *testing.T) {
	const reference = 500
	m, r := NewMemo(reference), rand.New(rand.NewPCG(1, 9))
	var asked [][4]int
	for range 1000 {
		n := block << r.IntN(4)
		asked = append(asked, [4]int{r.IntN(reference + 1), reference, r.IntN(n + 1), n})
	}
	var logs []float64
	if err := realservers.AskSciPy(t.Context(), script, asked, &logs); err != nil {
		t.Fatal(err)
	}
	for i, c := range asked {
		if is := math.Log(m.factor(c[0], c[1], c[2], c[3])); math.Abs(is-logs[i]) > 1e-8*max(1, math.Abs(is)) {
			t.Errorf("%v: the logarithm of the factor is %v, SciPy's %v", c, is, logs[i])
		}
	}
}
