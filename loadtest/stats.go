package main

import (
	"slices"

	"tidemill.dev/loadtest/internal/task"
)

// spread is the range of a figure over the rounds.
type spread struct{ min, median, max float64 }

func spreadOf(all []float64) spread {
	s := slices.Sorted(slices.Values(all))
	if len(s) == 0 {
		return spread{}
	}
	return spread{s[0], (s[(len(s)-1)/2] + s[len(s)/2]) / 2, s[len(s)-1]}
}

func each(rounds []task.Result, figure func(task.Result) float64) []float64 {
	all := make([]float64, len(rounds))
	for i, r := range rounds {
		all[i] = figure(r)
	}
	return all
}

func cpuMicros(r task.Result) float64    { return float64(r.CPU) / 1e3 / float64(r.Records) }
func systemMicros(r task.Result) float64 { return float64(r.System) / 1e3 / float64(r.Records) }
func mallocs(r task.Result) float64      { return float64(r.Mallocs) / float64(r.Records) }
func bytesOf(r task.Result) float64      { return float64(r.Bytes) / float64(r.Records) }
func perSecond(r task.Result) float64    { return float64(r.Records) / r.Wall.Seconds() }

// ratios compares two figures of one round, because other work of the machine then slows both.
func (d *clientComparison) ratios() []float64 {
	all := make([]float64, len(d.ours))
	for i := range d.ours {
		all[i] = cpuMicros(d.ours[i]) / cpuMicros(d.franz[i])
	}
	return all
}
