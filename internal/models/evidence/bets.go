package evidence

import "math"

// The bets of the e-process. A bet of size s wins s times the result of each answer (1, 0 or -1), so its capital
// is a product. If the null hypothesis is true, no bet is expected to win, so the mean capital of all bets is an
// e-process: it reaches 1/alpha, ever, with a probability of at most alpha (Ville's inequality).
//
// Many bets are placed because the best size depends on the unknown lead: it is about the lead divided by the
// share of answers that differ. Small leads need small bets and many labels. Most of the money is on the leads of
// half a point to a few points that a trial wants to decide.
var bets = []struct{ size, share float64 }{
	{0.001, 0.01}, {0.003, 0.01}, {0.008, 0.02}, {0.02, 0.05}, {0.04, 0.09}, {0.07, 0.13}, {0.11, 0.16},
	{0.16, 0.16}, {0.23, 0.14}, {0.33, 0.10}, {0.48, 0.07}, {0.68, 0.04}, {0.94, 0.02},
}

// counts has the results of a comparison: all that an e-value depends on.
type counts struct{ won, tied, lost int64 }

// logE returns the logarithm of the e-value against the hypothesis that the lead is at most m. It falls with m.
//
// For m = 0 ties do not count: this is the test of discordant pairs by a mixture of binomial likelihood
// ratios, and a bet of size s is the alternative that a share (1+s)/2 of the discordant pairs is won.
func (c counts) logE(m float64) float64 {
	if m >= 1 {
		return 0 // a lead is never above 1: nothing speaks against that hypothesis
	}
	terms := make([]float64, 0, 32)
	largest := math.Inf(-1)
	for _, b := range bets {
		s := min(b.size, 0.99/(1+m)) // a loss leaves a rest of the capital
		// The conversions keep the compiler from fusing operations, which would round otherwise on some processors.
		l := math.Log(b.share) + float64(float64(c.won)*math.Log1p(float64(s*(1-m)))) +
			float64(float64(c.tied)*math.Log1p(-float64(s*m))) + float64(float64(c.lost)*math.Log1p(-float64(s*(1+m))))
		terms, largest = append(terms, l), max(largest, l)
	}
	var sum float64
	for _, l := range terms {
		sum += math.Exp(l - largest)
	}
	return largest + math.Log(sum)
}

// lowest returns the lead below which the data contradicts every lead: the largest m whose e-value is at least
// 1/alpha. It is -1 if there is none.
func (c counts) lowest(alpha float64) float64 {
	low, high := -1.0, 1.0
	enough := -math.Log(alpha)
	if !(c.logE(low) >= enough) {
		return low
	}
	for range 40 { // to 2e-12
		if middle := (low + high) / 2; c.logE(middle) >= enough {
			low = middle
		} else {
			high = middle
		}
	}
	return rounded(low)
}

func (c counts) mirrored() counts { return counts{c.lost, c.tied, c.won} }

// rounded cuts a bound to nine digits, so that its text is short and the last bits of a processor's logarithm
// do not matter.
func rounded(x float64) float64 { return math.Round(x*1e9) / 1e9 }
