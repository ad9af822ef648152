package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/lineage"
)

func modelParameters() []string {
	return []string{"after", "awaiting", "key", "limit", "pinned", "prefix", "recipe", "stale"}
}

// modelsThere returns a problem if this gateway has no models.
func (g *Gateway) modelsThere() *api.Problem {
	if g.opt.Ledger == nil || g.opt.Models == nil {
		return noRuns()
	}
	return nil
}

// listModels answers with models, by name; if only stale ones are wanted, the stalest first.
func (g *Gateway) listModels(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query(modelParameters())
	if p != nil {
		return p
	}
	now := time.Now()
	q, p := modelQuery(values, now)
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	q.Seen = seenBy(r.caller, access.Read)
	page, err := g.opt.Ledger.Models(ctx, q)
	if err != nil {
		return g.unled(r.Context(), err)
	}
	metrics, err := g.opt.Ledger.ChampionMetrics(ctx, page.Models)
	if err != nil {
		return g.unled(r.Context(), err)
	}
	shown := make([]api.ModelShown, len(page.Models))
	for i := range page.Models {
		shown[i] = shownModel(&page.Models[i], q.Stale, now)
		shown[i].Metrics = metrics[shown[i].Name]
	}
	writeJSON(w, http.StatusOK, api.Models{Models: shown, Next: page.Next})
	return nil
}

// modelQuery reads the parameters of listModels.
func modelQuery(values url.Values, now time.Time) (q ledger.ModelQuery, p *api.Problem) {
	q = ledger.ModelQuery{Recipe: values.Get("recipe"), Key: values.Get("key"), Prefix: values.Get("prefix"), After: values.Get("after")}
	if q.Awaiting, p = yesOf(values, "awaiting"); p != nil {
		return q, p
	}
	if q.Pinned, p = yesOf(values, "pinned"); p != nil {
		return q, p
	}
	if stale := values.Get("stale"); stale != "" {
		at, err := follow.ParseTime("-"+stale, now)
		if err != nil {
			return q, badParameter("stale", clip(stale)+" is no duration; write it like 12h or 7d")
		}
		q.Stale = at
	}
	q.Limit, p = limitOf(values, mostOnOne, usualPage)
	return q, p
}

// yesOf reads a parameter that is true, false or absent.
func yesOf(values url.Values, name string) (bool, *api.Problem) {
	switch text := values.Get(name); text {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, badParameter(name, clip(text)+" is neither true nor false")
	}
}

// seenBy returns a filter for the keys whose models a caller may see; nil means all.
func seenBy(caller *access.Caller, role access.Role) func(key string) bool {
	if caller.AllKeys(role) {
		return nil
	}
	return func(key string) bool { return caller.MayTouch(role, key) }
}

// shownModel returns one entry of the list. It says why the model is stale if the caller
// asked for stale ones.
func shownModel(m *fold.Model, stale, now time.Time) api.ModelShown {
	s := api.ModelShown{Name: m.Name, Key: m.Key, Recipe: m.Recipe, Champion: m.Champion, Newest: m.Last, Versions: len(m.Versions)}
	if n := len(m.Versions); n > 0 {
		s.State = m.Versions[n-1].State
	}
	if c := m.Find(m.Champion); c != nil {
		s.Began = &c.Began
	}
	for _, c := range m.Changes {
		if c.Version == m.Champion {
			s.Promoted = &c.At
		}
	}
	if m.Pin != nil {
		s.Pinned, s.PinnedBy = true, m.Pin.By
	}
	if !m.Retired.IsZero() {
		s.Retired = &m.Retired
	}
	if !stale.IsZero() {
		s.Why = whyStale(&s, now)
	}
	return s
}

func whyStale(s *api.ModelShown, now time.Time) string {
	switch {
	case s.Retired != nil:
		return "its key has gone"
	case s.Champion == 0 && s.State == "":
		return "it has no version"
	case s.Champion == 0:
		return "it has no champion: its newest version is " + string(s.State)
	case s.Began == nil:
		return "it is not known when its champion's run began"
	}
	why := []string{"its champion learnt " + roughAge(now.Sub(*s.Began)) + " ago"}
	if s.Newest != s.Champion {
		why = append(why, "version "+number(s.Newest)+" is "+string(s.State))
	}
	if s.Pinned {
		why = append(why, "it is pinned")
	}
	return strings.Join(why, ", and ")
}

// roughAge writes a duration in its largest unit.
func roughAge(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return number(int(d/day)) + " days"
	case d >= 2*time.Hour:
		return number(int(d/time.Hour)) + " hours"
	case d >= 2*time.Minute:
		return number(int(d/time.Minute)) + " minutes"
	}
	return number(int(d/time.Second)) + " seconds"
}

// showModel answers with a model and all its versions, or with one version and its
// measurements.
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

// findModel finds a model by its name. A model that the caller may not touch is answered like
// an unknown one.
func (g *Gateway) findModel(ctx context.Context, r *request, role access.Role, name string) (*fold.Model, *api.Problem) {
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

// versionOf returns the number of the version that a text names.
func versionOf(m *fold.Model, which string) (int, *api.Problem) {
	if _, _, err := tidemill.CutVersionName(m.Name + "@" + which); err != nil {
		return 0, badParameter("version", err.Error())
	}
	n := m.Which(which)
	if n == 0 {
		return 0, unknownVersion(m.Name, which)
	}
	return n, nil
}

// shownVersion adds the measurements from the store if they are wanted.
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

// showWhy answers with the causes and consequences of a thing.
func (g *Gateway) showWhy(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query([]string{"of"})
	if p != nil {
		return p
	}
	of := values.Get("of")
	if of == "" {
		return badParameter("of", "name a thing: run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID")
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	graph, err := lineage.Of(ctx, g.whySources(r.caller), of)
	if err != nil {
		return g.untold(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, graph)
	return nil
}

func (g *Gateway) whySources(caller *access.Caller) lineage.Sources {
	all := caller.AllKeys(access.Read)
	return lineage.Sources{Ledger: g.opt.Ledger, Broker: g.opt.Broker, Store: g.opt.Store, Names: g.names(), Config: g.opt.Config(),
		MayRead:     func(key string) bool { return all || caller.MayTouch(access.Read, key) },
		MayReadData: func(dataset string) bool { return g.touches(caller, access.Read, dataset) }}
}

// untold is the problem of a failed lineage lookup.
func (g *Gateway) untold(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, lineage.ErrRef), errors.Is(err, ledger.ErrAmbiguous), errors.Is(err, store.ErrInvalid):
		return badParameter("of", err.Error())
	case errors.Is(err, lineage.ErrUnknown):
		return problem(api.NotFound, http.StatusNotFound, "there is nothing here", err.Error())
	}
	return g.unled(ctx, err)
}
