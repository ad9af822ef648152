//go:build cluster

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// bar is a measured time, with another time of the same run for comparison, because the times
// depend on the machine.
type bar struct {
	what   string
	is     []time.Duration
	floor  string
	floors []time.Duration
	wanted string
	more   string // stages and CPU times
}

// TestBars prints the bars. It does not fail on slow figures, because they mean something only on a
// machine without other work.
func TestBars(t *testing.T) {
	w := cluster(t)
	bars := []bar{
		w.barAwake(t, "alone", true),
		w.barAwake(t, "one-behind-another", false),
		w.barFromZero(t),
		w.barPodGone(t, "brief"),
		w.barPodGone(t, "short"),
		w.barSwap(t),
		w.barFirstScore(t),
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tN\tP50\tP99\tWANTED\tBESIDE\tP50\tP99")
	for _, b := range bars {
		fmt.Fprintf(table, "%s\t%d\t%v\t%v\t%s\t%s\t%s\t%s\n", b.what, len(b.is), quantile(b.is, 50), quantile(b.is, 99), b.wanted,
			b.floor, quantile(b.floors, 50), quantile(b.floors, 99))
	}
	must(t, table.Flush())
	for _, b := range bars {
		if b.more != "" {
			fmt.Fprintf(&out, "\n%s\n%s", b.what, b.more)
		}
	}
	fmt.Fprintf(t.Output(), "%s\n%s", out.String(), w.idle(t))
}

// quantile returns a percentile; if there are few values, it returns the greatest.
func quantile(all []time.Duration, percent int) string {
	if len(all) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(all))
	at := (len(sorted)*percent + 99) / 100
	return sorted[max(at, 1)-1].Round(100 * time.Microsecond).String()
}
