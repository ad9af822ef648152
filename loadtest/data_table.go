package main

import (
	"fmt"
	"time"
)

// The bars of data.
const (
	putBar    = 30 * time.Second
	commitBar = 50 * time.Millisecond // median
)

func (t *table) data(m *dataMeasured) {
	fmt.Fprintf(t.w, "%d files of %d B put through the door: %s, beside %s to copy them from folder to folder; bar ≤ %s for 50000: %s\n", m.files, smallFile,
		m.put.Round(time.Millisecond), m.copied.Round(time.Millisecond), putBar, t.verdict(m.put*50_000/time.Duration(m.files) <= putBar))
	p50 := m.commits.quantile(0.5)
	fmt.Fprintf(t.w, "one file more on a dataset of %d: committed in %s in the median, %s in 99 of 100 cases; bar ≤ %s: %s\n\n", m.large,
		micros(p50), micros(m.commits.quantile(0.99)), commitBar, t.verdict(p50 <= commitBar))
}
