package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/scheduler"
)

// keysTable lists the routes of keys. A key may have any character, even a slash, so the key is in
// the body and not in the path.
func (g *Gateway) keysTable() []route {
	return []route{
		{method: http.MethodPost, path: "/api/v1/keys/forget", role: access.Operate, handle: g.forgetKey},
		{method: http.MethodGet, path: "/api/v1/keys/forgotten/{id}", role: access.Read, handle: g.forgottenKey},
	}
}

// lookAgain is the interval between checks for a receipt.
const lookAgain = 100 * time.Millisecond

// forgetKey requests that a key be forgotten. A dry run lists the data that the request would
// erase.
func (g *Gateway) forgetKey(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.KeyAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.checkForget(r, &ask); p != nil {
		return p
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	if ask.DryRun {
		receipt, err := g.opt.Forgetter.Preview(ctx, ask.Key)
		if err != nil {
			return g.forgetProblem(r.Context(), ask.Key, err, began)
		}
		writeJSON(w, http.StatusOK, api.KeyEnd{DryRun: true, Receipt: &receipt})
		return nil
	}
	id, err := g.opt.Forgetter.Ask(ctx, g.forgetRequest(r, &ask))
	if err != nil {
		return g.forgetProblem(r.Context(), ask.Key, err, began)
	}
	g.log.Info("gateway: command to forget a key", "key", ask.Key, "by", r.loggedName(), "reason", ask.Reason)
	end, status := api.KeyEnd{ID: id}, http.StatusAccepted
	if ask.Wait && g.untilForgotten(ctx, &end) {
		status = http.StatusOK
	}
	writeJSON(w, status, end)
	return nil
}

func (g *Gateway) checkForget(r *request, ask *api.KeyAsked) *api.Problem {
	if err := scheduler.CheckKey(ask.Key); err != nil {
		return badParameter("key", err.Error())
	}
	if len(ask.Reason) > mostReason {
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and each fact of the end repeats it: use at most %d", len(ask.Reason), mostReason))
	}
	if g.opt.Forgetter == nil {
		return noRuns()
	}
	if !r.caller.MayForget(ask.Key) {
		return forbidden(fmt.Sprintf("you may not forget the key %q: use a token whose role is operate for the key; a team's members may not", clipText(ask.Key)))
	}
	return g.refuseRecipe(r, ask.Key)
}

// refuseRecipe refuses to end a key with the name of a recipe, unless the caller may operate on all keys. The runs
// of a recipe without keys have its name as their key, so the end of that key concerns them too. The ledger knows
// recipes that the config no longer has.
func (g *Gateway) refuseRecipe(r *request, key string) *api.Problem {
	if r.caller.AllKeys(access.Operate) {
		return nil
	}
	_, named := g.opt.Config().Recipe(key)
	if !named && g.opt.Ledger != nil {
		ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
		defer cancel()
		counts, err := g.opt.Ledger.Counts(ctx)
		if err != nil {
			return g.ledgerProblem(r.Context(), err)
		}
		_, named = counts[key]
	}
	if named {
		return forbidden(fmt.Sprintf("you may not end the key %q: a recipe has that name, and runs that belong to no key have it as their key. Use a token whose role is operate without a limit of keys", clipText(key)))
	}
	return nil
}

// forgetRequest returns a request in the caller's name. A repeated request with the same
// Idempotency-Key has the same id.
func (g *Gateway) forgetRequest(r *request, ask *api.KeyAsked) erase.Ask {
	named := tidemill.ID("key asked to be forgotten", r.callerName(), orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text()))
	var v broker.View
	telemetry.Remember(r.trace, &v)
	trace, _ := v.Attribute(tidemill.AttrTraceParent)
	return erase.Ask{Key: ask.Key, By: r.callerName(), Reason: ask.Reason, Component: "gateway", Correlation: named, Trace: trace,
		Cause: tidemill.Cause{Source: g.installNames().Source("gateway"), ID: named}}
}

// untilForgotten waits for the receipt. A missing receipt is not an error, because the caller can
// request the receipt later.
func (g *Gateway) untilForgotten(ctx context.Context, end *api.KeyEnd) bool {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if s, err := g.opt.Forgetter.State(ctx, end.ID); err == nil && s.Done {
			end.Done, end.Receipt = true, &s.Receipt
			return true
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		case <-g.ending:
			return false
		}
	}
}

// forgottenKey answers with the receipt, or with the progress so far.
func (g *Gateway) forgottenKey(w http.ResponseWriter, r *request) *api.Problem {
	if g.opt.Forgetter == nil {
		return noRuns()
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	s, err := g.opt.Forgetter.State(ctx, r.value)
	switch {
	case errors.Is(err, erase.ErrUnknown), err == nil && !r.caller.MayTouch(access.Read, s.Receipt.Key):
		return problem(api.NotFound, http.StatusNotFound, "there is no such request to forget a key",
			fmt.Sprintf("no request to forget a key has the id %q, or you may not see it, or no dispatcher has started it yet", clipText(r.value)))
	case err != nil:
		return g.forgetProblem(r.Context(), r.value, err, time.Now())
	}
	writeJSON(w, http.StatusOK, api.KeyEnd{ID: r.value, Done: s.Done, Receipt: &s.Receipt})
	return nil
}

// forgetProblem is the problem of a failed lookup or a failed publication.
func (g *Gateway) forgetProblem(ctx context.Context, what string, err error, began time.Time) *api.Problem {
	if errors.Is(err, broker.ErrInDoubt) {
		p := inDoubt(what, time.Since(began))
		p.Detail = fmt.Sprintf("key %q: Kafka did not confirm the request within %s; send it again, with the same %s if you gave one: the key is forgotten once",
			clipText(what), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.ledgerProblem(ctx, err)
}
