package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

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

// table prints results as they come and remembers whether a bar was missed.
type table struct {
	w      io.Writer
	missed bool
}

func newTable(w io.Writer, p plan) *table {
	fmt.Fprintf(w, "Events of %d B with 9 attributes over %d partitions; %d rounds; %d records a client. Each client and server is a process.\n"+
		"CPU is user + system of the client's process. Ratios are ours : franz-go within a round.\n\n",
		task.DataBytes, partitions, p.rounds, p.records)
	return &table{w: w}
}

func (t *table) verdict(met bool) string {
	if met {
		return "met"
	}
	t.missed = true
	return "missed"
}

func (t *table) duel(d *clientComparison) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s\tCPU µs/record\tkernel\tallocs/record\tB/record\trecords/s\n", d.name)
	t.side(w, "  ours", d.ours)
	t.side(w, "  franz-go", d.franz)
	w.Flush()
	ratio := spreadOf(d.ratios())
	fmt.Fprintf(t.w, "  CPU ratio %.2f (%.2f to %.2f), bar ≤ %.1f: %s", ratio.median, ratio.min, ratio.max, d.bar, t.verdict(ratio.median <= d.bar))
	allocs := spreadOf(each(d.ours, mallocs)).median
	fmt.Fprintf(t.w, " · allocation-free per record (≤ %.2f): %s\n\n", allocBar, t.verdict(allocs <= allocBar))
}

func (t *table) side(w io.Writer, name string, rounds []task.Result) {
	cpu := spreadOf(each(rounds, cpuMicros))
	fmt.Fprintf(w, "%s\t%.2f (%.2f to %.2f)\t%.2f\t%.4f\t%.0f\t%.0f\n", name, cpu.median, cpu.min, cpu.max,
		spreadOf(each(rounds, systemMicros)).median, spreadOf(each(rounds, mallocs)).median, spreadOf(each(rounds, bytesOf)).median, spreadOf(each(rounds, perSecond)).median)
}

func (t *table) latency(l measureLatencies) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "latency at %d events/s for %s\tp50\tp99\tmax\n", latencyRate, l.lasted.Round(time.Second))
	row := func(name string, of sample) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, micros(task.Quantile(of, 0.5)), micros(task.Quantile(of, 0.99)), micros(task.Quantile(of, 1)))
	}
	row("publish to tail", l.tail)
	row("publish to acknowledged", l.ack)
	row("bare loopback TCP hop", l.hop)
	w.Flush()
	p50, p99 := task.Quantile(l.tail, 0.5), task.Quantile(l.tail, 0.99)
	fmt.Fprintf(t.w, "  publish to tail p50 ≤ %s: %s · p99 ≤ %s: %s\n\n", medianBar, t.verdict(p50 <= medianBar), tailBar, t.verdict(p99 <= tailBar))
}

func micros(d time.Duration) string { return d.Round(time.Microsecond).String() }

func (s serverMeasurement) eventsPerSecond() float64 {
	return float64(s.load.Events) / s.load.Wall.Seconds()
}

// roundRates returns events per second, round by round.
func roundRates(all []serverMeasurement) []float64 {
	return figures(all, serverMeasurement.eventsPerSecond)
}

func figures(all []serverMeasurement, figure func(serverMeasurement) float64) []float64 {
	f := make([]float64, len(all))
	for i, s := range all {
		f[i] = figure(s)
	}
	return f
}

// compareRates compares rates within a round.
func compareRates(a, b []serverMeasurement) []float64 {
	return within(a, b, func(a, b serverMeasurement) float64 { return a.eventsPerSecond() / b.eventsPerSecond() })
}

// compareCPU compares the whole machine's CPU time per event within a round.
func compareCPU(a, b []serverMeasurement) []float64 {
	return within(a, b, func(a, b serverMeasurement) float64 { return b.allPerEvent() / a.allPerEvent() })
}

func within(a, b []serverMeasurement, ratio func(a, b serverMeasurement) float64) []float64 {
	f := make([]float64, min(len(a), len(b)))
	for i := range f {
		f[i] = ratio(a[i], b[i])
	}
	return f
}

// perEvent returns a process's CPU time per event, in microseconds.
func (s serverMeasurement) perEvent(cpu time.Duration) float64 {
	return float64(cpu) / 1e3 / float64(max(1, s.load.Events))
}

// allPerEvent returns the CPU time of all processes per event.
func (s serverMeasurement) allPerEvent() float64 {
	return s.perEvent(s.server.CPU + s.broker.CPU + s.cache.CPU + s.load.CPU)
}
