package evaluate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"tidemill.dev"
)

// Names of the metrics that Tidemill computes. The same names in metrics.json are claims.
const (
	MetricAccuracy = "accuracy"
	MetricMacroF1  = "macroF1"
	MetricExamples = "examples"

	// ofChampion is the prefix of a trainer's figures of the champion.
	ofChampion = "champion."
	// leastDifference is the least difference that rounding does not explain.
	leastDifference = 0.001
)

// Report combines the counted predictions with the trainer's figures. champion is the version that
// the run was given, 0 for none; err is why predictions.csv could not be counted, which is noted.
// For a run without that file, p and err are nil.
func Report(p *Predictions, err error, claimed map[string]float64, champion int) tidemill.Report {
	d := draft{r: tidemill.Report{Metrics: map[string]float64{}, Claimed: map[string]float64{}}}
	theirs := d.addClaims(claimed)
	if err != nil {
		d.note("%s", reasonText(err))
	}
	if p != nil && p.Own != nil {
		d.r.Measured = p.Own
		d.r.Notes = append(d.r.Notes, p.Notes...)
		d.overlayFigures(d.r.Metrics, "", p.Own)
	}
	d.addChampion(p, theirs, champion)
	if len(d.r.Claimed) == 0 {
		d.r.Claimed = nil
	}
	return d.r
}

// reasonText returns the text of an error, or only the text of the FileError in it.
func reasonText(err error) string {
	var file *FileError
	if errors.As(err, &file) {
		return file.Error()
	}
	return err.Error()
}

// draft is an unfinished report.
type draft struct{ r tidemill.Report }

func (d *draft) note(format string, args ...any) {
	d.r.Notes = append(d.r.Notes, fmt.Sprintf(format, args...))
}

// addClaims adds the trainer's figures of its own version, and returns the trainer's figures of the
// champion.
func (d *draft) addClaims(all map[string]float64) (theirs map[string]float64) {
	theirs = map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		rest, isTheirs := strings.CutPrefix(name, ofChampion)
		switch {
		case math.IsNaN(value) || math.IsInf(value, 0):
			d.note("%s of metrics.json is %v, which is not finite, and is left out", name, value)
		case isTheirs:
			theirs[rest] = value
		default:
			d.r.Metrics[name] = value
		}
	}
	return theirs
}

// overlayFigures replaces claims by our figures of the same names, and keeps the claims that differ.
func (d *draft) overlayFigures(metrics map[string]float64, prefix string, f *tidemill.Figures) {
	for _, ours := range []struct {
		name  string
		value float64
	}{{MetricAccuracy, f.Accuracy.Value}, {MetricMacroF1, f.MacroF1.Value}, {MetricExamples, float64(f.Examples)}} {
		if was, is := metrics[ours.name]; is && math.Abs(was-ours.value) > leastDifference {
			d.r.Claimed[prefix+ours.name] = was
			d.note("metrics.json says that %s is %v; by %s it is %v, which counts", prefix+ours.name, was, FileName, math.Round(ours.value*1e6)/1e6)
		}
		metrics[ours.name] = ours.value
	}
}

// addChampion adds the run's measurements of the champion that it was given.
func (d *draft) addChampion(p *Predictions, theirs map[string]float64, champion int) {
	counted := p != nil && p.Champion != nil
	switch {
	case champion == 0 && (counted || len(theirs) > 0):
		d.note("the run was given no champion, so its figures of one do not count")
	case champion == 0:
	case !counted && len(theirs) == 0:
		d.note("the run was given version %d, the champion, and has not measured it: %s has no answers in a column champion, and metrics.json no object champion", champion, FileName)
	default:
		d.r.Champion = &tidemill.Beside{Version: champion, Metrics: theirs}
		if counted {
			d.r.Champion.Measured, d.r.Champion.Lead = p.Champion, p.Lead
			d.overlayFigures(theirs, ofChampion, p.Champion)
		}
	}
}

// z is the number of standard deviations that hold 95% of a normal distribution.
const z = 1.959963984540054

// wilsonShare returns hits of n with Wilson's interval, which stays within 0 and 1 and also suits few
// examples and extreme shares. The interval of 0 examples is 0 to 1.
func wilsonShare(hits, n int) tidemill.Estimate {
	if n == 0 {
		return tidemill.Estimate{High: 1}
	}
	p, m := float64(hits)/float64(n), float64(n)
	middle := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return clampAround(p, middle-half, middle+half, 0)
}

// leadInterval returns the difference of two shares of the same n examples. better is the number of
// examples that only this version has right; worse is the number of examples that only the other
// version has right. The interval is that of Agresti and Min (2005): Wald's over four cells with a
// half added to each.
func leadInterval(better, worse, n int) *tidemill.Estimate {
	b, c, m := float64(better)+0.5, float64(worse)+0.5, float64(n)+2
	middle := (b - c) / m
	half := z * math.Sqrt(b+c-(b-c)*(b-c)/m) / m
	e := clampAround(float64(better-worse)/float64(n), middle-half, middle+half, -1)
	return &e
}

// clampAround keeps an interval within its bounds and around its value, because a rounding error may
// have moved it.
func clampAround(value, low, high, least float64) tidemill.Estimate {
	return tidemill.Estimate{Value: value, Low: min(max(low, least), value), High: max(min(high, 1), value)}
}

const (
	maxResamples = 1000
	minResamples = 100
	drawsAtMost  = 10_000_000 // limit, except that minResamples are always drawn
	seed         = 20261122
)

// macroF1 returns the mean of the classes' F1 with the interval of a bootstrap: the middle 95% of
// the means of equally many examples, drawn again from these. It draws how often each cell occurs,
// which is equivalent and bounded. The seed is fixed, so that the same predictions have the same
// interval. If all answers are right, or all wrong, all draws are equal, and the interval is that
// of the accuracy.
func macroF1(f *tidemill.Figures) tidemill.Estimate {
	counts := make([]float64, len(f.Cells))
	for i, c := range f.Cells {
		counts[i] = float64(c.Count)
	}
	m := newMean(f)
	value := m.of(counts)
	if value == 0 || value == 1 {
		return clampAround(value, f.Accuracy.Low, f.Accuracy.High, 0)
	}
	means := make([]float64, min(max(drawsAtMost/len(f.Cells), minResamples), maxResamples))
	d := newDice(f.Cells)
	for i := range means {
		d.roll(counts)
		means[i] = m.of(counts)
	}
	slices.Sort(means)
	return clampAround(value, quantile(means, 0.025), quantile(means, 0.975), 0)
}

// quantile returns a quantile of sorted figures, interpolated between two of them.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// mean computes the macro-F1 of a matrix with the cells of figures.
type mean struct {
	f         *tidemill.Figures
	hits, all []float64 // values of each class
}

func newMean(f *tidemill.Figures) *mean {
	return &mean{f, make([]float64, len(f.Classes)), make([]float64, len(f.Classes))}
}

func (m *mean) of(counts []float64) float64 {
	clear(m.hits)
	clear(m.all)
	for i, c := range m.f.Cells {
		m.all[c.Truth] += counts[i]
		m.all[c.Predicted] += counts[i]
		if c.Truth == c.Predicted {
			m.hits[c.Truth] = counts[i]
		}
	}
	var sum, classes float64
	for i, all := range m.all {
		if all > 0 && m.f.Classes[i].Label != "" { // classes that were not drawn do not count, nor does the empty answer
			sum, classes = sum+2*m.hits[i]/all, classes+1
		}
	}
	return sum / max(classes, 1)
}

// dice draws from Poisson's distribution how often each cell occurs.
type dice struct {
	random *rand.Rand
	cells  []tidemill.Cell
	none   []float64 // probability that a cell does not occur
}

func newDice(cells []tidemill.Cell) *dice {
	d := &dice{rand.New(rand.NewPCG(seed, seed)), cells, make([]float64, len(cells))}
	for i, c := range cells {
		d.none[i] = math.Exp(-float64(c.Count))
	}
	return d
}

// manyOf is the count from which a normal distribution is close to Poisson's.
const manyOf = 30

func (d *dice) roll(counts []float64) {
	for i, c := range d.cells {
		if c.Count >= manyOf {
			n := float64(c.Count)
			counts[i] = max(0, math.Round(n+math.Sqrt(n)*d.random.NormFloat64()))
			continue
		}
		u, p, k := d.random.Float64(), d.none[i], 0.0
		for u > p && p > 0 {
			u, k = u-p, k+1
			p *= float64(c.Count) / k
		}
		counts[i] = k
	}
}
