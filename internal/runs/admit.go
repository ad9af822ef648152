package runs

import (
	"context"
	"errors"
	"slices"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/ledger"
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
func admitted(c *config.Config, pool string, asked *tidemill.Acts) (all []ledger.Admission) {
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

func (f *Foreman) asked() *tidemill.Acts {
	if f.opt.Asked != nil {
		if a := f.opt.Asked(); a != nil {
			return a
		}
	}
	return new(tidemill.Acts)
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
func (f *Foreman) bring(ctx context.Context, m *tidemill.Making) error {
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
func (f *Foreman) inPassing(ctx context.Context, m *tidemill.Making) {
	f.forgive(m, f.bring(ctx, m))
}

func (f *Foreman) forgive(m *tidemill.Making, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ledger.ErrCatchingUp) {
		f.log.Warn("what is due could not be done at once; it is tried again", "recipe", m.Recipe, "key", m.Key, "reason", err)
	}
}
