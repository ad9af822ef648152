package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
)

// collect removes the objects from the store that no commit, run or model version uses.
func (g *Gateway) collect(w http.ResponseWriter, r *request) *api.Problem {
	c, p := g.collection(r)
	if p != nil {
		return p
	}
	if !g.collecting.TryLock() {
		return unavailable("a collection is under way; ask again when it has ended")
	}
	defer g.collecting.Unlock()
	control := http.NewResponseController(&r.answer)
	_, _ = control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}) // a collection has no time limit
	if p := g.reached(r.Context(), &c); p != nil {
		return p
	}
	found, err := g.opt.Store.Collect(r.Context(), c)
	if err != nil {
		return g.storeFault("collect", err)
	}
	g.log.Info("the store was collected", "by", r.name(), "what", fmt.Sprintf("%d of %d objects, %d bytes", found.Removed, found.Objects, found.Freed))
	writeJSON(w, http.StatusOK, api.Collected{Objects: found.Objects, Kept: found.Kept, Removed: found.Removed,
		Bytes: found.Bytes, Freed: found.Freed, DryRun: c.DryRun})
	return nil
}

// collection reads the request. It is refused if the caller lacks the role for all keys, or
// if the gateway has no ledger to find the objects in use.
func (g *Gateway) collection(r *request) (c store.Collection, p *api.Problem) {
	var asked api.CollectAsked
	if p := g.readAsk(r, &asked); p != nil {
		return c, p
	}
	c = store.Collection{DryRun: asked.DryRun, Older: time.Duration(asked.OlderSeconds * float64(time.Second))}
	switch {
	case g.opt.Store == nil, g.opt.Ledger == nil:
		return c, noStore()
	case !r.caller.AllKeys(access.Operate):
		return c, forbidden("a collection is of all keys, and you may operate on some: ask one who may on all")
	}
	return c, nil
}

// reached lists the trees in use: inputs and champions of runs that have not ended, outputs
// of all runs, and the trees of model versions.
func (g *Gateway) reached(ctx context.Context, c *store.Collection) *api.Problem {
	known := map[string]bool{}
	for q := (ledger.Query{Limit: mostCommits}); ; {
		page, err := g.opt.Ledger.Runs(ctx, q)
		if err != nil {
			return g.unreached("what runs use", err)
		}
		for i := range page.Runs {
			known[page.Runs[i].ID] = true
			c.Trees = append(c.Trees, treesOf(&page.Runs[i])...)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	c.Runs = func(run string) bool { return known[run] }
	return g.keptVersions(ctx, c)
}

// keptVersions lists the trees of all kept model versions: their artifacts and reports.
func (g *Gateway) keptVersions(ctx context.Context, c *store.Collection) *api.Problem {
	for q := (ledger.ModelQuery{Limit: mostCommits}); ; {
		page, err := g.opt.Ledger.Models(ctx, q)
		for i := 0; err == nil && i < len(page.Models); i++ {
			var versions []ledger.VersionRecord
			versions, err = g.opt.Ledger.Versions(ctx, page.Models[i].Name)
			for j := range versions {
				c.Trees = append(c.Trees, slices.DeleteFunc([]string{versions[j].Artifact, versions[j].Report}, func(t string) bool { return t == "" })...)
			}
		}
		if err != nil {
			return g.unreached("what models use", err)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// unreached is the problem of a failed search for objects in use: nothing may be removed
// then.
func (g *Gateway) unreached(what string, err error) *api.Problem {
	if errors.Is(err, ledger.ErrCatchingUp) {
		return unavailable("the ledger is catching up, and " + what + " is not known before it has; ask again a little later")
	}
	g.log.Warn("gateway: listing the data in use failed; garbage collection does not begin", "what", what, "reason", err)
	return unavailable(what + " cannot be found out now; ask again a little later")
}

// treesOf returns the trees that a run uses.
func treesOf(r *tidemill.Run) (trees []string) {
	add := func(tree string) {
		if tree != "" {
			trees = append(trees, tree)
		}
	}
	if r.Result != nil {
		add(r.Result.Artifact)
	}
	if r.State.Ended() {
		return trees
	}
	for _, a := range r.Attempts {
		add(a.ResumedFrom)
	}
	var plan tidemill.Plan
	if json.Unmarshal(r.Plan, &plan) == nil { // a run that has not begun has no plan
		for _, in := range plan.Inputs {
			add(in.Tree)
		}
		if plan.Champion != nil {
			add(plan.Champion.Artifact)
		}
	}
	return trees
}
