package web

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/tail"
)

func modelParameters() []string {
	return []string{"after", "awaiting", "key", "limit", "pinned", "prefix", "recipe", "stale"}
}

// modelsThere is a problem where there are no models.
func (g *Gateway) modelsThere() *api.Problem {
	if g.opt.Ledger == nil || g.opt.Models == nil {
		return noRuns()
	}
	return nil
}

// listModels answers with models, by name; with stale ones, the stalest first.
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

// modelQuery reads what is looked for.
func modelQuery(values url.Values, now time.Time) (q ledger.ModelQuery, p *api.Problem) {
	q = ledger.ModelQuery{Recipe: values.Get("recipe"), Key: values.Get("key"), Prefix: values.Get("prefix"), After: values.Get("after")}
	if q.Awaiting, p = yesOf(values, "awaiting"); p != nil {
		return q, p
	}
	if q.Pinned, p = yesOf(values, "pinned"); p != nil {
		return q, p
	}
	if stale := values.Get("stale"); stale != "" {
		at, err := tail.ParseTime("-"+stale, now)
		if err != nil {
			return q, badParameter("stale", clip(stale)+" is no duration; write it like 12h or 7d")
		}
		q.Stale = at
	}
	q.Limit, p = limitOf(values, mostOnOne, usualPage)
	return q, p
}

// yesOf reads a parameter that is true or not there.
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

// seenBy says of which keys a caller may know models; nil is of all.
func seenBy(caller *access.Caller, role access.Role) func(key string) bool {
	if caller.AllKeys(role) {
		return nil
	}
	return func(key string) bool { return caller.MayTouch(role, key) }
}

// shownModel is a model in a line. It says why it is stale where that was asked
// for.
func shownModel(m *tidemill.Model, stale, now time.Time) api.ModelShown {
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

// roughAge is a duration in its largest unit.
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
