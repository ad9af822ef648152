package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// request is a command that needs a gateway.
type request struct {
	connect.Gate
	json   bool                            // whether the command has -o
	quiet  bool                            // whether the command reports delays itself
	flags  func(*command.FlagSet)          // the command's own flags; nil if there are none
	accept func(positional []string) error // nil if flags and arguments exclude nothing
	do     func(context.Context, *call) error
	output string // text or json
}

// call is one call of a request.
type call struct {
	*command.Session
	g          *client.Gateway
	positional []string
	json       bool // whether JSON is asked for
}

// optional returns an argument that may be missing.
func (c *call) optional(i int) string {
	if i < len(c.positional) {
		return c.positional[i]
	}
	return ""
}

func (r *request) Flags(f *command.FlagSet) {
	if r.flags != nil {
		r.flags(f)
	}
	if r.json {
		f.Format(&r.output, "text or json")
	}
	r.Gate.Flags(f)
}

func (r *request) Accept(positional []string) error {
	if r.accept == nil {
		return nil
	}
	return r.accept(positional)
}

func (r *request) Run(ctx context.Context, s *command.Session, positional []string) error {
	enter := r.Enter
	if r.quiet {
		enter = r.EnterQuietly
	}
	g, done, err := enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	return r.do(ctx, &call{Session: s, g: g, positional: positional, json: r.output == "json"})
}

// with adds a command's own flags, and the check of what they exclude.
func (r *request) with(flags func(*command.FlagSet), accept func(positional []string) error) *request {
	r.flags, r.accept = flags, accept
	return r
}

// asking is a command that asks for one answer. It prints the answer as text, or all of it with -o json.
func asking[T any](ask func(ctx context.Context, g *client.Gateway, positional []string) (T, error), print func(s *command.Session, answer *T) error) *request {
	return &request{json: true, do: func(ctx context.Context, c *call) error {
		answer, err := ask(ctx, c.g, c.positional)
		switch {
		case err != nil:
			return err
		case c.json:
			return writeIndented(c.Stdout, answer)
		}
		return print(c.Session, &answer)
	}}
}

// showing is a command that shows the object that its argument names.
func showing[T any](get func(*client.Gateway, context.Context, string) (T, error), print func(io.Writer, *T) error) *request {
	return asking(func(ctx context.Context, g *client.Gateway, positional []string) (T, error) {
		return get(g, ctx, positional[0])
	},
		func(s *command.Session, answer *T) error { return print(s.Stdout, answer) })
}

// listing is a command that lists objects.
func listing[T any](list func(context.Context, *client.Gateway) (T, error), tabulate func(*T) table) *request {
	return asking(func(ctx context.Context, g *client.Gateway, _ []string) (T, error) { return list(ctx, g) },
		func(s *command.Session, answer *T) error { return tabulate(answer).print(s) })
}

// table is what people see of a list.
type table struct {
	rows   [][]string // the first row has the names of the columns
	none   string     // sentence for a list without objects
	right  bool       // whether the columns are numbers, but for the first and the last
	advice func(io.Writer)
}

func (t table) print(s *command.Session) error {
	if len(t.rows) == 1 {
		fmt.Fprintln(s.Stderr, t.none)
		return nil
	}
	print := show.Columns
	if t.right {
		print = show.Table
	}
	if err := print(s.Stdout, t.rows); err != nil {
		return err
	}
	if t.advice != nil {
		t.advice(s.Stderr)
	}
	return nil
}

// rowsOf returns a table's rows, one for each object.
func rowsOf[T any](all []T, row func(*T) []string, columns ...string) [][]string {
	rows := [][]string{columns}
	for i := range all {
		rows = append(rows, row(&all[i]))
	}
	return rows
}

// pages has the flags of a list that may be long.
type pages struct {
	limit int
	after string
}

const onePage = 1000 // the longest page that the gateway sends

func (p *pages) add(f *command.FlagSet) {
	p.limit = 50
	f.Number(&p.limit, "limit", "n", "COUNT", "show at most this many")
	afterFlag(f, &p.after)
}

func (p *pages) check() error {
	if p.limit < 1 {
		return command.Usagef("--limit %d: give 1 or more", p.limit)
	}
	return nil
}

// afterFlag adds the flag that continues a list that was cut.
func afterFlag(f *command.FlagSet, p *string) {
	f.Text(p, "after", "", "NEXT", "continue a list that was cut: the value that it printed (in JSON next, or the cursor of dead letters)")
}

// gather reads pages until it has enough objects. It returns them with the start of the next page.
func gather[T any](limit int, after string, page func(limit int, after string) ([]T, string, error)) ([]T, string, error) {
	all := []T{}
	for {
		more, next, err := page(min(limit-len(all), onePage), after)
		all = append(all, more...)
		if after = next; err != nil || next == "" || len(all) >= limit {
			return all, next, err
		}
	}
}

// nothing says why a list is empty.
func nothing(selects bool, object, none string) string {
	if selects {
		return "No " + object + " matches; without flags all are listed."
	}
	return none
}

// sayCut begins the advice below a list. It says how many objects are shown, if there are more, and how many there
// are, if that is known.
func sayCut(w io.Writer, shown int, total *int, object, next string) {
	fmt.Fprintln(w)
	switch {
	case next == "":
	case total == nil:
		fmt.Fprintf(w, "There are more than these %s; --after %s shows the next ones, --limit more of them.\n", show.Thousands(int64(shown)), show.Harmless(next))
	default:
		fmt.Fprintf(w, "These are %s of %s; --after %s shows the next ones, --limit more of them.\n", show.Thousands(int64(shown)), show.Count(*total, object), show.Harmless(next))
	}
}

// switching is a command that changes one object between two states, such as paused and resumed.
func switching(set func(g *client.Gateway, ctx context.Context, name string) (api.Rested, error), done, already string) *request {
	return &request{do: func(ctx context.Context, c *call) error {
		got, err := set(c.g, ctx, c.positional[0])
		if err != nil {
			return err
		}
		return tellSwitched(c.Stdout, &got, got.Name, done, already)
	}}
}

// reasonFlag adds the flag for the reason of a change.
func reasonFlag(f *command.FlagSet, p *string) {
	f.Text(p, "reason", "", "TEXT", "reason, shown later with the change")
}

func tellSwitched(w io.Writer, got *api.Rested, name, done, already string) error {
	text := done + " " + show.Harmless(name)
	if !got.Changed {
		text = show.Harmless(name) + " " + already
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// writeIndented prints indented JSON without control characters, because it may have events in it
// and be shown on a terminal.
func writeIndented(w io.Writer, v any) error {
	var line, pretty bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	if err := json.Indent(&pretty, show.HarmlessJSON(bytes.TrimSpace(line.Bytes())), "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, &pretty)
	return err
}

// inWordsOf replaces the field of the API at the beginning of a refusal by the command's own word for it.
func inWordsOf(err error, field, own string) error {
	p, refused := errors.AsType[*api.Problem](err)
	if !refused || !strings.HasPrefix(p.Detail, field) {
		return err
	}
	return &reworded{err, strings.Replace(err.Error(), p.Detail, own+strings.TrimPrefix(p.Detail, field), 1)}
}

// reworded is an error in other words.
type reworded struct {
	of   error
	text string
}

func (r *reworded) Error() string { return r.text }
func (r *reworded) Unwrap() error { return r.of }

// labelledLines returns a function that prints a line with a label and a text.
func labelledLines(w io.Writer) (say func(what, text string), flush func() error) {
	rows := [][]string{}
	return func(what, text string) {
		if text != "" {
			rows = append(rows, []string{what, show.Harmless(text)})
		}
	}, func() error { return show.Columns(w, rows) }
}

// Nouns returns the commands about the nouns of an install.
func Nouns() []command.Noun {
	return []command.Noun{
		{ID: "streams", Title: "Streams", Commands: []command.Command{streamsCommand(), publishCommand(), tailCommand(), kafkaConfigCommand()}},
		{ID: "triggers", Title: "Triggers, schedules and dead letters", Commands: []command.Command{
			triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
			schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
			lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand()}},
		{ID: "data", Title: "Data", Commands: []command.Command{
			dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand()}},
		{ID: "runs", Title: "Runs, recipes and pools", Commands: []command.Command{
			runsCommand(), runsShowCommand(), logsCommand(), runsGetCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), whyCommand(), tryCommand(),
			recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand()}},
		{ID: "models", Title: "Models", Commands: []command.Command{
			fleetCommand(), driftCommand(), modelsCommand(), modelsShowCommand(), modelsGetCommand(), compareCommand(), promoteCommand(), refuseCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
			trialsCommand(), trialsShowCommand(), judgeCommand(),
			promotionsCommand(), promotionsFreezeCommand(), promotionsThawCommand(),
			rolloutsCommand(), rolloutsShowCommand(), rolloutsPauseCommand(), rolloutsResumeCommand(), rolloutsAbortCommand()}},
		{ID: "scorers", Title: "Scorers and outcomes", Commands: []command.Command{scorersCommand(), scoreCommand(), rescoreCommand(), outcomesCommand(), labelCommand()}},
	}
}
