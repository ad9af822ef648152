package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/api"
)

const (
	runBar         = 16 // letters of a run's bar
	headlinedCount = 2  // metrics that a line has
)

// progressText is how far a run is, in a line.
func progressText(p *api.Progress) string {
	var parts []string
	if p.Total > 0 {
		share := min(max(p.Step/p.Total, 0), 1)
		parts = append(parts, fmt.Sprintf("[%s] %3.0f%%", bar(share, runBar), share*100), number(p.Step)+"/"+number(p.Total))
	} else if p.Step > 0 {
		parts = append(parts, "step "+number(p.Step))
	}
	if text := headline(p.Metrics); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "  ")
}

func bar(share float64, width int) string {
	full := int(share * float64(width))
	return strings.Repeat("=", full) + strings.Repeat(" ", width-full)
}

// headline is what people look at first of some metrics.
func headline(metrics map[string]float64) string {
	var parts []string
	for _, name := range telling(metrics) {
		parts = append(parts, name+" "+number(metrics[name]))
	}
	return strings.Join(parts[:min(len(parts), headlinedCount)], ", ")
}

// telling are the names of metrics, those first that say how well a model does.
func telling(metrics map[string]float64) []string {
	const first = "\x00"
	rank := func(name string) string {
		for i, better := range []string{"accuracy", "f1", "loss"} {
			if name == better {
				return first + strconv.Itoa(i)
			}
		}
		return name
	}
	return slices.SortedFunc(maps.Keys(metrics), func(a, b string) int { return strings.Compare(rank(a), rank(b)) })
}

// number is one with the digits that mean something.
func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
