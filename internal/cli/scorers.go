package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/api"
)

func scorersCommand() command {
	return command{
		name:    "scorers",
		lists:   true,
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
