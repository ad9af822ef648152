package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/triggers/commands"
)

// ask is who may be admitted to a pool now; false if nobody may.
func (f *Foreman) ask(c *config.Config, pool string) (ledger.Ask, bool) {
	p, ok := c.Pool(pool)
	if !ok || f.opt.Launcher == nil || f.resting.Load() {
		return ledger.Ask{}, false
	}
	a := ledger.Ask{Pool: pool, Slots: f.opt.Launcher.Slots(p), Recipes: admitted(c, pool, f.asked())}
	now := f.now()
	a.Recipes = slices.DeleteFunc(a.Recipes, func(r ledger.Admission) bool { return f.troubles.aside(r.Recipe, now) })
	return a, len(a.Recipes) > 0
}

// admitted are the recipes of a pool, unless they or it are paused.
func admitted(c *config.Config, pool string, asked *commands.State) (all []ledger.Admission) {
	if _, rests := asked.PoolPause(pool); rests {
		return nil
	}
	for i := range c.Recipes {
		r := &c.Recipes[i]
		if _, rests := asked.RecipePause(r.Name); !rests && r.Run.Pool == pool {
			all = append(all, ledger.Admission{Recipe: r.Name, MaxRunning: r.MaxRunning, Priority: r.Run.Priority})
		}
	}
	return all
}

func (f *Foreman) asked() *commands.State {
	if f.opt.Asked != nil {
		if a := f.opt.Asked(); a != nil {
			return a
		}
	}
	return new(commands.State)
}

// claim takes the slot of whoever is next in a pool.
func (f *Foreman) claim(ctx context.Context, pool string) (ledger.Slot, bool, error) {
	a, ok := f.ask(f.opt.Config(), pool)
	if !ok {
		return ledger.Slot{}, false, nil
	}
	return f.ledger.Claim(ctx, a, f.now())
}

// maxFruitless is how often in a row a claim may come to nothing, because
// somebody was quicker or a cause has put the run off, before that is the end.
const maxFruitless = 5

// admit begins one run in a pool, if a slot is free and one is due: whoever brings
// one wish, or frees one slot, has made room for no more, and who watches does
// the rest. It is false if there was no slot, or nothing was due.
func (f *Foreman) admit(ctx context.Context, pool string) (bool, error) {
	for range maxFruitless {
		slot, got, err := f.claim(ctx, pool)
		if err != nil || !got {
			return false, err
		}
		if begun, err := f.begin(ctx, slot); begun || err != nil {
			return true, err
		}
	}
	return true, nil
}

// bring does what a making asks for.
func (f *Foreman) bring(ctx context.Context, m *fold.Making) error {
	if next(m, f.now()) == settles {
		var err error
		if m, err = f.settle(ctx, m.Live); err != nil {
			return err
		}
	}
	if next(m, f.now()) != admits {
		return nil
	}
	run, _ := m.DueRun()
	if f.crowds.at(run.Recipe, f.now()) {
		return nil
	}
	pool := f.poolOf(run)
	admitted, err := f.admit(ctx, pool)
	if err == nil && !admitted {
		f.crowds.note(run.Recipe, pool, f.now()) // it is due, so there is no slot for it
	}
	return err
}

// poolOf is where a run is admitted: where its recipe says now, for the slots of
// a pool that is out of use are nobody's.
func (f *Foreman) poolOf(run *tidemill.Run) string {
	if r, ok := f.opt.Config().Recipe(run.Recipe); ok {
		return r.Run.Pool
	}
	return run.Pool
}

// Advance settles what the recipe has made for the key, and starts its run if it
// is due and a slot of its pool is free for it. It may be called by anybody at
// any time: what it does follows from the log alone, and nothing of it happens
// twice.
func (f *Foreman) Advance(ctx context.Context, recipe, key string) error {
	m, err := f.ledger.Making(ctx, recipe, key)
	if err != nil {
		return err
	}
	return f.bring(ctx, m)
}

// inPassing does what is due after a fact that is on the log, for whose writer it
// is no error if that does not succeed: it is tried again.
func (f *Foreman) inPassing(ctx context.Context, m *fold.Making) {
	f.forgive(m, f.bring(ctx, m))
}

func (f *Foreman) forgive(m *fold.Making, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ledger.ErrCatchingUp) {
		f.log.Warn("scheduler: starting due runs failed; retrying", "recipe", m.Recipe, "key", m.Key, "reason", err)
	}
}

// crowdedFor is how long a recipe is taken to find no slot without another look.
const crowdedFor = 100 * time.Millisecond

// crowds are the recipes for whose due runs there was no slot. Of ten thousand
// wishes that come at once all but the first need not ask again: each end of an
// attempt looks who is next. What that misses, a slot that was freed elsewhere
// say, is found by who watches, or by the next wish after a moment.
type crowds struct {
	mu sync.Mutex
	of map[string]crowd
}

type crowd struct {
	pool  string
	until time.Time
}

func (c *crowds) at(recipe string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.of[recipe].until)
}

func (c *crowds) note(recipe, pool string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]crowd{}
	}
	c.of[recipe] = crowd{pool, now.Add(crowdedFor)}
}

// over says that a slot of a pool has become free that nobody wanted.
func (c *crowds) over(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.of, func(_ string, one crowd) bool { return one.pool == pool })
}

// asideFor is how long a recipe is left out of its pool after its next run could
// not be planned. Otherwise it would be the next again, and nobody behind it
// would ever have a turn.
const asideFor = 5 * time.Second

// troubles are the recipes whose runs cannot begin for now, through no fault of
// theirs: the store does not answer, say.
type troubles struct {
	mu sync.Mutex
	of map[string]trouble
}

type trouble struct {
	err   error
	until time.Time
}

// add puts a recipe aside. It tells whether it was not before.
func (t *troubles) add(recipe string, err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]trouble{}
	}
	_, was := t.of[recipe]
	t.of[recipe] = trouble{err, now.Add(asideFor)}
	return !was
}

// over says that a run of the recipe could be planned.
func (t *troubles) over(recipe string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, recipe)
}

func (t *troubles) aside(recipe string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.of[recipe].until)
}

// err is what has to be reported: also of a recipe whose turn has just come
// again. If nobody tries it any more, as its run was cancelled, that ends.
func (t *troubles) err(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, recipe := range slices.Sorted(maps.Keys(t.of)) {
		if now.After(t.of[recipe].until.Add(asideFor)) {
			delete(t.of, recipe)
			continue
		}
		errs = append(errs, fmt.Errorf("begin a run of recipe %s: %w", recipe, t.of[recipe].err))
	}
	return errors.Join(errs...)
}
