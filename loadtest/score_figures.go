package main

import (
	"fmt"
	"slices"
)

// The names of figures, as budgets use them.
const (
	figureCeiling    = "ceiling"
	figureLeast      = "at least once / ceiling"
	figureOnce       = "exactly once / ceiling"
	figurePlain      = "exactly once / plain Go"
	figurePlainCPU   = "plain Go CPU / exactly once"
	figurePython     = "exactly once / Python"
	figurePythonCPU  = "Python CPU / exactly once"
	figureCore       = "events a core-second"
	figureAllocs     = "allocations per event"
	figureParse      = "parsing alone, events a core-second"
	figureOutput     = "bytes of an output's data"
	figureOfParsing  = "part of parsing alone"
	inferenceNative  = "inference alone, our Go engine"
	inferenceRuntime = "inference alone, ONNX Runtime"
)

// ceilings returns the best possible rate of each round: the faster copy in series with the faster
// engine.
func (c *comparison) ceilings() []float64 {
	all := make([]float64, len(c.once))
	for i := range all {
		copied, alone := max(c.copied[i].rate(), c.franz[i].rate()), c.native[i].rate()
		if i < len(c.runtime) {
			alone = max(alone, c.runtime[i].rate())
		}
		all[i] = combinedRate(copied, alone)
	}
	return all
}

// combinedRate returns the rate of work that passes two stages with these rates one after the
// other.
func combinedRate(a, b float64) float64 { return 1 / (1/a + 1/b) }

// medianRatio returns the median ratio of two figures within a round.
func medianRatio(a, b []float64) float64 {
	all := make([]float64, min(len(a), len(b)))
	for i := range all {
		all[i] = a[i] / b[i]
	}
	return spreadOf(all).median
}

func cpuOf(m measuredTurn) float64 { return cpuMicros(m.Result) }

// fillRows fills the report's rows and figures.
func (c *comparison) fillRows(o *scoreOutcome) {
	o.Rows = c.rows()
	ceilings, once, f := c.ceilings(), c.once.figures(measuredTurn.rate), o.Figures
	f[figureCeiling] = spreadOf(ceilings).median
	f[figureOnce] = medianRatio(once, ceilings)
	f[figureLeast] = medianRatio(c.least.figures(measuredTurn.rate), ceilings)
	f[figureCore] = 1e6 / spreadOf(c.once.figures(cpuOf)).median
	f[figureParse] = spreadOf(c.parsed.figures(func(m measuredTurn) float64 { return 1e6 / cpuOf(m) })).median
	f[figureOfParsing] = f[figureCore] / f[figureParse]
	f[figureAllocs] = spreadOf(c.once.figures(func(m measuredTurn) float64 { return mallocs(m.Result) })).median
	f[figureOutput] = float64(c.data)
	if len(c.plain) > 0 {
		f[figurePlain] = medianRatio(once, c.plain.figures(measuredTurn.rate))
		f[figurePlainCPU] = medianRatio(c.plain.figures(cpuOf), c.once.figures(cpuOf))
	}
	if len(c.python) > 0 {
		f[figurePython] = medianRatio(once, c.python.figures(measuredTurn.rate))
		f[figurePythonCPU] = medianRatio(c.python.figures(cpuOf), c.once.figures(cpuOf))
	}
	c.audit.addCounts(o, c.first)
	o.Notes = append(o.Notes, fmt.Sprintf("ceiling %.0f events/s; reading the data alone %.0f events a core-second; an output has %d bytes of data",
		f[figureCeiling], f[figureParse], c.data))
}

// addCounts reports the counts that must be zero.
func (a auditCounts) addCounts(o *scoreOutcome, first error) {
	o.Figures[figureLost], o.Figures[figureTwice], o.Figures[figureWrong] = float64(a.lost), float64(a.twice), float64(a.wrong)
	o.Notes = append(o.Notes, fmt.Sprintf("%d outputs read back, %d of them evaluated again", a.outputs, a.checked))
	if first != nil {
		o.Notes = append(o.Notes, "the first that is wrong: "+first.Error())
	}
}

func (c *comparison) rows() []scoreRow {
	plain := "plain Go, ONNX Runtime"
	if !c.built.runtime {
		plain = "plain Go, our Go engine"
	}
	rows := []scoreRow{c.once.row("exactly once", true), c.least.row("at least once", true),
		c.plain.row(plain, false), c.python.row("Python", false),
		c.copied.row("copy, our client", false), c.franz.row("copy, franz-go", false),
		c.native.row(inferenceNative, false), c.runtime.row(inferenceRuntime, false)}
	rows = slices.DeleteFunc(rows, func(r scoreRow) bool { return r.PerSecond == 0 })
	for i := range rows {
		rows[i].Part = rows[i].Name == inferenceNative || rows[i].Name == inferenceRuntime
	}
	return rows
}

// missingReasons returns the reasons for missing figures.
func (c *comparison) missingReasons() map[string]string {
	if len(c.python) > 0 {
		return nil
	}
	return map[string]string{figurePython: c.built.noPython, figurePythonCPU: c.built.noPython}
}
