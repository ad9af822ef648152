package remote

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func recipesCommand() command.Command {
	return command.Command{
		Name:    "recipes",
		Lists:   true,
		Watched: true,
		Summary: "list the recipes: output, pool, waiting and running runs",
		Examples: []command.Example{
			{"tidemill recipes", "a table"},
			{"tidemill recipes -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Recipe, error) {
				all, err := g.Recipes(ctx)
				return all.Recipes, err
			}, recipeTable)
		},
	}
}

func recipeTable(all *[]api.Recipe) table {
	return table{none: "The config has no recipes; docs/runs.md shows how to write one.", rows: rowsOf(*all, func(r *api.Recipe) []string {
		return []string{show.Harmless(r.Name), show.Harmless(r.Makes), show.Harmless(r.Pool), show.Thousands(int64(r.Keys)), show.Thousands(int64(r.Waiting)),
			show.Thousands(int64(r.Running)), activeOrPaused(r.PausedBy, r.PausedSince)}
	}, "RECIPE", "MAKES", "POOL", "KEYS", "WAITING", "RUNNING", "STATE")}
}

// activeOrPaused says whether an object is paused, and by which caller.
func activeOrPaused(by string, since *time.Time) string {
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
when the recipe is resumed.`,
		Examples: []command.Example{{"tidemill recipes pause intent", "from now on"}},
		Make:     func() command.Program { return pausing((*client.Gateway).PauseRecipe) },
	}
}

func recipesResumeCommand() command.Command {
	return command.Command{
		Name:     "recipes resume",
		Args:     "NAME",
		Summary:  "resume a recipe",
		Examples: []command.Example{{"tidemill recipes resume intent", "waiting runs begin"}},
		Make:     func() command.Program { return resuming((*client.Gateway).ResumeRecipe) },
	}
}

func pausing(set func(g *client.Gateway, ctx context.Context, name string) (api.Rested, error)) command.Program {
	return switching(set, "paused", "was paused already")
}

func resuming(set func(g *client.Gateway, ctx context.Context, name string) (api.Rested, error)) command.Program {
	return switching(set, "resumed", "was not paused")
}

func poolsCommand() command.Command {
	return command.Command{
		Name:    "pools",
		Lists:   true,
		Watched: true,
		Summary: "list the pools: slots, slots in use, waiting runs",
		About: `LINGERING counts pods that have ended their run and wait for another one, for the
pool's linger. IDLE GPU TIME is the time that GPUs have waited in such pods.`,
		Examples: []command.Example{
			{"tidemill pools", "a table"},
			{"tidemill pools -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Pool, error) {
				all, err := g.Pools(ctx)
				return all.Pools, err
			}, poolTable)
		},
	}
}

func poolTable(all *[]api.Pool) table {
	return table{none: "The config has no pools.", rows: rowsOf(*all, func(p *api.Pool) []string {
		slots, gpus := show.Thousands(int64(p.Slots)), fmt.Sprint(p.GPUs)
		if p.Slots == 0 {
			slots = "any"
		}
		if p.GPUs < 0 {
			gpus = unknown
		}
		return []string{show.Harmless(p.Name), slots, show.Thousands(int64(p.Running)), show.Thousands(int64(p.Waiting)), gpus,
			show.Thousands(int64(p.Lingering)), (time.Duration(p.IdleSeconds) * time.Second).String(), activeOrPaused(p.PausedBy, p.PausedSince)}
	}, "POOL", "SLOTS", "RUNNING", "WAITING", "GPUS", "LINGERING", "IDLE GPU TIME", "STATE")}
}

func poolsPauseCommand() command.Command {
	return command.Command{
		Name:     "pools pause",
		Args:     "NAME",
		Summary:  "pause a pool: no attempt begins until it is resumed",
		About:    `Running attempts continue to their end. Use it to empty a machine.`,
		Examples: []command.Example{{"tidemill pools pause gpu", "from now on"}},
		Make:     func() command.Program { return pausing((*client.Gateway).PausePool) },
	}
}

func poolsResumeCommand() command.Command {
	return command.Command{
		Name:     "pools resume",
		Args:     "NAME",
		Summary:  "resume a pool",
		Examples: []command.Example{{"tidemill pools resume gpu", "waiting attempts begin"}},
		Make:     func() command.Program { return resuming((*client.Gateway).ResumePool) },
	}
}

func schedulesCommand() command.Command {
	return command.Command{
		Name:    "schedules",
		Lists:   true,
		Watched: true,
		Summary: "list the schedules: when they ticked last and will tick next",
		About: `Times are in the time zone of each schedule. LAST and NEXT are scheduled times. A tick
is sent later if keys are spread or the controller was down.`,
		Examples: []command.Example{
			{"tidemill schedules", "a table"},
			{"tidemill schedules -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Schedule, error) {
				all, err := g.Schedules(ctx)
				return all.Schedules, err
			}, scheduleTable)
		},
	}
}

func scheduleTable(all *[]api.Schedule) table {
	return table{none: "The config has no schedules; docs/schedules.md shows how to write one.",
		rows: rowsOf(*all, scheduleRow, "NAME", "CRON", "KEYS", "LAST", "NEXT", "STATE")}
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
(skip), the last one (last) or all (all).`,
		Examples: []command.Example{{"tidemill schedules pause nightly", "no tick from now on"}},
		Make:     func() command.Program { return pausing(ofSchedule((*client.Gateway).PauseSchedule)) },
	}
}

func schedulesResumeCommand() command.Command {
	return command.Command{
		Name:     "schedules resume",
		Args:     "NAME",
		Summary:  "resume a schedule",
		Examples: []command.Example{{"tidemill schedules resume nightly", "and send missed ticks, as its setting missed selects"}},
		Make:     func() command.Program { return resuming(ofSchedule((*client.Gateway).ResumeSchedule)) },
	}
}

// ofSchedule returns a call about a schedule with the answer that calls about other objects have.
func ofSchedule(set func(*client.Gateway, context.Context, string) (api.ScheduleDone, error)) func(*client.Gateway, context.Context, string) (api.Rested, error) {
	return func(g *client.Gateway, ctx context.Context, name string) (api.Rested, error) {
		done, err := set(g, ctx, name)
		return api.Rested{Name: done.Schedule.Name, Changed: done.Changed}, err
	}
}
