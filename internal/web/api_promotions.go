package web

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
)

// listFreezes answers with the recipes whose promotions are frozen.
func (g *Gateway) listFreezes(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.modelsThere(); p != nil {
		return p
	}
	f, p := g.asked(r.Context())
	if p != nil {
		return p
	}
	all := api.Promotions{Frozen: []api.Freeze{}}
	for recipe, by := range f.Now().Freezes() {
		all.Frozen = append(all.Frozen, api.Freeze{Recipe: recipe, By: by.By, Since: by.Since, Reason: by.Reason})
	}
	slices.SortFunc(all.Frozen, func(a, b api.Freeze) int { return cmp.Compare(a.Recipe, b.Recipe) })
	writeJSON(w, http.StatusOK, all)
	return nil
}

// freezePromotions has no gate promote anything, of a recipe or of any.
func (g *Gateway) freezePromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, true, acts.Author.FreezePromotions)
}

// thawPromotions ends that.
func (g *Gateway) thawPromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, false, acts.Author.ThawPromotions)
}

func (g *Gateway) freeze(w http.ResponseWriter, r *request, freezes bool, act func(acts.Author, string, string) (broker.View, error)) *api.Problem {
	var ask api.FreezeAsked
	if p := g.readAsk(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if !r.caller.AllKeys(access.Approve) {
		return forbidden("a freeze is for all keys, and you may approve for some: ask one who may for all")
	}
	f, p := g.asked(r.Context())
	if p != nil {
		return p
	}
	recipe := orElse(ask.Recipe, tidemill.AllRecipes)
	_, frozen := f.Now().Freezes()[recipe]
	if p := g.checkFreeze(&ask, frozen); p != nil {
		return p
	}
	done := api.Rested{Name: recipe, Changed: frozen != freezes}
	if done.Changed {
		v, err := act(g.author(r), recipe, ask.Reason)
		if err != nil {
			return invalidRequest(err.Error())
		}
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

// checkFreeze wants a recipe of the config, or one that was taken out of it while
// its promotions were frozen.
func (g *Gateway) checkFreeze(ask *api.FreezeAsked, frozen bool) *api.Problem {
	if _, known := g.opt.Config().Recipe(ask.Recipe); ask.Recipe != "" && ask.Recipe != tidemill.AllRecipes && !known && !frozen {
		return unknownRecipe(ask.Recipe)
	}
	if len(ask.Reason) > mostReason {
		return badParameter("reason", fmt.Sprintf("it has %d bytes: say it in %d", len(ask.Reason), mostReason))
	}
	return nil
}
