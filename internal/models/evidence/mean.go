package evidence

import "math"

// Mean bounds the mean of figures, such as one of each key of a fleet. The figures must come one after the other,
// each one independent of the choice of the others; their spread need not be known.
//
// The bound is that of the capital process of Waudby-Smith and Ramdas: for each possible mean m, a bet on figures
// above m wins nothing if the mean is at most m. A mean is excluded for ever once the mixture of all bets against it
// has reached 1/alpha.
type Mean struct {
	low, high float64
	n         int64
	sum       float64
	// bins counts the figures by their place between low and high, rounded down, so that the bound stays valid
	// and its cost does not grow.
	bins [meanBins + 1]int64
}

const meanBins = 1000

// NewMean returns an empty Mean of figures that are at least low and at most high.
func NewMean(low, high float64) *Mean { return &Mean{low: low, high: high} }

// Add counts a figure. One outside the limits counts as the limit.
func (m *Mean) Add(x float64) {
	x = min(max(x, m.low), m.high)
	m.n++
	m.sum += x
	m.bins[int(math.Floor((x-m.low)/(m.high-m.low)*meanBins))]++
}

// Len returns the number of figures.
func (m *Mean) Len() int64 { return m.n }

// Value returns the mean of the figures, and 0 without any.
func (m *Mean) Value() float64 {
	if m.n == 0 {
		return 0
	}
	return rounded(m.sum / float64(m.n))
}

// fractions of the largest bet that cannot lose everything. The money is spread evenly over them.
var fractions = []float64{0.003, 0.01, 0.02, 0.04, 0.07, 0.11, 0.17, 0.25, 0.36, 0.5, 0.7, 0.9}

// Lowest returns the lower bound: with a probability of 1-alpha the true mean is never below it, however often one
// looks. It is the least possible figure if there is no evidence.
func (m *Mean) Lowest(alpha float64) float64 {
	low, high := 0.0, 1.0 // places between the limits
	enough := -math.Log(alpha)
	if m.n == 0 || m.logCapital(1e-9) < enough {
		return m.low
	}
	for range 16 { // to 0.00002
		if middle := (low + high) / 2; m.logCapital(middle) >= enough {
			low = middle
		} else {
			high = middle
		}
	}
	return rounded(m.low + low*(m.high-m.low))
}

// Above reports whether the lower bound is above a figure.
func (m *Mean) Above(x, alpha float64) bool {
	return m.n > 0 && m.logCapital((x-m.low)/(m.high-m.low)) > -math.Log(alpha)
}

// logCapital returns the logarithm of the capital of the bets against a mean at a place. It falls with the place.
func (m *Mean) logCapital(place float64) float64 {
	logs, largest := make([]float64, len(fractions)), math.Inf(-1)
	for bin, n := range m.bins {
		if n == 0 {
			continue
		}
		gain := (float64(bin)/meanBins - place) / place
		for i, f := range fractions {
			logs[i] += float64(float64(n) * math.Log1p(float64(f*gain)))
		}
	}
	for _, l := range logs {
		largest = max(largest, l)
	}
	var sum float64
	for _, l := range logs {
		sum += math.Exp(l-largest) / float64(len(fractions))
	}
	return largest + math.Log(sum)
}
