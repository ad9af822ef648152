package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/trials"
	"tidemill.dev/internal/ops/status"
)

// Rejudge computes the verdict of a trial again.
type Rejudge func(ctx context.Context, v *ledger.VersionRecord) (trials.Recomputed, error)

// listTrials answers with the trials that are running.
func (g *Gateway) listTrials(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"model", "recipe"})
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	all, err := g.opt.Trials.Read(ctx)
	if err != nil {
		return unavailable("the states of the trials cannot be read now: " + err.Error() + "; try again later")
	}
	seen := seenBy(r.caller, access.Read)
	all = slices.DeleteFunc(all, func(t api.Trial) bool {
		model, recipe := values.Get("model"), values.Get("recipe")
		return model != "" && t.Model != model || recipe != "" && t.Recipe != recipe || seen != nil && !seen(t.Recipe, t.Key)
	})
	if all == nil {
		all = []api.Trial{}
	}
	writeJSON(w, http.StatusOK, api.TrialList{Trials: all[:min(len(all), status.MostTrials)]})
	return nil
}

// addTrial adds the state of a version's trial. It is left out if it is not known.
func (g *Gateway) addTrial(ctx context.Context, shown *api.ModelVersion) {
	if shown.State != tidemill.VersionTrial || g.opt.Trials == nil {
		return
	}
	all, err := g.opt.Trials.Read(ctx)
	if err != nil {
		return
	}
	i := slices.IndexFunc(all, func(t api.Trial) bool { return t.Model == shown.Model && t.Version == shown.Number })
	if i >= 0 {
		shown.OnTrial = &all[i]
	}
}

// rejudge answers with the verdict of a trial, computed again from the streams.
func (g *Gateway) rejudge(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"model", "version"})
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Read, values.Get("model"))
	if p != nil {
		return p
	}
	n, p := versionOf(m, values.Get("version"))
	if p != nil {
		return p
	}
	found, err := g.opt.Ledger.Versions(ctx, m.Name, n)
	switch {
	case err != nil:
		return g.ledgerProblem(r.Context(), err)
	case len(found) == 0:
		return unknownModel(m.Name)
	case g.opt.Rejudge == nil:
		return noScoring()
	}
	again, err := g.opt.Rejudge(ctx, &found[0])
	switch {
	case errors.Is(err, trials.ErrNoVerdict), errors.Is(err, trials.ErrExpired):
		return badParameter("version", err.Error())
	case err != nil:
		return unavailable("the verdict cannot be computed again now: " + err.Error() + "; try again later")
	}
	differs := again.Differs
	if differs == nil {
		differs = []string{}
	}
	writeJSON(w, http.StatusOK, api.Rejudged{Model: m.Name, Version: n, Recorded: again.Recorded, Again: again.Verdict, Differs: differs})
	return nil
}
