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

// dueRecipes returns the recipes that may start runs in a pool now; false if there are none.
func (f *Foreman) dueRecipes(c *config.Config, pool string) (ledger.Ask, bool) {
	p, ok := c.Pool(pool)
	if !ok || f.opt.Launcher == nil || f.resting.Load() {
		return ledger.Ask{}, false
	}
	a := ledger.Ask{Pool: pool, Slots: f.opt.Launcher.Slots(p), Recipes: admitted(c, pool, f.asked())}
	now := f.now()
	a.Recipes = slices.DeleteFunc(a.Recipes, func(r ledger.Admission) bool { return f.troubles.aside(r.Recipe, now) })
	return a, len(a.Recipes) > 0
}

// admitted returns the recipes of a pool that are not paused; none if the pool is paused.
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

// claim takes a slot for the next run of a pool.
func (f *Foreman) claim(ctx context.Context, pool string) (ledger.Slot, bool, error) {
	a, ok := f.dueRecipes(f.opt.Config(), pool)
	if !ok {
		return ledger.Slot{}, false, nil
	}
	return f.ledger.Claim(ctx, a, f.now())
}

// maxFruitless is how many claims in a row may lead to no start before the scheduler gives up. A
// claim leads to no start if another process was quicker, or a cause has postponed the run.
const maxFruitless = 5

// admit starts one run in a pool, if a slot is free and a run is due. It starts only one run,
// because one request or one freed slot makes room for one run; Watch starts the others. It returns
// false if no slot was free, or no run was due.
func (f *Foreman) admit(ctx context.Context, pool string) (bool, error) {
	for range maxFruitless {
		slot, got, err := f.claim(ctx, pool)
		if err != nil || !got {
			return false, err
		}
		planning, cancel := steady(ctx)
		begun, err := f.begin(planning, slot, false)
		cancel()
		if begun || err != nil {
			return true, err
		}
	}
	return true, nil
}

// advance does the next step of a making: it commits an output, or starts a due run.
func (f *Foreman) advance(ctx context.Context, m *fold.Making) error {
	if nextStep(m, f.now()) == settles {
		var err error
		if m, err = f.commitOutput(ctx, m.Live); err != nil {
			return err
		}
	}
	if nextStep(m, f.now()) != admits {
		return nil
	}
	run, _ := m.DueRun()
	if f.crowds.at(run.Recipe, f.now()) {
		return nil
	}
	pool := f.poolOf(run)
	admitted, err := f.admit(ctx, pool)
	if err == nil && !admitted {
		f.crowds.note(run.Recipe, pool, f.now()) // the run is due, so the pool has no free slot
	}
	return err
}

// poolOf returns the pool in which a run starts. The present config decides, because it may no
// longer have the run's old pool.
func (f *Foreman) poolOf(run *tidemill.Run) string {
	if r, ok := f.opt.Config().Recipe(run.Recipe); ok {
		return r.Run.Pool
	}
	return run.Pool
}

// Advance commits the output of the recipe's run for the key, and starts the key's next run if that
// run is due and a slot is free. Any process may call Advance at any time: its steps follow from
// the log alone, and a repeated step has no effect.
func (f *Foreman) Advance(ctx context.Context, recipe, key string) error {
	m, err := f.ledger.Making(ctx, recipe, key)
	if err != nil {
		return err
	}
	return f.advance(ctx, m)
}

// inPassing does the work that is due after a fact. A failure is only logged, because the fact is
// on the log and Watch tries the work again.
func (f *Foreman) inPassing(ctx context.Context, m *fold.Making) {
	f.logFailure(m, f.advance(ctx, m))
}

func (f *Foreman) logFailure(m *fold.Making, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ledger.ErrCatchingUp) {
		f.log.Warn("scheduler: starting due runs failed; retrying", "recipe", m.Recipe, "key", m.Key, "reason", err)
	}
}

// crowdedFor is how long a recipe does not ask for a slot after no slot was free.
const crowdedFor = 100 * time.Millisecond

// waitingRecipes are the recipes for whose due runs there was no slot. Of ten thousand requests
// that come at once, only the first asks for a slot: each end of an attempt looks for the next run
// anyway. If another process frees a slot, Watch or a later request finds it.
type waitingRecipes struct {
	mu sync.Mutex
	of map[string]crowd
}

type crowd struct {
	pool  string
	until time.Time
}

func (c *waitingRecipes) at(recipe string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.of[recipe].until)
}

func (c *waitingRecipes) note(recipe, pool string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]crowd{}
	}
	c.of[recipe] = crowd{pool, now.Add(crowdedFor)}
}

// noteEmpty notes that a slot of a pool is free and no run was due for it.
func (c *waitingRecipes) noteEmpty(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.of, func(_ string, one crowd) bool { return one.pool == pool })
}

const (
	// asideFor is the shortest time for which a run is left out of its queue after it could not be planned.
	// Otherwise the same run would be next again, and the runs after it would never start.
	asideFor = 5 * time.Second
	// asideMost is the longest such time.
	asideMost = time.Minute
	// mostTroubles is how many runs of a recipe may be in trouble, one after the other, before the whole recipe is left
	// out for asideFor: the store does not answer, for example.
	mostTroubles = 3
)

// asideUntil returns the time until which a run is left out. The longer it has waited, the more seldom it is tried.
func asideUntil(run *tidemill.Run, now time.Time) time.Time {
	return now.Add(min(max(now.Sub(run.Asking)/4, asideFor), asideMost))
}

// troubles are the recipes with a run that cannot begin for now because of an outside fault, for example
// a store that does not answer.
type troubles struct {
	mu sync.Mutex
	of map[string]trouble
}

type trouble struct {
	err   error
	run   string // id of the last run in trouble
	row   int    // number of runs in trouble since one could be planned
	aside time.Time
	until time.Time // time at which the run is tried again
}

// add records that a run cannot be planned for now. It reports whether the recipe had no trouble before.
func (t *troubles) add(run *tidemill.Run, err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]trouble{}
	}
	one, was := t.of[run.Recipe]
	one.err, one.run, one.until = err, run.ID, asideUntil(run, now)
	if one.row++; one.row >= mostTroubles {
		one.aside = now.Add(asideFor)
	}
	t.of[run.Recipe] = one
	return !was
}

// notePlanned notes that a run could be planned. The trouble of another run of its recipe is still reported.
func (t *troubles) notePlanned(run *tidemill.Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one, was := t.of[run.Recipe]; was && one.run != run.ID {
		one.row = 0
		t.of[run.Recipe] = one
	} else {
		delete(t.of, run.Recipe)
	}
}

func (t *troubles) aside(recipe string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.of[recipe].aside)
}

// err returns the troubles to report. A run that may be tried again is still reported for a
// while. Then its trouble is removed, because the run may have been cancelled.
func (t *troubles) err(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, recipe := range slices.Sorted(maps.Keys(t.of)) {
		one := t.of[recipe]
		if now.After(one.until.Add(asideFor)) {
			delete(t.of, recipe)
			continue
		}
		errs = append(errs, fmt.Errorf("begin run %s of recipe %s: %w", one.run, recipe, one.err))
	}
	return errors.Join(errs...)
}

// slowPlans are the runs whose plan takes longer than a request waits for it. Watch plans them.
type slowPlans struct {
	mu   sync.Mutex
	runs map[string]bool
}

// mostSlow is the number of runs that are remembered. If there are more, the slow ones among them are found again.
const mostSlow = 1000

// add reports whether the run was not known.
func (s *slowPlans) add(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == nil || len(s.runs) >= mostSlow {
		s.runs = map[string]bool{}
	}
	known := s.runs[run]
	s.runs[run] = true
	return !known
}

func (s *slowPlans) has(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[run]
}
