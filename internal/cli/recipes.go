package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

func recipesCommand() command {
	return command{
		name:    "recipes",
		lists:   true,
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
		summary:  "have the runs of a recipe begin again",
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
		summary: "list the pools: their slots, how many are in use, how many runs wait for one",
		about: `LINGERING are pods that have done their run and wait for another, as the pool's
linger has them do, and IDLE GPU TIME is what GPUs have waited in such pods.

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
		summary: "have no attempt begin in a pool until it is resumed",
		about: `Those that are under way go on. It is how a machine is emptied for a while.

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
		summary:  "have attempts begin in a pool again",
		about:    atTheGate,
		examples: []example{{"tidemill pools resume gpu", "waiting attempts begin"}},
		make: func() program {
			return &restAct{do: (*client.Gateway).ResumePool, done: "resumed", already: "was not paused"}
		},
	}
}
