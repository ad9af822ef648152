package remote

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func trialsCommand() command.Command {
	return command.Command{
		Name:    "trials",
		Lists:   true,
		Watched: true,
		Summary: "list the candidates that answer a stream beside their champion",
		About: `LEAD is the candidate's accuracy minus the champion's on the same labelled events, in
points, with bounds that are valid however often you look. DISAGREES is the share of the
events that the two label differently. "of 500" follows the number that a verdict
needs: labelled events, or answered ones if no clause is about labels.`,
		Examples: []command.Example{
			{"tidemill trials", "a table"},
			{"tidemill trials -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Trial, error) {
				all, err := g.Trials(ctx, "", "")
				return all.Trials, err
			}, trialTable)
		},
	}
}

func trialTable(all *[]api.Trial) table {
	return table{none: "No candidate is on trial.", rows: rowsOf(*all, func(t *api.Trial) []string {
		return []string{show.Harmless(tidemill.VersionName(t.Model, t.Version)), "@" + strconv.Itoa(t.Champion), ago(t.Began), answeredText(t),
			disagreement(t), labelledText(t), trialLead(t), show.Harmless(trialState(t))}
	}, "MODEL", "CHAMPION", "SINCE", "ANSWERED", "DISAGREES", "LABELLED", "LEAD", "STATE")}
}

func disagreement(t *api.Trial) string {
	if t.Answered == 0 {
		return "-"
	}
	return points(float64(t.Answered-t.Agreed)/float64(t.Answered)) + " %"
}

func points(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) }

// answeredText and labelledText name the number that a verdict needs.
func answeredText(t *api.Trial) string { return countedText(t, t.Answered, !needsLabels(t)) }

func labelledText(t *api.Trial) string { return countedText(t, t.Labelled, needsLabels(t)) }

func countedText(t *api.Trial, n int, counts bool) string {
	text := show.Thousands(int64(n))
	if counts {
		text += " of " + show.Thousands(int64(t.Terms.AtLeast))
	}
	return text
}

// needsLabels reports whether a promotion needs labelled events.
func needsLabels(t *api.Trial) bool {
	g, err := gate.CompileStream(t.Terms.Pass)
	return err != nil || g.NeedsLabels()
}

func trialLead(t *api.Trial) string {
	if t.Labelled == 0 {
		return "-"
	}
	return fmt.Sprintf("%s (%s to %s)", points(t.Lead.Value), points(t.Lead.Low), points(t.Lead.High))
}

func trialState(t *api.Trial) string {
	switch {
	case t.Error != "":
		return "waits: " + t.Error
	case t.Behind > 0:
		return "reads the past: " + show.Thousands(t.Behind) + " answers left"
	case t.Answered == 0:
		return "waits for answers of version " + strconv.Itoa(t.Champion)
	case !needsLabels(t) && t.Answered < t.Terms.AtLeast:
		return "waits for more events"
	case !needsLabels(t):
		return "no verdict yet"
	case t.Labelled == 0:
		return "waits for the first label"
	case t.Labelled < t.Terms.AtLeast:
		return "waits for more labels"
	}
	return "no verdict yet"
}

// onTrialText says how the trial of a version is going.
func onTrialText(t *api.Trial) string {
	if t.Labelled > 0 {
		return fmt.Sprintf("on trial: %s labelled, lead %s", labelledText(t), strings.Replace(trialLead(t), " (", " points (", 1))
	}
	text := fmt.Sprintf("on trial: %s answered, disagrees on %s", answeredText(t), disagreement(t))
	if needsLabels(t) {
		text += ", " + labelledText(t) + " labelled"
	}
	return text
}

func trialsShowCommand() command.Command {
	return command.Command{
		Name:    "trials show",
		Args:    "MODEL",
		Summary: "show the trial of a model: its evidence and its clauses",
		Examples: []command.Example{
			{"tidemill trials show fraud/shop-7", "each clause with its value"},
			{"tidemill trials show fraud/shop-7 -o json", "for a script"},
		},
		Make: func() command.Program { return showing(trialOf, showTrial) },
	}
}

// trialOf returns the trial of a model.
func trialOf(g *client.Gateway, ctx context.Context, name string) (api.Trial, error) {
	model, _, err := versionArg(name)
	if err != nil {
		return api.Trial{}, err
	}
	all, err := g.Trials(ctx, "", model)
	if err == nil && len(all.Trials) == 0 {
		err = fmt.Errorf("model %s has no version on trial; tidemill models show %[1]s shows how its versions were judged", show.Harmless(model))
	}
	if err != nil {
		return api.Trial{}, err
	}
	return all.Trials[0], nil
}

func showTrial(w io.Writer, t *api.Trial) error {
	rows := [][]string{
		{"Candidate", show.Harmless(tidemill.VersionName(t.Model, t.Version)) + ", against version " + strconv.Itoa(t.Champion)},
		{"Stream", "that of scorer " + show.Harmless(t.Scorer) + ", for " + ago(t.Began) + "; given up after " + age(t.Terms.Until)},
		{"Answered", fmt.Sprintf("%s events, disagrees on %s, %s, p99 %s ms", answeredText(t), disagreement(t), show.Count(t.Errors, "error"), number(t.P99))},
		{"Labelled", fmt.Sprintf("%s events: only the candidate is right on %s, only the champion on %s", labelledText(t), show.Thousands(int64(t.Wins)), show.Thousands(int64(t.Losses)))},
		{"Lead", strings.Replace(trialLead(t), " (", " points (", 1)},
		{"Budget", fmt.Sprintf("%s of the recipe in 30 days: the lower bound is wrong with a probability of at most %s", show.Count(t.Budget.Trials, "trial"), strconv.FormatFloat(t.Budget.Level, 'g', 3, 64))},
		{"State", show.Harmless(trialState(t))},
	}
	if err := show.Columns(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	clauses := [][]string{{"CLAUSE", "NOW", ""}}
	for _, c := range t.Clauses {
		now := "fails"
		if c.Passed {
			now = "holds"
		}
		clauses = append(clauses, []string{show.Harmless(c.Text), now, show.Harmless(clauseValues(&c))})
	}
	return show.Columns(w, clauses)
}

func clauseValues(c *tidemill.Clause) string {
	if c.Note != "" {
		return c.Note
	}
	var all []string
	for _, name := range telling(c.Values) {
		all = append(all, name+" "+number(c.Values[name]))
	}
	return strings.Join(all, ", ")
}

func judgeCommand() command.Command {
	return command.Command{
		Name:    "judge",
		Args:    "MODEL@VERSION",
		Summary: "compute the verdict of a trial again from the streams",
		About: `The gateway reads the records that the verdict names, the candidate answers the events
again, and the counts, bounds and clauses must be the same. The speed was measured, so
the recorded one counts. Nothing is changed.`,
		Examples: []command.Example{
			{"tidemill judge --again fraud/shop-7@8", "exit 1 if anything differs"},
			{"tidemill judge --again fraud/shop-7@8 -o json", "both verdicts"},
		},
		Make: func() command.Program {
			p := &judgeAgain{}
			return &request{json: true, flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type judgeAgain struct{ again bool }

func (p *judgeAgain) flags(f *command.FlagSet) {
	f.Yes(&p.again, "again", "compute a recorded verdict again")
}

func (p *judgeAgain) accept(positional []string) error {
	if !p.again {
		return command.Usagef("give --again: versions are judged by the gates and trials of their recipes")
	}
	_, which, err := versionArg(positional[0])
	if err == nil && which == "" {
		err = command.Usagef("%q names no version: write one after an @", positional[0])
	}
	return err
}

func (p *judgeAgain) do(ctx context.Context, c *call) error {
	model, which, err := versionArg(c.positional[0])
	if err != nil {
		return err
	}
	got, err := c.g.Rejudge(ctx, model, which)
	if err != nil {
		return err
	}
	if c.json {
		if err := writeIndented(c.Stdout, got); err != nil {
			return err
		}
	} else {
		a := &got.Again
		fmt.Fprintf(c.Stdout, "%s: %s\n", show.Harmless(tidemill.VersionName(got.Model, got.Version)), show.Harmless(string(a.Outcome)))
		fmt.Fprintf(c.Stdout, "%s, %s labelled, only the candidate is right on %s, only the champion on %s; lead %s points (%s to %s)\n", show.Count(a.Answered, "event"),
			show.Thousands(int64(a.Labelled)), show.Thousands(int64(a.Wins)), show.Thousands(int64(a.Losses)), points(a.Lead.Value), points(a.Lead.Low), points(a.Lead.High))
		fmt.Fprintf(c.Stdout, "digest %s\n", show.Harmless(a.Digest))
	}
	if len(got.Differs) > 0 {
		return fmt.Errorf("the verdict computed again differs from the recorded one in: %s; was the map of scorer %s changed since, or does another engine answer here", strings.Join(got.Differs, ", "), show.Harmless(got.Recorded.Scorer))
	}
	if !c.json {
		fmt.Fprintln(c.Stdout, "The same as the recorded verdict.")
	}
	return nil
}
