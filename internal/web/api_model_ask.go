package web

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/models"
)

// promoteModel makes a version the champion.
func (g *Gateway) promoteModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPromote)
}

// rollbackModel makes an older one the champion again.
func (g *Gateway) rollbackModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionRollback)
}

// pinModel holds the champion, or makes a version the champion and holds it.
func (g *Gateway) pinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPin)
}

// unpinModel ends that.
func (g *Gateway) unpinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionUnpin)
}

func (g *Gateway) wish(w http.ResponseWriter, r *request, action tidemill.Action) *api.Problem {
	var ask api.PromotionAsked
	if p := g.readAsk(r, &ask); p != nil {
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
	got, err := g.opt.Models.Wish(ctx, models.Wish{Model: m.Name, Action: action, Version: ask.Version, Basis: ask.Basis, Force: ask.Force,
		Reason: ask.Reason, By: r.name(), ID: tidemill.ID("promotion wished", r.name(), m.Name, wishKey(r)), DryRun: ask.DryRun})
	if err != nil {
		return g.unwished(r.Context(), m.Name, err, began)
	}
	done := doneOfWish(action, &got, ask.DryRun)
	if !ask.DryRun {
		g.log.Info("somebody has asked for something of a model", "what", string(action), "model", m.Name, "version", done.Version, "by", r.name())
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// wishKey names a wish: under the same Idempotency-Key the same caller wishes
// the same, however often.
func wishKey(r *request) string { return orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text()) }

func checkWish(ask *api.PromotionAsked, action tidemill.Action) *api.Problem {
	switch {
	case ask.Version < 0:
		return badParameter("version", "versions are numbered from 1")
	case action == tidemill.ActionPromote && ask.Version == 0:
		return badParameter("version", "say which version to promote; GET /api/v1/model lists them")
	case action == tidemill.ActionUnpin && ask.Version != 0:
		return badParameter("version", "what is unpinned is the model: leave it out")
	case action != tidemill.ActionPromote && ask.Force:
		return badParameter("force", "only a promotion is forced, of a version that was refused")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and the log keeps it for ever: say it in %d", len(ask.Reason), mostReason))
	}
	return nil
}

// doneOfWish says what became of a wish, in words.
func doneOfWish(action tidemill.Action, got *models.Answer, dry bool) api.PromotionDone {
	done := api.PromotionDone{Model: got.Model.Name, Version: got.Version, Before: got.Before, Champion: got.Model.Champion}
	if dry && action != tidemill.ActionUnpin {
		done.Champion = got.Version
	}
	verb, would := "has", ""
	if dry {
		verb, would = "would have", "would be "
	}
	switch action {
	case tidemill.ActionUnpin:
		done.Done = would + "unpinned: its gate decides again"
	case tidemill.ActionPin:
		done.Done = fmt.Sprintf("%spinned to version %d", would, got.Version)
		if got.Before != got.Version {
			done.Done += ", before it was " + versionText(got.Before)
		}
	default:
		done.Done = fmt.Sprintf("%s version %d as its champion, before it was %s", verb, got.Version, versionText(got.Before))
	}
	return done
}

func versionText(n int) string {
	if n == 0 {
		return "none"
	}
	return "version " + number(n)
}
