package web

import (
	"context"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/warm"
)

// listPools answers with all pools of the config.
func (g *Gateway) listPools(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	f, p := g.asked(r.Context())
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	running, due, err := g.opt.Ledger.Used(ctx)
	if err != nil {
		return g.unled(r.Context(), err)
	}
	c, asked := g.opt.Config(), f.Now()
	waiting := map[string]int{}
	for _, recipe := range c.Recipes {
		waiting[recipe.Run.Pool] += due[recipe.Name]
	}
	idle, p := g.idle(ctx, c)
	if p != nil {
		return p
	}
	all := api.Pools{Pools: []api.Pool{}}
	for _, pool := range c.Pools {
		shown := api.Pool{Name: pool.Name, Slots: g.slotsOf(pool), Running: running[pool.Name], Waiting: waiting[pool.Name], GPUs: g.gpus(),
			Lingering: idle[pool.Name].Pods, IdleSeconds: idle[pool.Name].GPUSeconds}
		if pause, rests := asked.PoolPause(pool.Name); rests {
			shown.PausedBy, shown.PausedSince = pause.By, &pause.Since
		}
		all.Pools = append(all.Pools, shown)
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// idle is how those pools linger in which pods may.
func (g *Gateway) idle(ctx context.Context, c *config.Config) (map[string]warm.Idle, *api.Problem) {
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
		return nil, g.unled(ctx, err)
	}
	return all, nil
}

func (g *Gateway) gpus() int {
	if g.opt.GPUs == nil {
		return -1
	}
	return g.opt.GPUs()
}

// pausePool has no attempt begin in a pool.
func (g *Gateway) pausePool(w http.ResponseWriter, r *request) *api.Problem {
	return g.restPool(w, r, true, acts.Author.PausePool)
}

// resumePool ends that.
func (g *Gateway) resumePool(w http.ResponseWriter, r *request) *api.Problem {
	return g.restPool(w, r, false, acts.Author.ResumePool)
}

func (g *Gateway) restPool(w http.ResponseWriter, r *request, rests bool, act func(acts.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // a body has nothing to say here
	if _, known := g.opt.Config().Pool(r.value); !known {
		return unknownPool(r.value)
	}
	return g.rest(w, r, "pool", func(a *tidemill.Acts) bool { _, now := a.PoolPause(r.value); return now != rests }, act)
}
