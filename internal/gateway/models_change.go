package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/filter"
)

// promoteModel makes a version the champion.
func (g *Gateway) promoteModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPromote)
}

// refuseModel refuses a version that waits for a person.
func (g *Gateway) refuseModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionRefuse)
}

// rollbackModel makes an older version the champion again.
func (g *Gateway) rollbackModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionRollback)
}

// pinModel pins the champion, or makes a version the champion and pins it.
func (g *Gateway) pinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPin)
}

// unpinModel removes the pin from the champion.
func (g *Gateway) unpinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionUnpin)
}

func (g *Gateway) wish(w http.ResponseWriter, r *request, action tidemill.Action) *api.Problem {
	var ask api.PromotionAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if p := checkWish(&ask, action); p != nil {
		return p
	}
	span := g.startSpan(r)
	defer span.End()
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Approve, ask.Model)
	if p != nil {
		return p
	}
	began := time.Now()
	got, err := g.opt.Models.Wish(ctx, registry.Wish{Model: m.Name, Action: action, Version: ask.Version, Basis: ask.Basis, Force: ask.Force,
		Reason: ask.Reason, By: r.callerName(), ID: tidemill.ID("promotion wished", r.callerName(), m.Name, wishKey(r)), DryRun: ask.DryRun})
	if err != nil {
		return g.modelRequestProblem(r.Context(), m.Name, err, began)
	}
	done := doneOfWish(action, &got, ask.DryRun)
	if !ask.DryRun {
		g.log.Info("gateway: command for a model", "what", string(action), "model", m.Name, "version", done.Version, "by", r.loggedName())
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// wishKey returns the key of a request. A second request of the same caller with the same
// Idempotency-Key has the same key and is a repeat.
func wishKey(r *request) string { return orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text()) }

func checkWish(ask *api.PromotionAsked, action tidemill.Action) *api.Problem {
	switch {
	case ask.Version < 0:
		return badParameter("version", "versions are numbered from 1")
	case action == tidemill.ActionPromote && ask.Version == 0:
		return badParameter("version", "give the version to promote; GET /api/v1/model lists them")
	case action == tidemill.ActionRefuse && ask.Version == 0:
		return badParameter("version", "give the version to refuse; GET /api/v1/model lists them")
	case action == tidemill.ActionUnpin && ask.Version != 0:
		return badParameter("version", "unpin is for the whole model: leave it out")
	case action != tidemill.ActionPromote && ask.Force:
		return badParameter("force", "only a promotion is forced, of a version that was refused")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and the log keeps it forever: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}

// doneOfWish describes the result of a request in words.
func doneOfWish(action tidemill.Action, got *registry.Answer, dry bool) api.PromotionDone {
	done := api.PromotionDone{Model: got.Model.Name, Version: got.Version, Before: got.Before, Champion: got.Model.Champion}
	if h := got.Model.Find(got.Version); action == tidemill.ActionRollback && h != nil && h.State == tidemill.VersionRefused {
		action = tidemill.ActionRefuse // it has ended the canary
	}
	verb, would := "has", ""
	if dry {
		verb, would = "would have", "would be "
	}
	switch action {
	case tidemill.ActionUnpin:
		done.Done = would + "unpinned: its gate decides again"
	case tidemill.ActionRefuse:
		done.Done = fmt.Sprintf("%s version %d refused; its champion is still %s", verb, got.Version, versionText(done.Champion))
	case tidemill.ActionPin:
		done.Done = fmt.Sprintf("%spinned to version %d", would, got.Version)
		if got.Before != got.Version {
			done.Done += ", previously " + versionText(got.Before)
		}
	default:
		done.Done = fmt.Sprintf("%s version %d as its champion, previously %s", verb, got.Version, versionText(got.Before))
	}
	return done
}

func versionText(n int) string {
	if n == 0 {
		return "none"
	}
	return "version " + number(n)
}

// rollbackModels rolls many models back to their champions at a given time.
func (g *Gateway) rollbackModels(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.RollbackAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if p := checkRollback(&ask, time.Now()); p != nil {
		return p
	}
	where, p := runFilter(ask.Where)
	if p != nil {
		return p
	}
	b, end := g.newBulk(r, 0, ask.DryRun)
	defer end()
	done, p := b.rollBackAll(&ask, where)
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

func checkRollback(ask *api.RollbackAsked, now time.Time) *api.Problem {
	selects := ask.Recipe+ask.Key+ask.Prefix+ask.Where != ""
	switch {
	case ask.Since.IsZero():
		return badParameter("since", "give the time: promotions after it are rolled back")
	case ask.Since.After(now):
		return badParameter("since", "it is in the future")
	case selects == ask.All:
		return badParameter("all", "give a recipe, a key, a prefix or where, or all: true and none of them")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and every model repeats it: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}

// rollBackAll rolls back the selected models, page by page.
func (b *bulkChange) rollBackAll(ask *api.RollbackAsked, where *filter.Filter) (done api.PromotionsDone, p *api.Problem) {
	done.Models = []api.PromotionDone{}
	q := ledger.ModelQuery{Recipe: ask.Recipe, Key: ask.Key, Prefix: ask.Prefix, Seen: seenBy(b.r.caller, access.Approve), After: ask.After, Limit: runsAtATime}
	for {
		page, err := b.g.opt.Ledger.Models(b.ctx, q)
		if err != nil {
			return done, b.g.ledgerProblem(b.r.Context(), err)
		}
		var meant []rollbackPath
		for i := range page.Models {
			m := &page.Models[i]
			if way, moved := wayBack(m, ask.Since); moved && modelWanted(where, m) {
				meant = append(meant, way)
			}
		}
		lines := make([]api.PromotionDone, len(meant))
		err = forEach(len(meant), func(i int) (err error) {
			lines[i], err = b.rollBackModel(&meant[i], ask.Reason)
			return err
		})
		if err != nil {
			return done, b.g.modelRequestProblem(b.r.Context(), "", err, b.began)
		}
		done.Models = append(done.Models, lines...)
		if q.After = page.Next; page.Next == "" || b.isTimeUp(len(done.Models)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func modelWanted(where *filter.Filter, m *fold.Model) bool {
	return filterOfRuns(where, m.Recipe, m.Key, broker.Attribute{Name: tidemill.AttrModel, Value: m.Name})
}

// rollbackPath describes how a model returns to its champion at a given time.
type rollbackPath struct {
	model *fold.Model
	to    int    // version of the earlier champion
	not   string // reason why a rollback is impossible
}

// wayBack finds the champion before the first change since a given time. A model is left out if its
// champion is the same as before that change.
func wayBack(m *fold.Model, since time.Time) (w rollbackPath, moved bool) {
	w.model = m
	for i, c := range m.Changes {
		if c.At.Before(since) {
			continue
		}
		w.to = c.Before
		switch {
		case w.to != 0 && i == 0: // older changes are no longer known
			w.not = "its champion has changed too often since then: give the version to roll back to"
		case w.to == m.Champion:
			return w, false
		case w.to == 0:
			w.not = "it has no previous champion"
		case m.Find(w.to) == nil:
			w.not = fmt.Sprintf("version %d, the previous champion, is no longer stored", w.to)
		}
		return w, true
	}
	return w, false
}

// rollBackModel rolls a model back, if the model's champion has not changed since the lookup.
func (b *bulkChange) rollBackModel(w *rollbackPath, reason string) (api.PromotionDone, error) {
	m := w.model
	done := api.PromotionDone{Model: m.Name, Version: w.to, Before: m.Champion, Champion: m.Champion, Done: w.not, Refused: w.not != ""}
	if done.Refused {
		return done, nil
	}
	got, err := b.g.opt.Models.Wish(b.ctx, registry.Wish{Model: m.Name, Action: tidemill.ActionRollback, Version: w.to, Basis: &m.Champion, Reason: reason,
		By: b.by, ID: tidemill.ID("promotion wished", b.by, m.Name, b.named), DryRun: b.dryRun})
	switch {
	case err == nil:
		return doneOfWish(tidemill.ActionRollback, &got, b.dryRun), nil
	case errors.Is(err, registry.ErrMoved), errors.Is(err, registry.ErrRefused), errors.Is(err, registry.ErrUnknown):
		done.Done, done.Refused = err.Error(), true
		return done, nil
	case errors.Is(err, context.Canceled):
		return done, b.ctx.Err()
	}
	return done, err
}

// listFreezes answers with the recipes whose promotions are frozen.
func (g *Gateway) listFreezes(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.modelsThere(); p != nil {
		return p
	}
	f, p := g.commandLog(r.Context())
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

// freezePromotions stops the promotions of all gates, for one recipe or for all.
func (g *Gateway) freezePromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, true, commands.Author.FreezePromotions)
}

// thawPromotions ends a freeze.
func (g *Gateway) thawPromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, false, commands.Author.ThawPromotions)
}

func (g *Gateway) freeze(w http.ResponseWriter, r *request, freezes bool, act func(commands.Author, string, string) (broker.View, error)) *api.Problem {
	var ask api.FreezeAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if !r.caller.AllKeys(access.Approve) {
		return forbidden("a freeze is for all keys, and you may approve only for some: use a token for all keys")
	}
	f, p := g.currentCommands(r.Context())
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
		v, err := act(g.commandAuthor(r), recipe, ask.Reason)
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

// checkFreeze accepts a recipe of the config, or a recipe that was removed from the config while
// its promotions were frozen.
func (g *Gateway) checkFreeze(ask *api.FreezeAsked, frozen bool) *api.Problem {
	if _, known := g.opt.Config().Recipe(ask.Recipe); ask.Recipe != "" && ask.Recipe != tidemill.AllRecipes && !known && !frozen {
		return g.unknownRecipe(ask.Recipe)
	}
	if len(ask.Reason) > mostReason {
		return badParameter("reason", fmt.Sprintf("it has %d bytes: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}
