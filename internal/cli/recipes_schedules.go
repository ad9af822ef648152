package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

func recipesCommand() command {
	return command{
		name:    "recipes",
		lists:   true,
		watched: true,
		summary: "list the recipes: output, pool, waiting and running runs",
		about:   atTheGate,
		examples: []example{
			{"tidemill recipes", "a table"},
			{"tidemill recipes -o json", "for a script"},
		},
		make: func() program {
			return &standingList{output: "text", list: listRecipes}
		},
	}
}

// standingList is a call that lists objects of the config with their current state.
type standingList struct {
	gate
	output string
	list   func(ctx context.Context, g *client.Gateway) (all any, rows [][]string, none string, err error)
}

func (l *standingList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *standingList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *standingList) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, rows, none, err := l.list(ctx, g)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(rows) == 1:
		fmt.Fprintln(s.stderr, none)
		return nil
	}
	return columns(s.stdout, rows)
}

func listRecipes(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Recipes(ctx)
	rows := [][]string{{"RECIPE", "MAKES", "POOL", "KEYS", "WAITING", "RUNNING", "STATE"}}
	for i := range all.Recipes {
		r := &all.Recipes[i]
		rows = append(rows, []string{harmless(r.Name), harmless(r.Makes), harmless(r.Pool), thousands(int64(r.Keys)), thousands(int64(r.Waiting)),
			thousands(int64(r.Running)), restingState(r.PausedBy, r.PausedSince)})
	}
	return all.Recipes, rows, "The config has no recipes; docs/runs.md shows how to write one.", err
}

// restingState says whether an object is paused, and by which caller.
func restingState(by string, since *time.Time) string {
	if since == nil {
		return "active"
	}
	return fmt.Sprintf("paused by %s %s ago", harmless(orSomebody(by)), ago(*since))
}

func recipesPauseCommand() command {
	return command{
		name:    "recipes pause",
		args:    "NAME",
		summary: "pause a recipe: no run begins until it is resumed",
		about: `Running attempts continue to their end. Requests wait, and become one run of each key
when the recipe is resumed.

` + atTheGate,
		examples: []example{{"tidemill recipes pause intent", "from now on"}},
		make: func() program {
			return &restAct{do: (*client.Gateway).PauseRecipe, done: "paused", already: "was paused already"}
		},
	}
}

func recipesResumeCommand() command {
	return command{
		name:     "recipes resume",
		args:     "NAME",
		summary:  "resume a recipe",
		about:    atTheGate,
		examples: []example{{"tidemill recipes resume intent", "waiting runs begin"}},
		make: func() program {
			return &restAct{do: (*client.Gateway).ResumeRecipe, done: "resumed", already: "was not paused"}
		},
	}
}

// restAct is a call that pauses or resumes an object.
type restAct struct {
	gate
	do            func(*client.Gateway, context.Context, string) (api.Rested, error)
	done, already string
}

func (a *restAct) accept(positional []string) error { return wants(positional, "NAME") }

func (a *restAct) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := a.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	got, err := a.do(g, ctx, positional[0])
	if err != nil {
		return err
	}
	return a.tell(s.stdout, &got)
}

func (a *restAct) tell(w io.Writer, got *api.Rested) error {
	text := a.done + " " + harmless(got.Name)
	if !got.Changed {
		text = harmless(got.Name) + " " + a.already
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func poolsCommand() command {
	return command{
		name:    "pools",
		lists:   true,
		watched: true,
		summary: "list the pools: slots, slots in use, waiting runs",
		about: `LINGERING counts pods that have ended their run and wait for another one, for the
pool's linger. IDLE GPU TIME is the time that GPUs have waited in such pods.

` + atTheGate,
		examples: []example{
			{"tidemill pools", "a table"},
			{"tidemill pools -o json", "for a script"},
		},
		make: func() program {
			return &standingList{output: "text", list: listPools}
		},
	}
}

func listPools(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Pools(ctx)
	rows := [][]string{{"POOL", "SLOTS", "RUNNING", "WAITING", "GPUS", "LINGERING", "IDLE GPU TIME", "STATE"}}
	for i := range all.Pools {
		p := &all.Pools[i]
		slots, gpus := thousands(int64(p.Slots)), fmt.Sprint(p.GPUs)
		if p.Slots == 0 {
			slots = "any"
		}
		if p.GPUs < 0 {
			gpus = unknown
		}
		rows = append(rows, []string{harmless(p.Name), slots, thousands(int64(p.Running)), thousands(int64(p.Waiting)), gpus,
			thousands(int64(p.Lingering)), (time.Duration(p.IdleSeconds) * time.Second).String(), restingState(p.PausedBy, p.PausedSince)})
	}
	return all.Pools, rows, "The config has no pools.", err
}

func poolsPauseCommand() command {
	return command{
		name:    "pools pause",
		args:    "NAME",
		summary: "pause a pool: no attempt begins until it is resumed",
		about: `Running attempts continue to their end. Use it to empty a machine.

` + atTheGate,
		examples: []example{{"tidemill pools pause gpu", "from now on"}},
		make: func() program {
			return &restAct{do: (*client.Gateway).PausePool, done: "paused", already: "was paused already"}
		},
	}
}

func poolsResumeCommand() command {
	return command{
		name:     "pools resume",
		args:     "NAME",
		summary:  "resume a pool",
		about:    atTheGate,
		examples: []example{{"tidemill pools resume gpu", "waiting attempts begin"}},
		make: func() program {
			return &restAct{do: (*client.Gateway).ResumePool, done: "resumed", already: "was not paused"}
		},
	}
}

func schedulesCommand() command {
	return command{
		name:    "schedules",
		lists:   true,
		watched: true,
		summary: "list the schedules: when they ticked last and will tick next",
		about: `Times are in the time zone of each schedule. LAST and NEXT are scheduled times. A tick
is sent later if keys are spread or the controller was down.

` + atTheGate,
		examples: []example{
			{"tidemill schedules", "a table"},
			{"tidemill schedules -o json", "for a script"},
		},
		make: func() program { return &scheduleList{output: "text"} },
	}
}

type scheduleList struct {
	reach
	output string
}

func (l *scheduleList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.reach.flags(f)
}

func (l *scheduleList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *scheduleList) run(ctx context.Context, s *session, _ []string) error {
	g, err := l.gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	all, err := g.Schedules(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		e := json.NewEncoder(s.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all.Schedules)
	}
	if len(all.Schedules) == 0 {
		fmt.Fprintln(s.stderr, "The config has no schedules; docs/schedules.md shows how to write one.")
		return nil
	}
	return tabulateSchedules(s.stdout, all.Schedules)
}

func tabulateSchedules(w io.Writer, all []api.Schedule) error {
	rows := [][]string{{"NAME", "CRON", "KEYS", "LAST", "NEXT", "STATE"}}
	for i := range all {
		rows = append(rows, scheduleRow(&all[i]))
	}
	return columns(w, rows)
}

func scheduleRow(s *api.Schedule) []string {
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil { // this machine may not have the gateway's time zone
		zone = time.UTC
	}
	return []string{harmless(s.Name), harmless(s.Cron), keysOf(s), onClock(s.Last, zone, "never"), onClock(s.Next, zone, "-"), standing(s)}
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
		return harmless(string(s.State))
	}
	since := s.PausedSince.Local().Format("2006-01-02 15:04")
	if s.PausedBy == "" {
		return "paused since " + since
	}
	return fmt.Sprintf("paused by %s since %s", harmless(s.PausedBy), since)
}

func schedulesPauseCommand() command {
	return command{
		name:    "schedules pause",
		args:    "NAME",
		summary: "pause a schedule",
		about: `The schedule's setting missed selects which ticks of the pause are sent after it: none
(skip), the last one (last) or all (all).

` + atTheGate,
		examples: []example{{"tidemill schedules pause nightly", "no tick from now on"}},
		make: func() program {
			return &scheduleAct{do: (*client.Gateway).PauseSchedule, done: "paused", already: "was paused already"}
		},
	}
}

func schedulesResumeCommand() command {
	return command{
		name:     "schedules resume",
		args:     "NAME",
		summary:  "resume a schedule",
		about:    atTheGate,
		examples: []example{{"tidemill schedules resume nightly", "and send missed ticks, as its setting missed selects"}},
		make: func() program {
			return &scheduleAct{do: (*client.Gateway).ResumeSchedule, done: "resumed", already: "was not paused"}
		},
	}
}

// scheduleAct is a call that pauses or resumes a schedule.
type scheduleAct struct {
	reach
	do            func(*client.Gateway, context.Context, string) (api.ScheduleDone, error)
	done, already string
}

func (a *scheduleAct) flags(f *flagSet) { a.reach.flags(f) }

func (a *scheduleAct) accept(positional []string) error { return wants(positional, "NAME") }

func (a *scheduleAct) run(ctx context.Context, s *session, positional []string) error {
	g, err := a.gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	done, err := a.do(g, ctx, positional[0])
	if err != nil {
		return err
	}
	if !done.Changed {
		fmt.Fprintf(s.stdout, "%s %s\n", harmless(done.Schedule.Name), a.already)
		return nil
	}
	fmt.Fprintf(s.stdout, "%s %s\n", a.done, harmless(done.Schedule.Name))
	return nil
}
