package main

import (
	"fmt"
	"text/tabwriter"
	"time"
)

// The bars of runs.
const (
	beginBar     = 20 * time.Millisecond  // median time from published to started
	beginLateBar = 100 * time.Millisecond // 99th percentile of the same
	runsBar      = 150                    // runs per second
	forkBar      = 0.3                    // share of bare processes per second
	laptopBar    = 400e6                  // resident bytes
)

func (t *table) runs(m *runsMeasured) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "event published to command started, at %d events/s, %d events\tp50\tp99\tmax\n", runsPaced, m.paced)
	row := func(name string, s sample) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, micros(s.quantile(0.5)), micros(s.quantile(0.99)), micros(s.quantile(1)))
	}
	row("tidemill up", m.begin)
	row("bare fork and exec of the same command", m.fork)
	row("bare loopback hop", m.hop)
	w.Flush()
	p50, p99 := m.begin.quantile(0.5), m.begin.quantile(0.99)
	fmt.Fprintf(t.w, "  p50 ≤ %s: %s · p99 ≤ %s: %s\n\n", beginBar, t.verdict(p50 <= beginBar), beginLateBar, t.verdict(p99 <= beginLateBar))

	rate, bare := float64(m.runs)/m.took.Seconds(), float64(m.runs)/m.bare.Seconds()
	fmt.Fprintf(t.w, "%d bots created at once, %d slots: each exactly one run: %s\n", m.runs, runSlots, t.verdict(m.lost == 0 && m.doubled == 0))
	fmt.Fprintf(t.w, "  %.0f runs/s beside %.0f bare processes/s; bar ≥ %d/s: %s · ratio %.2f; bar ≥ %.1f: %s\n", rate, bare, runsBar, t.verdict(rate >= runsBar),
		rate/bare, forkBar, t.verdict(rate/bare >= forkBar))
	fmt.Fprintf(t.w, "  the laptop's process: %.0f MB resident; bar < %.0f MB: %s\n\n", float64(m.weighs.Resident)/1e6, laptopBar/1e6, t.verdict(float64(m.weighs.Resident) < laptopBar))
	t.data(&m.data)
}
