package gateway

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/fleet"
)

// fleetTable lists the routes of the fleet: all keys of all recipes.
func (g *Gateway) fleetTable() []route {
	return []route{
		{method: http.MethodGet, path: "/api/v1/fleet", role: access.Read, handle: g.countFleet},
		{method: http.MethodGet, path: "/api/v1/fleet/keys", role: access.Read, handle: g.listFleet},
		{method: http.MethodGet, path: "/api/v1/fleet/strip", role: access.Read, handle: g.stripFleet},
	}
}

// usualStale is the age from which a champion is stale, if the caller gives none.
const usualStale = "7d"

// countFleet answers with the numbers of keys in each state, by recipe.
func (g *Gateway) countFleet(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"recipe", "stale"})
	if p != nil {
		return p
	}
	v, p := g.viewFleet(r, values, time.Now())
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, v.Count(values.Get("recipe"), seenBy(r.caller, access.Read)))
	return nil
}

// stripFleet answers with the state or the age of every key, in the order of the keys.
func (g *Gateway) stripFleet(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"by", "recipe", "stale"})
	if p != nil {
		return p
	}
	by := orElse(values.Get("by"), fleet.ByState)
	if by != fleet.ByState && by != fleet.ByAge {
		return badParameter("by", clipText(by)+" is neither state nor age")
	}
	v, p := g.viewFleet(r, values, time.Now())
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, v.Strip(values.Get("recipe"), by, seenBy(r.caller, access.Read)))
	return nil
}

// viewFleet returns the state of all keys now.
func (g *Gateway) viewFleet(r *request, values url.Values, now time.Time) (*fleet.View, *api.Problem) {
	stale, err := follow.ParseTime("-"+orElse(values.Get("stale"), usualStale), now)
	if err != nil {
		return nil, badParameter("stale", clipText(values.Get("stale"))+" is not a duration; write it like 12h or 7d")
	}
	if p := g.modelsThere(); p != nil {
		return nil, p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	f, err := g.opt.Ledger.Fleet(ctx)
	if err != nil {
		return nil, g.ledgerProblem(r.Context(), err)
	}
	return g.fleet.View(f, g.opt.Config(), now.Sub(stale), now), nil
}

// listFleet answers with a page of keys.
func (g *Gateway) listFleet(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "at", "limit", "pinned", "recipe", "running", "search", "sort", "stale", "state", "where"})
	if p != nil {
		return p
	}
	q, p := fleetQuery(values)
	if p != nil {
		return p
	}
	now := time.Now()
	v, p := g.viewFleet(r, values, now)
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	q.Seen = seenBy(r.caller, access.Read)
	page, err := v.Page(ctx, &q)
	if errors.Is(err, fleet.ErrAfter) {
		return badParameter("after", err.Error())
	}
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	shown, err := g.shownKeys(ctx, page.Rows, now)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, api.FleetKeys{Keys: shown, Next: page.Next, Total: page.Total, Index: page.Index})
	return nil
}

// fleetQuery reads the parameters of listFleet.
func fleetQuery(values url.Values) (q fleet.Query, p *api.Problem) {
	q = fleet.Query{Recipe: values.Get("recipe"), Search: values.Get("search"), After: values.Get("after")}
	q.Sort, q.Descending = strings.CutPrefix(orElse(values.Get("sort"), "key"), "-")
	if !slices.Contains(fleet.Sorts(), q.Sort) {
		return q, badParameter("sort", clipText(q.Sort)+" is no order; known here: "+strings.Join(fleet.Sorts(), ", ")+", each with a - before it for descending")
	}
	if q.States, p = keyStates(values.Get("state")); p != nil {
		return q, p
	}
	for name, into := range map[string]**bool{"pinned": &q.Pinned, "running": &q.Running} {
		is, p := yesOf(values, name)
		if p != nil {
			return q, p
		}
		if values.Get(name) != "" {
			*into = &is
		}
	}
	if q.Where, p = runFilter(values.Get("where")); p != nil {
		return q, p
	}
	if at := values.Get("at"); at != "" {
		n, err := strconv.Atoi(at)
		if err != nil || n < 0 || q.After != "" {
			return q, badParameter("at", clipText(at)+" is not valid; give the index of the first key, from 0, and no after")
		}
		q.At = n
	}
	q.Limit, p = limitOf(values, mostOnOne, usualPage)
	return q, p
}

// keyStates reads states that are separated by commas.
func keyStates(text string) (states []api.KeyState, p *api.Problem) {
	if text == "" {
		return nil, nil
	}
	known := api.KeyStates()
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(known, api.KeyState(name)) {
			var names []string
			for _, s := range known {
				names = append(names, string(s))
			}
			return nil, badParameter("state", clipText(name)+" is no state of a key; known here: "+strings.Join(names, ", "))
		}
		states = append(states, api.KeyState(name))
	}
	return states, nil
}

// shownKeys returns the keys of a page, with the details of their models.
func (g *Gateway) shownKeys(ctx context.Context, rows []fleet.Row, now time.Time) ([]api.FleetKey, error) {
	var names []string
	for i := range rows {
		if rows[i].Model != "" {
			names = append(names, rows[i].Model)
		}
	}
	found, err := g.opt.Ledger.ModelsOf(ctx, names)
	if err != nil {
		return nil, err
	}
	models := make([]fold.Model, 0, len(found))
	for _, m := range found {
		models = append(models, *m)
	}
	metrics, err := g.opt.Ledger.ChampionMetrics(ctx, models)
	if err != nil {
		return nil, err
	}
	judged, err := g.newestJudgements(ctx, models, tidemill.VersionAwaiting, tidemill.VersionRefused)
	if err != nil {
		return nil, err
	}
	shown := make([]api.FleetKey, len(rows))
	for i := range rows {
		shown[i] = shownKey(&rows[i], now)
		if why := whyJudged(&rows[i], judged[rows[i].Model]); why != "" {
			shown[i].Why = why
		}
		// The model may be newer than the row.
		if m := found[rows[i].Model]; m != nil && m.Champion == rows[i].Champion {
			shown[i].Promoted, shown[i].Metrics = promotedAt(m), metrics[m.Name]
		}
	}
	return shown, nil
}

func shownKey(r *fleet.Row, now time.Time) api.FleetKey {
	return api.FleetKey{Recipe: r.Recipe, Key: r.Key, Model: r.Model, State: r.State, Why: whyState(r, now), Champion: r.Champion, Newest: r.Newest,
		NewestState: r.NewestState, Registered: milliseconds(r.Registered), Began: milliseconds(r.Began), Pinned: r.Pinned, Running: r.Running}
}

// milliseconds returns a time that is given in Unix milliseconds; nil for 0.
func milliseconds(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	return new(time.UnixMilli(ms).UTC())
}

// promotedAt returns when the champion was promoted last; nil if it is not known any more.
func promotedAt(m *fold.Model) (at *time.Time) {
	for i := range m.Changes {
		if m.Changes[i].Version == m.Champion {
			at = &m.Changes[i].At
		}
	}
	return at
}

// whyState says why a key is in its state. It is empty for a fresh key.
func whyState(r *fleet.Row, now time.Time) string {
	newest := "version " + number(r.Newest)
	switch r.State {
	case api.KeyAwaiting:
		return newest + " waits for a person"
	case api.KeyRefused:
		return newest + " was refused"
	case api.KeyFailing:
		return "its last run failed " + roughAge(now.Sub(time.UnixMilli(r.Failed))) + " ago"
	case api.KeyUnserved:
		return "a scorer cannot serve version " + number(r.Champion)
	case api.KeyDrifting:
		return "figures of its answers have drifted"
	case api.KeyStale:
		return "its champion was trained " + roughAge(now.Sub(time.UnixMilli(r.Began))) + " ago"
	case api.KeyNone:
		return whyNone(&r.FleetKey)
	}
	return ""
}

// whyJudged says what the gate gave as the reason for a key's state: the first condition that failed, or why the version
// waits. It is empty if the gate gave none.
func whyJudged(r *fleet.Row, j *tidemill.Judgement) string {
	newest := "version " + number(r.Newest)
	switch {
	case j == nil:
		return ""
	case r.State == api.KeyAwaiting && j.Hold != "":
		return newest + " waits: " + j.Hold
	case r.State != api.KeyRefused:
		return ""
	}
	i := slices.IndexFunc(j.Clauses, func(c tidemill.Clause) bool { return !c.Passed })
	if i < 0 {
		return ""
	}
	failed := j.Clauses[i]
	why := newest + " fails " + failed.Text
	for _, name := range slices.Sorted(maps.Keys(failed.Values)) {
		why += ", " + name + " is " + strconv.FormatFloat(failed.Values[name], 'g', 4, 64)
	}
	if failed.Note != "" {
		why += ", " + failed.Note
	}
	return why
}

func whyNone(k *ledger.FleetKey) string {
	switch {
	case k.Newest != 0:
		return "it has no champion: its newest version is " + string(k.NewestState)
	case k.Last == tidemill.RunCancelled:
		return "its last run was cancelled"
	case k.Last == "":
		return "none of its runs has ended"
	}
	return "it has no version"
}
