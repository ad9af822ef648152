package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// The triggers' bars.
const (
	filterBar   = 60 * time.Nanosecond
	indexBar    = 20 * time.Microsecond
	arriveBar   = 3 * time.Millisecond  // median time from publish to arrival
	lateBar     = 20 * time.Millisecond // 99th percentile of the same
	dispatchBar = 0.5                   // share of the bare client's requests
	besideBar   = 1.2                   // multiple of the 99th percentile without dead subscribers
)

func (t *table) triggers(g *triggersBench) {
	m := g.matching
	fmt.Fprintf(t.w, "triggers\n  %s: %s and %.2f allocations an event; bar ≤ %s and none: %s\n", measuredFilter, m.filter, m.allocs, filterBar,
		t.verdict(m.filter <= filterBar && m.allocs < 0.01))
	fmt.Fprintf(t.w, "  %d triggers on one type, each with a filter: %s and %.2f allocations an event; bar ≤ %s: %s\n\n", m.rules, m.index, m.ofIndex, indexBar,
		t.verdict(m.index <= indexBar))
	t.arrivals(g)
	t.dispatch(g)
	t.parkedEvents(g.parked)
}

func (t *table) arrivals(g *triggersBench) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "publish to function received, at %d events/s; medians of %d rounds\tp50\tp99\tmax\n", latencyRate, len(g.alone))
	row := func(name string, all []arrivals, of func(arrivals) load.Result) (p50, p99 time.Duration) {
		p50 = medianOf(all, func(a arrivals) time.Duration { return of(a).P50 })
		p99 = medianOf(all, func(a arrivals) time.Duration { return of(a).P99 })
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, micros(p50), micros(p99), micros(medianOf(all, func(a arrivals) time.Duration { return of(a).Max })))
		return p50, p99
	}
	came, acked := func(a arrivals) load.Result { return a.Came }, func(a arrivals) load.Result { return a.Acked }
	p50, p99 := row("the dispatcher", g.alone, came)
	row("  of that, until Kafka had acknowledged", g.alone, acked)
	row("with two dead subscribers beside", g.beside, came)
	row("  of that, until Kafka had acknowledged", g.beside, acked)
	row("bare loopback hop: a client posts to the same server", g.hop, came)
	w.Flush()
	fmt.Fprintf(t.w, "  p50 ≤ %s: %s · p99 ≤ %s: %s\n", arriveBar, t.verdict(p50 <= arriveBar), lateBar, t.verdict(p99 <= lateBar))
	t.compareBeside(g.beside, g.alone)
}

// compareBeside prints what dead subscribers cost a living one.
func (t *table) compareBeside(beside, alone []arrivals) {
	ratio := spreadOf(compareDelays(beside, alone))
	fmt.Fprintf(t.w, "  p99, with the dead : without %.2f (%.2f to %.2f); bar ≤ %.1f: %s\n\n", ratio.median, ratio.min, ratio.max, besideBar, t.verdict(ratio.median <= besideBar))
}

func medianOf(all []arrivals, figure func(arrivals) time.Duration) time.Duration {
	f := make([]float64, len(all))
	for i, r := range all {
		f[i] = float64(figure(r))
	}
	return time.Duration(spreadOf(f).median)
}

// compareDelays compares 99th percentiles within a round.
func compareDelays(a, b []arrivals) []float64 {
	f := make([]float64, min(len(a), len(b)))
	for i := range f {
		f[i] = float64(a[i].Came.P99) / float64(b[i].Came.P99)
	}
	return f
}

func (t *table) dispatch(g *triggersBench) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "dispatch rate, %d requests at once; CPU µs/event of each process\tevents/s\tclient\tkernel\tallocs/event\tbroker\tpublisher and subscriber\n", atOnce)
	row := func(name string, all []serverMeasurement) {
		median := func(figure func(serverMeasurement) float64) float64 { return spreadOf(figures(all, figure)).median }
		fmt.Fprintf(w, "  %s\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\n", name, spreadOf(roundRates(all)).median,
			median(func(s serverMeasurement) float64 { return s.perEvent(s.server.CPU) }),
			median(func(s serverMeasurement) float64 { return s.perEvent(s.server.System) }),
			median(func(s serverMeasurement) float64 { return float64(s.server.Mallocs) / float64(max(1, s.load.Events)) }),
			median(func(s serverMeasurement) float64 { return s.perEvent(s.broker.CPU) }),
			median(func(s serverMeasurement) float64 { return s.perEvent(s.load.CPU) }))
	}
	row("the dispatcher", g.ours)
	row("bare http.Client", g.bare)
	w.Flush()
	t.atLeast("the dispatcher : bare", compareRates(g.ours, g.bare), compareCPU(g.ours, g.bare), dispatchBar)
	own := spreadOf(within(g.ours, g.bare, func(a, b serverMeasurement) float64 { return a.perEvent(a.server.CPU) / b.perEvent(b.server.CPU) }))
	fmt.Fprintf(t.w, "  CPU of the client's process alone, the dispatcher : bare %.2f (%.2f to %.2f)\n\n", own.median, own.min, own.max)
}

func (t *table) parkedEvents(p parkedEvents) {
	if p.events == 0 {
		return
	}
	mb := func(n uint64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	fmt.Fprintf(t.w, "%d events of %d keys whose only subscriber is dead\n", p.events, p.keys)
	fmt.Fprintf(t.w, "  published and parked in %s, %.0f events/s\n", p.parking.Round(time.Millisecond), float64(p.events)/p.parking.Seconds())
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  the dispatcher's memory\tlive heap\tresident\theap, bytes a parked event\n")
	row := func(name string, r task.Result) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%.1f\n", name, mb(r.Heap), mb(r.Resident), (float64(r.Heap)-float64(p.empty.Heap))/float64(p.events))
	}
	row("before", p.empty)
	row("with all of them parked", p.full)
	row("rebuilt in a new process", p.restarted)
	w.Flush()
	fmt.Fprintf(t.w, "  ready after a start: %s with nothing parked, %s with all, %s with all after a kill (the group's session among it)\n\n",
		p.begin.Round(time.Millisecond), p.again.Round(time.Millisecond), p.taken.Round(time.Millisecond))
}
