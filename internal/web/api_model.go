package web

import (
	"context"
	"errors"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/store"
)

// showModel answers with a model and all its versions, or with one version and
// what was measured of it.
func (g *Gateway) showModel(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query([]string{"model", "version"})
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Read, values.Get("model"))
	if p != nil {
		return p
	}
	var numbers []int
	which := values.Get("version")
	if which != "" {
		n, p := versionOf(m, which)
		if p != nil {
			return p
		}
		numbers = []int{n}
	}
	found, err := g.opt.Ledger.Versions(ctx, m.Name, numbers...)
	if err != nil {
		return g.unled(r.Context(), err)
	}
	whole := api.ModelWhole{Model: *m, All: make([]api.ModelVersion, len(found))}
	for i := range found {
		if whole.All[i], p = g.shownVersion(ctx, &found[i], which != ""); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findModel finds a model by its name. One that the caller may not touch is as
// unknown as one that there is not.
func (g *Gateway) findModel(ctx context.Context, r *request, role access.Role, name string) (*tidemill.Model, *api.Problem) {
	if name == "" {
		return nil, badParameter("model", "name one; GET /api/v1/models lists them")
	}
	if err := tidemill.CheckDataset(name); err != nil {
		return nil, badParameter("model", err.Error())
	}
	m, err := g.opt.Ledger.Model(ctx, name)
	switch {
	case err != nil:
		return nil, g.unled(r.Context(), err)
	case m.Next == 0, !r.caller.MayTouch(role, m.Key) && !r.caller.AllKeys(role):
		return nil, unknownModel(name)
	}
	return m, nil
}

// versionOf is the number of a version that somebody names.
func versionOf(m *tidemill.Model, which string) (int, *api.Problem) {
	if _, _, err := tidemill.CutVersionName(m.Name + "@" + which); err != nil {
		return 0, badParameter("version", err.Error())
	}
	n := m.Which(which)
	if n == 0 {
		return 0, unknownVersion(m.Name, which)
	}
	return n, nil
}

// shownVersion has what was measured where that is wanted: it lies in the store.
func (g *Gateway) shownVersion(ctx context.Context, v *ledger.VersionRecord, measured bool) (api.ModelVersion, *api.Problem) {
	shown := api.ModelVersion{Version: v.Version, State: v.State, Judgement: v.Judgement}
	if !measured {
		return shown, nil
	}
	report, err := g.opt.Models.Report(ctx, &v.Version)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrMissing):
		report = tidemill.Report{Metrics: v.Metrics, Notes: []string{"the report is no longer in the store; these are the metrics that the version was registered with"}}
	case err != nil:
		return shown, g.storeFault("read the report of "+tidemill.VersionName(v.Model, v.Number), err)
	}
	shown.Measured = &report
	return shown, nil
}
