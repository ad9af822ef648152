package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/internal/api"
)

// mostSwaps is how many swaps, and models among them, are told of.
const mostSwaps = 20

// showScorer prints all that is known of a scorer.
func showScorer(w io.Writer, s *api.ScorerShown, now time.Time) error {
	p := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say := func(what, format string, args ...any) {
		fmt.Fprintf(p, "%s\t%s\n", what, harmless(fmt.Sprintf(format, args...)))
	}
	say("scorer", "%s", s.Name)
	say("scores", "%s", scoredText(&s.Scorer))
	say("by", "%s, the key is %s%s", s.Model, s.Key, mapText(s.Map))
	say("no model", "%s", noModelText(&s.Scorer))
	say("delivery", "%s, engine %s", s.Delivery, s.Engine)
	if s.Lag != nil {
		say("lag", "%s", count(int(*s.Lag), "event"))
	}
	if n := s.Numbers; n != nil {
		say("now", "%s, p50 %s, p99 %s, %s held", rateText(n.Rate), latency(n.P50Seconds), latency(n.P99Seconds), thousands(n.Held))
		say("so far", "%s scored, %s passed on, %s dropped, %s became dead letters; after takeovers %s skipped, %s aborted", count(int(n.Scored), "event"),
			thousands(int64(n.Passed)), thousands(int64(n.Dropped)), thousands(int64(n.DeadLettered)), thousands(int64(n.Skipped)), count(int(n.Aborted), "transaction"))
		say("models", "%s in use, in memory at %s of uses", thousands(int64(n.Models)), percent(n.HitRate))
	} else {
		say("now", "not known: no process has told lately")
	}
	if s.LastError != "" && s.LastErrorAt != nil {
		say("last error", "%s, %s ago", s.LastError, age(now.Sub(*s.LastErrorAt)))
	}
	if err := p.Flush(); err != nil {
		return err
	}
	for _, part := range []func(io.Writer, *api.ScorerShown, time.Time) error{showVersions, showSwaps, showProcesses} {
		if err := part(w, s, now); err != nil {
			return err
		}
	}
	return nil
}

func scoredText(s *api.Scorer) string {
	types := "every event"
	if len(s.Types) > 0 {
		types = strings.Join(s.Types, ", ")
	}
	return types + " of " + s.From + ", to " + s.To
}

func mapText(m map[string]string) string {
	var b strings.Builder
	for _, input := range slices.Sorted(maps.Keys(m)) {
		b.WriteString(", " + input + " from " + m[input])
	}
	return b.String()
}

func noModelText(s *api.Scorer) string {
	switch s.NoModel {
	case "model":
		return s.Instead + " answers"
	case "pass":
		return "the event goes to " + s.To + " as it came"
	case "drop":
		return "the event is dropped"
	}
	return "the event becomes a dead letter"
}

func showVersions(w io.Writer, s *api.ScorerShown, now time.Time) error {
	if len(s.Versions) == 0 {
		return nil
	}
	rows := [][]string{{"MODEL", "VERSION", "SINCE"}}
	for _, v := range s.Versions[:min(len(s.Versions), mostSwaps)] {
		rows = append(rows, []string{harmless(v.Model), fmt.Sprint(v.Version), age(now.Sub(v.Since)) + " ago"})
	}
	return showBlock(w, "\nSwapped lately:\n", rows)
}

func showSwaps(w io.Writer, s *api.ScorerShown, now time.Time) error {
	if len(s.Swaps) == 0 {
		return nil
	}
	rows := [][]string{{"SWAP", "MODEL", "VERSION", "FIRST EVENT"}}
	for _, x := range s.Swaps[:min(len(s.Swaps), mostSwaps)] {
		versions := fmt.Sprint(x.Version)
		if x.Before > 0 {
			versions = fmt.Sprintf("%d → %d", x.Before, x.Version)
		}
		rows = append(rows, []string{age(now.Sub(x.At)) + " ago", harmless(x.Model), versions, fmt.Sprintf("%s/%d/%d", harmless(x.Stream), x.Partition, x.Offset)})
	}
	return showBlock(w, "\n", rows)
}

func showProcesses(w io.Writer, s *api.ScorerShown, now time.Time) error {
	if len(s.Running) == 0 {
		return nil
	}
	rows := [][]string{{"PROCESS", "RATE", "LAG", "P50", "P99", "SCORED", "MEMORY", "HITS", "SINCE"}}
	for i := range s.Running {
		r := &s.Running[i]
		rows = append(rows, []string{harmless(r.Host + "/" + r.ID), rateText(r.Numbers.Rate), thousands(r.Lag), latency(r.Numbers.P50Seconds),
			latency(r.Numbers.P99Seconds), thousands(int64(r.Numbers.Scored)), size(r.Bytes) + " of " + size(r.Budget), percent(r.Numbers.HitRate), age(now.Sub(r.Began)) + " ago"})
	}
	return showBlock(w, "\n", rows)
}

func showBlock(w io.Writer, title string, rows [][]string) error {
	if _, err := io.WriteString(w, title); err != nil {
		return err
	}
	return columns(w, rows)
}
