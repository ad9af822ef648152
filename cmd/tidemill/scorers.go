package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tidemill.dev/internal/api"
)

func scorersCommand() command {
	return command{
		name:    "scorers",
		args:    "[NAME]",
		summary: "list the scorers and how they do; with NAME, its swaps and processes",
		about: `RATE and the latencies, which begin when an event reaches the log and end when its
score does, are of the last moments, of the slowest process; LAG is how many events
are not scored yet; HELD how many wait until their models are loaded; HITS how often
a model was in memory. What is not known is shown as ?.

` + atTheGate,
		examples: []example{
			{"tidemill scorers", "a table"},
			{"tidemill scorers intents", "which versions it has swapped to, and where"},
			{"tidemill scorers -o json", "for a script"},
		},
		make: func() program { return &scorerList{output: "text"} },
	}
}

type scorerList struct {
	gate
	output string
	name   string
}

func (l *scorerList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *scorerList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	if len(positional) == 1 {
		l.name, positional = positional[0], nil
	}
	return wants(positional)
}

func (l *scorerList) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	if l.name != "" {
		shown, err := g.Scorer(ctx, l.name)
		switch {
		case err != nil:
			return err
		case l.output == "json":
			return writeIndented(s.stdout, shown)
		}
		return showScorer(s.stdout, &shown, time.Now())
	}
	all, err := g.Scorers(ctx)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(all.Scorers) == 0:
		fmt.Fprintln(s.stderr, "There are no scorers; write one under scorers: in the config.")
		return nil
	}
	if err := tabulateScorers(s.stdout, all.Scorers); err != nil {
		return err
	}
	adviseOnScorers(s.stderr, &all)
	return nil
}

func tabulateScorers(w io.Writer, all []api.Scorer) error {
	rows := [][]string{{"SCORER", "RATE", "LAG", "P50", "P99", "HELD", "SCORED", "DEAD", "MODELS", "HITS", "FROM"}}
	for i := range all {
		s := &all[i]
		row := append([]string{harmless(s.Name)}, lagAmong(s, numbersText(s.Numbers))...)
		rows = append(rows, append(row, harmless(s.From+" → "+s.To)))
	}
	return table(w, rows)
}

// numbersText are the columns of a scorer, without its lag.
func numbersText(n *api.ScorerNumbers) []string {
	if n == nil {
		return slices.Repeat([]string{unknown}, 8)
	}
	return []string{rateText(n.Rate), latency(n.P50Seconds), latency(n.P99Seconds), thousands(n.Held), thousands(int64(n.Scored)),
		thousands(int64(n.DeadLettered)), thousands(int64(n.Models)), percent(n.HitRate)}
}

// lagAmong puts the lag behind the rate: it is known from Kafka where the others
// are not.
func lagAmong(s *api.Scorer, texts []string) []string {
	lag := unknown
	if s.Lag != nil {
		lag = thousands(*s.Lag)
	}
	return slices.Insert(texts, 1, lag)
}

func rateText(rate float64) string {
	if rate > 0 && rate < 10 {
		return fmt.Sprintf("%.1f/s", rate)
	}
	return thousands(int64(rate)) + "/s"
}

func latency(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return milliseconds(time.Duration(seconds * float64(time.Second)))
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// adviseOnScorers says what is remarkable, and what can be done about it.
func adviseOnScorers(w io.Writer, all *api.Scorers) {
	switch {
	case all.Processes == nil:
		fmt.Fprintln(w, "\nHow scoring goes is not known: the gateway has no Redis, or it is away. What the scorers do does not depend on it.")
	case *all.Processes == 0:
		fmt.Fprintln(w, "\nNothing scores now: no process does. Events wait on their streams; tidemill up or tidemill serve scorer NAME starts one.")
	default:
		var idle []string
		for i := range all.Scorers {
			if s := &all.Scorers[i]; s.Processes != nil && *s.Processes == 0 {
				idle = append(idle, harmless(s.Name))
			}
		}
		if len(idle) > 0 {
			fmt.Fprintf(w, "\nNo process has %s: tidemill serve scorer %s starts one.\n", strings.Join(idle, ", "), idle[0])
		}
	}
}
