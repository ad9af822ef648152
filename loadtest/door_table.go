package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// The bars of the gateway. Rates are compared within a round.
const (
	singleBar = 0.5 // share of the bare server's requests
	batchBar  = 5   // multiple of the rate of single events
	ownBar    = time.Millisecond
)

func (t *table) door(d *gatewayBench) {
	fmt.Fprintf(t.w, "the door: %d connections for single events and %d for batches, each waits for its answer; dedupe %s with %s; every 202 was found on its stream\n",
		d.connections, batchConnections, d.dedupe, d.cache.name)
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "CPU µs/event of each process\tevents/s\tserver\tkernel\tallocs/event\tbroker\tredis\tgenerator\tall\tp50\tp99\n")
	for _, c := range d.contenders() {
		speed(w, c.name+", single", c.singles)
	}
	for _, c := range d.contenders() {
		speed(w, fmt.Sprintf("%s, batches of %d", c.name, batchEvents), c.batches)
	}
	w.Flush()
	t.atLeast("single events, the door : bare", compareRates(d.own.singles, d.bare.singles), compareCPU(d.own.singles, d.bare.singles), singleBar)
	t.atLeast("events in batches : single", compareRates(d.own.batches, d.own.singles), compareCPU(d.own.batches, d.own.singles), batchBar)
	for _, c := range d.contenders()[2:] {
		t.printRatio("single, the door : "+c.name, compareRates(d.own.singles, c.singles), compareCPU(d.own.singles, c.singles))
		fmt.Fprintln(t.w)
		t.printRatio("batches, the door : "+c.name, compareRates(d.own.batches, c.batches), compareCPU(d.own.batches, c.batches))
		fmt.Fprintln(t.w)
	}
	t.atHalfLoad(d)
}

// contenders returns the contenders in the table's order, because each round changes the order of
// the list.
func (d *gatewayBench) contenders() []*contender {
	all := []*contender{d.bare, d.own}
	for _, c := range d.all {
		if c != d.bare && c != d.own {
			all = append(all, c)
		}
	}
	return all
}

func speed(w io.Writer, name string, all []serverMeasurement) {
	if len(all) == 0 {
		return
	}
	median := func(figure func(serverMeasurement) float64) float64 { return spreadOf(figures(all, figure)).median }
	fmt.Fprintf(w, "  %s\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\n", name, spreadOf(roundRates(all)).median,
		median(func(s serverMeasurement) float64 { return s.perEvent(s.server.CPU) }),
		median(func(s serverMeasurement) float64 { return s.perEvent(s.server.System) }),
		median(func(s serverMeasurement) float64 { return float64(s.server.Mallocs) / float64(max(1, s.load.Events)) }),
		median(func(s serverMeasurement) float64 { return s.perEvent(s.broker.CPU) }),
		median(func(s serverMeasurement) float64 { return s.perEvent(s.cache.CPU) }),
		median(func(s serverMeasurement) float64 { return s.perEvent(s.load.CPU) }),
		median(serverMeasurement.allPerEvent),
		medianRound(all, func(s serverMeasurement) time.Duration { return s.load.P50 }),
		medianRound(all, func(s serverMeasurement) time.Duration { return s.load.P99 }))
}

// medianRound returns the median round's time, for the table.
func medianRound(all []serverMeasurement, figure func(serverMeasurement) time.Duration) string {
	m := spreadOf(figures(all, func(s serverMeasurement) float64 { return float64(figure(s)) })).median
	return micros(time.Duration(m))
}

// printRatio prints the ratio of rates and the ratio of CPU times. On a busy machine the ratio of
// CPU times is the better estimate of the ratio of rates on an idle machine.
func (t *table) printRatio(what string, rates, cpu []float64) spread {
	r, c := spreadOf(rates), spreadOf(cpu)
	fmt.Fprintf(t.w, "  %s %.2f (%.2f to %.2f); by the CPU of all processes %.2f (%.2f to %.2f)", what, r.median, r.min, r.max, c.median, c.min, c.max)
	return r
}

func (t *table) atLeast(what string, rates, cpu []float64, bar float64) {
	r := t.printRatio(what, rates, cpu)
	fmt.Fprintf(t.w, "; bar ≥ %.1f: %s\n", bar, t.verdict(r.median >= bar))
}

func (t *table) atHalfLoad(d *gatewayBench) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "at half load, %.0f single events/s; medians of %d rounds\tp50\tp99\tmax\n", d.rate, len(d.own.paced))
	for _, c := range d.contenders() {
		if c.stores {
			for _, part := range []struct{ name, metric string }{{"its own time", ownSeconds}, {"the broker's", ackSeconds}} {
				fmt.Fprintf(w, "  %s, %s\t%s\t%s\t\n", c.name, part.name, micros(c.serverQuantile(part.metric, 0.5)), micros(c.serverQuantile(part.metric, 0.99)))
			}
		}
		fmt.Fprintf(w, "  %s, post to answer\t%s\t%s\t%s\n", c.name,
			medianRound(c.paced, func(s serverMeasurement) time.Duration { return s.load.P50 }),
			medianRound(c.paced, func(s serverMeasurement) time.Duration { return s.load.P99 }),
			medianRound(c.paced, func(s serverMeasurement) time.Duration { return s.load.Max }))
	}
	w.Flush()
	own := d.own.serverQuantile(ownSeconds, 0.99)
	fmt.Fprintf(t.w, "  the generator's clock was up to %s late in 99 of 100 cases, which counts against no server\n",
		medianRound(d.own.paced, func(s serverMeasurement) time.Duration { return s.load.Late }))
	fmt.Fprintf(t.w, "  the door's own time p99 ≤ %s: %s\n\n", ownBar, t.verdict(own <= ownBar))
}

// serverQuantile returns the median round's quantile of one of the gateway's histograms.
func (c *contender) serverQuantile(metric string, q float64) time.Duration {
	m := spreadOf(figures(c.paced, func(s serverMeasurement) float64 { return float64(s.metrics[metric].quantile(q)) })).median
	return time.Duration(m)
}
