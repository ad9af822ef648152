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

// listTrials answers with a page of the trials that are running.
func (g *Gateway) listTrials(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "key", "limit", "model", "recipe"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, status.MostTrials, status.MostTrials)
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
		model, recipe, key := values.Get("model"), values.Get("recipe"), values.Get("key")
		return model != "" && t.Model != model || recipe != "" && t.Recipe != recipe || key != "" && t.Key != key || seen != nil && !seen(t.Recipe, t.Key)
	})
	list := api.TrialList{Trials: []api.Trial{}, Total: len(all)}
	for _, t := range all {
		if t.Model <= values.Get("after") {
			continue
		}
		if len(list.Trials) == limit {
			list.Next = list.Trials[limit-1].Model
			break
		}
		list.Trials = append(list.Trials, t)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// listEndedTrials answers with a page of the trials that have ended.
func (g *Gateway) listEndedTrials(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "key", "limit", "model", "recipe"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostOnOne, usualPage)
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	page, err := g.opt.Ledger.EndedTrials(ctx, ledger.TrialQuery{Recipe: values.Get("recipe"), Key: values.Get("key"), Model: values.Get("model"),
		Seen: seenBy(r.caller, access.Read), After: values.Get("after"), Limit: limit})
	switch {
	case errors.Is(err, ledger.ErrNoPlace):
		return badParameter("after", err.Error())
	case err != nil:
		return g.ledgerProblem(r.Context(), err)
	}
	list := api.EndedTrials{Trials: []api.EndedTrial{}, Next: page.Next}
	for i := range page.Trials {
		list.Trials = append(list.Trials, endedTrial(&page.Trials[i]))
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func endedTrial(t *ledger.EndedTrial) api.EndedTrial {
	shown := api.EndedTrial{Model: t.Model, Version: t.Version, Recipe: t.Recipe, Key: t.Key, Ended: t.At, Passed: t.Level > 0}
	if t.Record == nil {
		return shown
	}
	shown.State = t.Record.State
	if j := t.Record.Judgement; j != nil {
		shown.Text = j.Sentence
		if j.Trial != nil {
			shown.Verdict, shown.Clauses = j.Trial, j.Clauses
		}
	}
	return shown
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
