package gateway

import (
	"context"
	"net/http"
	"slices"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/runs/warmpods"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/schedule"
)

// listRecipes answers with all recipes of the config.
func (g *Gateway) listRecipes(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	counts, err := g.opt.Ledger.Counts(ctx)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	all, asked, c := api.Recipes{Recipes: []api.Recipe{}}, f.Now(), g.opt.Config()
	for _, recipe := range c.Recipes {
		all.Recipes = append(all.Recipes, recipeOf(c, &recipe, counts[recipe.Name], asked))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func recipeOf(c *config.Config, r *config.Recipe, n ledger.Counts, asked *commands.State) api.Recipe {
	shown := api.Recipe{Name: r.Name, Team: r.Team, Pool: r.Run.Pool, Makes: madeBy(&r.Makes), Keys: n.Keys, Waiting: n.Waiting, Running: n.Live}
	if pause, rests := asked.RecipePause(r.Name); rests {
		shown.PausedBy, shown.PausedSince = pause.By, &pause.Since
	}
	addPlan(c, r, &shown)
	return shown
}

// addPlan adds the events and datasets that a recipe reads, and its product.
func addPlan(c *config.Config, r *config.Recipe, shown *api.Recipe) {
	shown.Model, shown.Dataset = r.Makes.Model, r.Makes.Dataset
	for _, when := range r.When {
		shown.When = append(shown.When, api.RecipeWhen{When: whenOf(&when.When), Schedule: when.Schedule})
		if when.Schedule == "" {
			shown.Streams = append(shown.Streams, c.StreamsOf(config.Trigger{When: []config.When{when.When}})...)
		}
	}
	slices.Sort(shown.Streams)
	shown.Streams = slices.Compact(shown.Streams)
	for _, in := range r.Inputs {
		if in.Dataset != "" {
			shown.Inputs = append(shown.Inputs, api.RecipeInput{Name: in.Name, Dataset: in.Dataset, Branch: orElse(in.Branch, mainBranch)})
		}
	}
}

// madeBy describes the product of a recipe in words.
func madeBy(m *config.Makes) string {
	switch {
	case m.Model != "":
		return "model " + m.Model
	case m.Dataset != "":
		return "dataset " + m.Dataset + " at " + orElse(m.Branch, "main")
	}
	return "nothing that is stored"
}

// pauseRecipe pauses a recipe: its runs then wait.
func (g *Gateway) pauseRecipe(w http.ResponseWriter, r *request) *api.Problem {
	return g.setRecipePause(w, r, true, commands.Author.PauseRecipe)
}

// resumeRecipe ends the pause of a recipe.
func (g *Gateway) resumeRecipe(w http.ResponseWriter, r *request) *api.Problem {
	return g.setRecipePause(w, r, false, commands.Author.ResumeRecipe)
}

func (g *Gateway) setRecipePause(w http.ResponseWriter, r *request, paused bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	if _, known := g.opt.Config().Recipe(r.value); !known {
		return g.unknownRecipe(r.value)
	}
	return g.publishPause(w, r, "recipe", func(a *commands.State) bool { _, now := a.RecipePause(r.value); return now != paused }, act)
}

// publishPause publishes a pause or a resume, unless the recipe or pool is already in that state.
func (g *Gateway) publishPause(w http.ResponseWriter, r *request, what string, changes func(*commands.State) bool, act func(commands.Author, string) broker.View) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	if !r.caller.AllKeys(access.Operate) {
		return forbidden("a " + what + " is for all keys, and you may operate only on some: use a token for all keys")
	}
	f, p := g.currentCommands(r.Context())
	if p != nil {
		return p
	}
	done := api.Rested{Name: r.value, Changed: changes(f.Now())}
	if done.Changed {
		v := act(g.commandAuthor(r), r.value)
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// listPools answers with all pools of the config.
func (g *Gateway) listPools(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	all, p := g.poolsNow(ctx)
	if p != nil {
		return p
	}
	asked := f.Now()
	for i := range all {
		if pause, rests := asked.PoolPause(all[i].Name); rests {
			all[i].PausedBy, all[i].PausedSince = pause.By, &pause.Since
		}
	}
	writeJSON(w, http.StatusOK, api.Pools{Pools: all})
	return nil
}

// poolsNow returns all pools of the config, without their pauses.
func (g *Gateway) poolsNow(ctx context.Context) ([]api.Pool, *api.Problem) {
	running, due, err := g.opt.Ledger.Used(ctx)
	if err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	c := g.opt.Config()
	waiting := map[string]int{}
	for _, recipe := range c.Recipes {
		waiting[recipe.Run.Pool] += due[recipe.Name]
	}
	idle, p := g.lingeringPods(ctx, c)
	if p != nil {
		return nil, p
	}
	all := []api.Pool{}
	for _, pool := range c.Pools {
		all = append(all, api.Pool{Name: pool.Name, Slots: g.slotsOf(pool), Running: running[pool.Name], Waiting: waiting[pool.Name], GPUs: g.gpus(),
			Lingering: idle[pool.Name].Pods, IdleSeconds: idle[pool.Name].GPUSeconds})
	}
	return all, nil
}

// lingeringPods returns the lingering pods of the pools that allow lingering.
func (g *Gateway) lingeringPods(ctx context.Context, c *config.Config) (map[string]warmpods.Idle, *api.Problem) {
	var names []string
	for _, pool := range c.Pools {
		if pool.Linger > 0 {
			names = append(names, pool.Name)
		}
	}
	if g.opt.Warm == nil || len(names) == 0 {
		return nil, nil
	}
	all, err := g.opt.Warm.IdleOf(ctx, names)
	if err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	return all, nil
}

func (g *Gateway) gpus() int {
	if g.opt.GPUs == nil {
		return -1
	}
	return g.opt.GPUs()
}

// pausePool pauses a pool, so that no attempt begins in it.
func (g *Gateway) pausePool(w http.ResponseWriter, r *request) *api.Problem {
	return g.restPool(w, r, true, commands.Author.PausePool)
}

// resumePool ends the pause of a pool.
func (g *Gateway) resumePool(w http.ResponseWriter, r *request) *api.Problem {
	return g.restPool(w, r, false, commands.Author.ResumePool)
}

func (g *Gateway) restPool(w http.ResponseWriter, r *request, paused bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	if _, known := g.opt.Config().Pool(r.value); !known {
		return g.unknownPool(r.value)
	}
	return g.publishPause(w, r, "pool", func(a *commands.State) bool { _, now := a.PoolPause(r.value); return now != paused }, act)
}

// scheduleLook holds the state of the schedules.
type scheduleLook struct {
	acts *commands.State
	book *schedule.Book // nil if the times of the last ticks cannot be read
	now  time.Time
}

// listSchedules answers with all schedules of the config.
func (g *Gateway) listSchedules(w http.ResponseWriter, r *request) *api.Problem {
	look, p := g.lookAtSchedules(r.Context())
	if p != nil {
		return p
	}
	all := api.Schedules{Schedules: []api.Schedule{}}
	for _, s := range g.opt.Config().Schedules {
		all.Schedules = append(all.Schedules, look.stateOf(&s))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// pauseSchedule pauses a schedule.
func (g *Gateway) pauseSchedule(w http.ResponseWriter, r *request) *api.Problem {
	return g.setSchedulePause(w, r, true, commands.Author.PauseSchedule)
}

// resumeSchedule ends the pause of a schedule.
func (g *Gateway) resumeSchedule(w http.ResponseWriter, r *request) *api.Problem {
	return g.setSchedulePause(w, r, false, commands.Author.ResumeSchedule)
}

func (g *Gateway) setSchedulePause(w http.ResponseWriter, r *request, paused bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	s, ok := g.opt.Config().Schedule(r.value)
	if !ok {
		return g.unknownSchedule(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return forbidden("a schedule is for all keys, and you may operate only on some: use a token for all keys")
	}
	f, p := g.currentCommands(r.Context())
	if p != nil {
		return p
	}
	done := api.ScheduleDone{Changed: f.Now().SchedulePaused(s.Name) != paused}
	if done.Changed {
		v := act(g.commandAuthor(r), s.Name)
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	look, p := g.lookAtSchedules(r.Context())
	if p != nil {
		return p
	}
	done.Schedule = look.stateOf(&s)
	writeJSON(w, http.StatusOK, done)
	return nil
}

func (g *Gateway) lookAtSchedules(ctx context.Context) (*scheduleLook, *api.Problem) {
	f, p := g.commandLog(ctx)
	if p != nil {
		return nil, p
	}
	look := &scheduleLook{acts: f.Now(), now: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	book, err := g.marks.current(ctx)
	if err != nil {
		g.log.Warn("gateway: reading the last ticks failed; the answer has none", "reason", err)
		return look, nil
	}
	look.book = book
	return look, nil
}

// stateOf returns the state of one schedule.
func (l *scheduleLook) stateOf(s *config.Schedule) api.Schedule {
	shown := api.Schedule{Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Missed: string(s.Missed), Keys: len(s.Keys), Each: s.Each,
		SpreadSeconds: s.Spread.Seconds(), State: api.ScheduleActive}
	if l.book != nil {
		if last, ok := l.book.Last(s.Name); ok {
			shown.Last = &last
		}
	}
	if pause, rests := l.acts.SchedulePause(s.Name); rests {
		shown.State, shown.PausedBy, shown.PausedSince = api.SchedulePaused, pause.By, &pause.Since
		return shown
	}
	if next, ok := schedule.Next(s, l.now); ok {
		shown.Next = &next
	}
	return shown
}
