package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func recipesCommand() command.Command {
	return command.Command{
		Name:    "recipes",
		Lists:   true,
		Watched: true,
		Summary: "list the recipes: output, pool, waiting and running runs",
		About:   connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill recipes", "a table"},
			{"tidemill recipes -o json", "for a script"},
		},
		Make: func() command.Program {
			return &standingList{list: listRecipes}
		},
	}
}

// standingList is a call that lists objects of the config with their current state.
type standingList struct {
	connect.Gate
	output string
	list   func(ctx context.Context, g *client.Gateway) (all any, rows [][]string, none string, err error)
}

func (l *standingList) Flags(f *command.FlagSet) {
	f.Format(&l.output, "text or json")
	l.Gate.Flags(f)
}

func (l *standingList) Accept(positional []string) error {
	return command.Wants(positional)
}

func (l *standingList) Run(ctx context.Context, s *command.Session, _ []string) error {
	g, done, err := l.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, rows, none, err := l.list(ctx, g)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.Stdout, all)
	case len(rows) == 1:
		fmt.Fprintln(s.Stderr, none)
		return nil
	}
	return show.Columns(s.Stdout, rows)
}

func listRecipes(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Recipes(ctx)
	rows := [][]string{{"RECIPE", "MAKES", "POOL", "KEYS", "WAITING", "RUNNING", "STATE"}}
	for i := range all.Recipes {
		r := &all.Recipes[i]
		rows = append(rows, []string{show.Harmless(r.Name), show.Harmless(r.Makes), show.Harmless(r.Pool), show.Thousands(int64(r.Keys)), show.Thousands(int64(r.Waiting)),
			show.Thousands(int64(r.Running)), restingState(r.PausedBy, r.PausedSince)})
	}
	return all.Recipes, rows, "The config has no recipes; docs/runs.md shows how to write one.", err
}

// restingState says whether an object is paused, and by which caller.
func restingState(by string, since *time.Time) string {
	if since == nil {
		return "active"
	}
	return fmt.Sprintf("paused by %s %s ago", show.Harmless(orSomebody(by)), ago(*since))
}

func recipesPauseCommand() command.Command {
	return command.Command{
		Name:    "recipes pause",
		Args:    "NAME",
		Summary: "pause a recipe: no run begins until it is resumed",
		About: `Running attempts continue to their end. Requests wait, and become one run of each key
when the recipe is resumed.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill recipes pause intent", "from now on"}},
		Make: func() command.Program {
			return &restAct{do: (*client.Gateway).PauseRecipe, done: "paused", already: "was paused already"}
		},
	}
}

func recipesResumeCommand() command.Command {
	return command.Command{
		Name:     "recipes resume",
		Args:     "NAME",
		Summary:  "resume a recipe",
		About:    connect.AtTheGate,
		Examples: []command.Example{{"tidemill recipes resume intent", "waiting runs begin"}},
		Make: func() command.Program {
			return &restAct{do: (*client.Gateway).ResumeRecipe, done: "resumed", already: "was not paused"}
		},
	}
}

// restAct is a call that pauses or resumes an object.
type restAct struct {
	connect.Gate
	do            func(*client.Gateway, context.Context, string) (api.Rested, error)
	done, already string
}

func (a *restAct) Accept(positional []string) error { return command.Wants(positional, "NAME") }

func (a *restAct) Run(ctx context.Context, s *command.Session, positional []string) error {
	g, done, err := a.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	got, err := a.do(g, ctx, positional[0])
	if err != nil {
		return err
	}
	return a.tell(s.Stdout, &got)
}

func (a *restAct) tell(w io.Writer, got *api.Rested) error {
	text := a.done + " " + show.Harmless(got.Name)
	if !got.Changed {
		text = show.Harmless(got.Name) + " " + a.already
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func poolsCommand() command.Command {
	return command.Command{
		Name:    "pools",
		Lists:   true,
		Watched: true,
		Summary: "list the pools: slots, slots in use, waiting runs",
		About: `LINGERING counts pods that have ended their run and wait for another one, for the
pool's linger. IDLE GPU TIME is the time that GPUs have waited in such pods.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill pools", "a table"},
			{"tidemill pools -o json", "for a script"},
		},
		Make: func() command.Program {
			return &standingList{list: listPools}
		},
	}
}

func listPools(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Pools(ctx)
	rows := [][]string{{"POOL", "SLOTS", "RUNNING", "WAITING", "GPUS", "LINGERING", "IDLE GPU TIME", "STATE"}}
	for i := range all.Pools {
		p := &all.Pools[i]
		slots, gpus := show.Thousands(int64(p.Slots)), fmt.Sprint(p.GPUs)
		if p.Slots == 0 {
			slots = "any"
		}
		if p.GPUs < 0 {
			gpus = unknown
		}
		rows = append(rows, []string{show.Harmless(p.Name), slots, show.Thousands(int64(p.Running)), show.Thousands(int64(p.Waiting)), gpus,
			show.Thousands(int64(p.Lingering)), (time.Duration(p.IdleSeconds) * time.Second).String(), restingState(p.PausedBy, p.PausedSince)})
	}
	return all.Pools, rows, "The config has no pools.", err
}

func poolsPauseCommand() command.Command {
	return command.Command{
		Name:    "pools pause",
		Args:    "NAME",
		Summary: "pause a pool: no attempt begins until it is resumed",
		About: `Running attempts continue to their end. Use it to empty a machine.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill pools pause gpu", "from now on"}},
		Make: func() command.Program {
			return &restAct{do: (*client.Gateway).PausePool, done: "paused", already: "was paused already"}
		},
	}
}

func poolsResumeCommand() command.Command {
	return command.Command{
		Name:     "pools resume",
		Args:     "NAME",
		Summary:  "resume a pool",
		About:    connect.AtTheGate,
		Examples: []command.Example{{"tidemill pools resume gpu", "waiting attempts begin"}},
		Make: func() command.Program {
			return &restAct{do: (*client.Gateway).ResumePool, done: "resumed", already: "was not paused"}
		},
	}
}

func schedulesCommand() command.Command {
	return command.Command{
		Name:    "schedules",
		Lists:   true,
		Watched: true,
		Summary: "list the schedules: when they ticked last and will tick next",
		About: `Times are in the time zone of each schedule. LAST and NEXT are scheduled times. A tick
is sent later if keys are spread or the controller was down.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill schedules", "a table"},
			{"tidemill schedules -o json", "for a script"},
		},
		Make: func() command.Program { return &scheduleList{} },
	}
}

type scheduleList struct {
	connect.Reach
	output string
}

func (l *scheduleList) Flags(f *command.FlagSet) {
	f.Format(&l.output, "text or json")
	l.Reach.Flags(f)
}

func (l *scheduleList) Accept(positional []string) error {
	return command.Wants(positional)
}

func (l *scheduleList) Run(ctx context.Context, s *command.Session, _ []string) error {
	g, err := l.Gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	all, err := g.Schedules(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		e := json.NewEncoder(s.Stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all.Schedules)
	}
	if len(all.Schedules) == 0 {
		fmt.Fprintln(s.Stderr, "The config has no schedules; docs/schedules.md shows how to write one.")
		return nil
	}
	return tabulateSchedules(s.Stdout, all.Schedules)
}

func tabulateSchedules(w io.Writer, all []api.Schedule) error {
	rows := [][]string{{"NAME", "CRON", "KEYS", "LAST", "NEXT", "STATE"}}
	for i := range all {
		rows = append(rows, scheduleRow(&all[i]))
	}
	return show.Columns(w, rows)
}

func scheduleRow(s *api.Schedule) []string {
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil { // this machine may not have the gateway's time zone
		zone = time.UTC
	}
	return []string{show.Harmless(s.Name), show.Harmless(s.Cron), keysOf(s), onClock(s.Last, zone, "never"), onClock(s.Next, zone, "-"), standing(s)}
}

// keysOf returns the number of keys that a schedule ticks for.
func keysOf(s *api.Schedule) string {
	switch {
	case s.Each:
		return "each key"
	case s.Keys == 0:
		return "-"
	}
	return strconv.Itoa(s.Keys)
}

// onClock formats a time in a time zone.
func onClock(at *time.Time, zone *time.Location, none string) string {
	if at == nil {
		return none
	}
	return at.In(zone).Format("2006-01-02 15:04:05 MST")
}

func standing(s *api.Schedule) string {
	if s.State != api.SchedulePaused || s.PausedSince == nil {
		return show.Harmless(string(s.State))
	}
	since := s.PausedSince.Local().Format("2006-01-02 15:04")
	if s.PausedBy == "" {
		return "paused since " + since
	}
	return fmt.Sprintf("paused by %s since %s", show.Harmless(s.PausedBy), since)
}

func schedulesPauseCommand() command.Command {
	return command.Command{
		Name:    "schedules pause",
		Args:    "NAME",
		Summary: "pause a schedule",
		About: `The schedule's setting missed selects which ticks of the pause are sent after it: none
(skip), the last one (last) or all (all).

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill schedules pause nightly", "no tick from now on"}},
		Make: func() command.Program {
			return &scheduleAct{do: (*client.Gateway).PauseSchedule, done: "paused", already: "was paused already"}
		},
	}
}

func schedulesResumeCommand() command.Command {
	return command.Command{
		Name:     "schedules resume",
		Args:     "NAME",
		Summary:  "resume a schedule",
		About:    connect.AtTheGate,
		Examples: []command.Example{{"tidemill schedules resume nightly", "and send missed ticks, as its setting missed selects"}},
		Make: func() command.Program {
			return &scheduleAct{do: (*client.Gateway).ResumeSchedule, done: "resumed", already: "was not paused"}
		},
	}
}

// scheduleAct is a call that pauses or resumes a schedule.
type scheduleAct struct {
	connect.Reach
	do            func(*client.Gateway, context.Context, string) (api.ScheduleDone, error)
	done, already string
}

func (a *scheduleAct) Flags(f *command.FlagSet) { a.Reach.Flags(f) }

func (a *scheduleAct) Accept(positional []string) error { return command.Wants(positional, "NAME") }

func (a *scheduleAct) Run(ctx context.Context, s *command.Session, positional []string) error {
	g, err := a.Gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	done, err := a.do(g, ctx, positional[0])
	if err != nil {
		return err
	}
	if !done.Changed {
		fmt.Fprintf(s.Stdout, "%s %s\n", show.Harmless(done.Schedule.Name), a.already)
		return nil
	}
	fmt.Fprintf(s.Stdout, "%s %s\n", a.done, show.Harmless(done.Schedule.Name))
	return nil
}
