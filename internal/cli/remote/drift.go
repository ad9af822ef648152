package remote

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/client"
)

func driftCommand() command.Command {
	return command.Command{
		Name:    "drift",
		Lists:   true,
		Watched: true,
		Summary: "list the figures of models that have drifted",
		About: `A figure has drifted if the champion's last answers differ from its first ones by more than chance, in a scorer with drift.
BEFORE and NOW are the shares of VALUE in the first and in the last answers.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill drift", "all"},
			{"tidemill drift --recipe intent", "models of one recipe"},
			{"tidemill drift -o json", "for a script"},
		},
		Make: func() command.Program { return &driftList{limit: 50} },
	}
}

type driftList struct {
	connect.Gate
	q      client.ModelQuery
	output string
	limit  int
}

func (l *driftList) Flags(f *command.FlagSet) {
	f.Text(&l.q.Recipe, "recipe", "r", "NAME", "only models of this recipe")
	f.Text(&l.q.Key, "key", "", "KEY", "only models of this key")
	f.Text(&l.q.Prefix, "prefix", "", "NAME", "only models whose names begin with this")
	f.Number(&l.limit, "limit", "n", "COUNT", "show at most this many models")
	afterFlag(f, &l.q.After)
	f.Format(&l.output, "text or json")
	l.Gate.Flags(f)
}

func (l *driftList) Accept(positional []string) error {
	if l.limit < 1 {
		return command.Usagef("--limit %d: give 1 or more", l.limit)
	}
	return command.Wants(positional)
}

func (l *driftList) Run(ctx context.Context, s *command.Session, _ []string) error {
	g, done, err := l.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	l.q.Drifting = true
	page, err := gatherModels(ctx, g, l.q, l.limit)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.Stdout, page)
	case len(page.Models) == 0:
		fmt.Fprintln(s.Stderr, "No model has drifted. Scorers with drift in the config are watched.")
		return nil
	}
	if err := tabulateDrift(s.Stdout, page.Models, time.Now()); err != nil {
		return err
	}
	fmt.Fprintln(s.Stderr)
	if page.Next != "" {
		fmt.Fprintf(s.Stderr, "%s; --after %s shows the next ones, --limit more of them.\n", shownOf(len(page.Models), &page.Total, "model"), show.Harmless(page.Next))
	}
	first := &page.Models[0]
	fmt.Fprintf(s.Stderr, "Next: tidemill runs start %s --key %s trains the first one on the data of today.\n", show.Harmless(first.Recipe), show.Harmless(first.Key))
	return nil
}

func tabulateDrift(w io.Writer, all []api.ModelShown, now time.Time) error {
	rows := [][]string{{"MODEL", "FIGURE", "VALUE", "BEFORE", "NOW", "SINCE", "EVIDENCE", "REPORTED"}}
	for i := range all {
		for _, d := range all[i].Drifts {
			rows = append(rows, []string{show.Cut(show.Harmless(all[i].Name), 60) + "@" + strconv.Itoa(d.Version), show.Harmless(d.Figure), show.Cut(show.Harmless(d.Value), 30),
				figure(d.Before), figure(d.Now), show.Harmless(d.Since), evidenceText(d.Evidence), age(now.Sub(d.At))})
		}
	}
	return show.Columns(w, rows)
}

// evidenceText writes an e-value with two digits.
func evidenceText(e float64) string { return strconv.FormatFloat(e, 'g', 2, 64) }

// driftText says how a figure has changed, such as labels: refund 0.100 → 0.412.
func driftText(d *fold.Drift) string { return DriftText(&d.ModelDrifted) }

// DriftText says how a figure has changed, and since which position.
func DriftText(d *tidemill.ModelDrifted) string {
	return fmt.Sprintf("%s: %s %s → %s since %s", d.Figure, d.Value, figure(d.Before), figure(d.Now), d.Since)
}
