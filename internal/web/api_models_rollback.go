package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/models"
	"tidemill.dev/triggers/match"
)

// rollbackModels has the champions of many models go back to those of a time.
func (g *Gateway) rollbackModels(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.RollbackAsked
	if p := g.readAsk(r, &ask); p != nil {
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
	done, p := b.rollback(&ask, where)
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
		return badParameter("since", "say since when the promotions are to be taken back")
	case ask.Since.After(now):
		return badParameter("since", "it is in the future")
	case selects == ask.All:
		return badParameter("all", "give a recipe, a key, a prefix or where, or all: true and none of them")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and every model repeats it: say it in %d", len(ask.Reason), mostReason))
	}
	return nil
}

// rollback goes through the models that are meant, page by page.
func (b *bulk) rollback(ask *api.RollbackAsked, where *match.Filter) (done api.PromotionsDone, p *api.Problem) {
	done.Models = []api.PromotionDone{}
	q := ledger.ModelQuery{Recipe: ask.Recipe, Key: ask.Key, Prefix: ask.Prefix, Seen: seenBy(b.r.caller, access.Approve), After: ask.After, Limit: runsAtATime}
	for {
		page, err := b.g.opt.Ledger.Models(b.ctx, q)
		if err != nil {
			return done, b.g.unled(b.r.Context(), err)
		}
		var meant []way
		for i := range page.Models {
			m := &page.Models[i]
			if way, moved := wayBack(m, ask.Since); moved && modelWanted(where, m) {
				meant = append(meant, way)
			}
		}
		lines := make([]api.PromotionDone, len(meant))
		err = each(len(meant), func(i int) (err error) {
			lines[i], err = b.back(&meant[i], ask.Reason)
			return err
		})
		if err != nil {
			return done, b.g.unwished(b.r.Context(), "", err, b.began)
		}
		done.Models = append(done.Models, lines...)
		if q.After = page.Next; page.Next == "" || b.enough(len(done.Models)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func modelWanted(where *match.Filter, m *tidemill.Model) bool {
	return wanted(where, m.Recipe, m.Key, broker.Attribute{Name: tidemill.AttrModel, Value: m.Name})
}

// way is that of a model back to the champion of a time.
type way struct {
	model *tidemill.Model
	to    int    // version
	not   string // why there is none
}

// wayBack finds what was the champion before the first change since a time. A
// model whose champion has not changed since, or is that one again, is not meant.
func wayBack(m *tidemill.Model, since time.Time) (w way, moved bool) {
	w.model = m
	for i, c := range m.Changes {
		if c.At.Before(since) {
			continue
		}
		w.to = c.Before
		switch {
		case w.to != 0 && i == 0: // the older changes are no longer known
			w.not = "its champion has changed so often since that it is not known here which it was: roll it back to a version that you name"
		case w.to == m.Champion:
			return w, false
		case w.to == 0:
			w.not = "it had no champion before"
		case m.Find(w.to) == nil:
			w.not = fmt.Sprintf("version %d, which was the champion before, is no longer kept", w.to)
		}
		return w, true
	}
	return w, false
}

// back goes it, if the champion still is the one that was seen.
func (b *bulk) back(w *way, reason string) (api.PromotionDone, error) {
	m := w.model
	done := api.PromotionDone{Model: m.Name, Version: w.to, Before: m.Champion, Champion: m.Champion, Done: w.not, Refused: w.not != ""}
	if done.Refused {
		return done, nil
	}
	got, err := b.g.opt.Models.Wish(b.ctx, models.Wish{Model: m.Name, Action: tidemill.ActionRollback, Version: w.to, Basis: &m.Champion, Reason: reason,
		By: b.by, ID: tidemill.ID("promotion wished", b.by, m.Name, b.named), DryRun: b.dryRun})
	switch {
	case err == nil:
		return doneOfWish(tidemill.ActionRollback, &got, b.dryRun), nil
	case errors.Is(err, models.ErrMoved), errors.Is(err, models.ErrRefused), errors.Is(err, models.ErrUnknown):
		done.Done, done.Refused = err.Error(), true
		return done, nil
	case errors.Is(err, context.Canceled):
		return done, b.ctx.Err()
	}
	return done, err
}
