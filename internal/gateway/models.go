package gateway

import (
	"context"
	"errors"
	"fmt"
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
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/evaluate"
	"tidemill.dev/internal/models/lineage"
	"tidemill.dev/internal/models/lineage/drawing"
)

func modelParameters() []string {
	return []string{"after", "awaiting", "drifting", "key", "limit", "pinned", "prefix", "recipe", "stale"}
}

// modelsThere returns a problem if this gateway has no models.
func (g *Gateway) modelsThere() *api.Problem {
	if g.opt.Ledger == nil || g.opt.Models == nil {
		return noRuns()
	}
	return nil
}

// listModels answers with models, sorted by name. If only stale models are requested, the stalest
// model comes first.
func (g *Gateway) listModels(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery(modelParameters())
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
		return g.ledgerProblem(r.Context(), err)
	}
	metrics, err := g.opt.Ledger.ChampionMetrics(ctx, page.Models)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	waiting, err := g.newestJudgements(ctx, page.Models, tidemill.VersionAwaiting)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	shown := make([]api.ModelShown, len(page.Models))
	for i := range page.Models {
		s := shownModel(&page.Models[i], q.Stale, now)
		s.Metrics = metrics[s.Name]
		if j := waiting[s.Name]; j != nil {
			s.Hold, s.Lacks = j.Hold, j.Lacks
		}
		shown[i] = s
	}
	writeJSON(w, http.StatusOK, api.Models{Models: shown, Next: page.Next, Total: page.Total})
	return nil
}

// newestJudgements returns the judgements of the newest versions that are in one of the states, by model.
func (g *Gateway) newestJudgements(ctx context.Context, models []fold.Model, states ...tidemill.VersionState) (map[string]*tidemill.Judgement, error) {
	var held []ledger.HeldBy
	for i := range models {
		all := models[i].Versions
		if n := len(all); n > 0 && slices.Contains(states, all[n-1].State) {
			held = append(held, ledger.HeldBy{Model: models[i].Name, Held: all[n-1]})
		}
	}
	records, err := g.opt.Ledger.VersionsOf(ctx, held)
	if err != nil {
		return nil, fmt.Errorf("look up how versions were judged: %w", err)
	}
	all := make(map[string]*tidemill.Judgement, len(records))
	for i := range records {
		all[records[i].Model] = records[i].Judgement
	}
	return all, nil
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
	if q.Drifting, p = yesOf(values, "drifting"); p != nil {
		return q, p
	}
	if stale := values.Get("stale"); stale != "" {
		at, err := follow.ParseTime("-"+stale, now)
		if err != nil {
			return q, badParameter("stale", clipText(stale)+" is not a duration; write it like 12h or 7d")
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
		return false, badParameter(name, clipText(text)+" is neither true nor false")
	}
}

// seenBy returns a filter for the models that a caller may see; nil means all.
func seenBy(caller *access.Caller, role access.Role) func(recipe, key string) bool {
	if caller.AllKeys(role) {
		return nil
	}
	return func(recipe, key string) bool { return caller.MayTouch(role, tidemill.OwnerOf(recipe, key)) }
}

// shownModel returns one entry of the list. If the caller requested stale models, the entry says
// why the model is stale.
func shownModel(m *fold.Model, stale, now time.Time) api.ModelShown {
	s := api.ModelShown{Name: m.Name, Key: m.Key, Recipe: m.Recipe, Champion: m.Champion, Newest: m.Last, Versions: len(m.Versions), Unserved: m.Unserved, Drifts: m.Drifts}
	if n := len(m.Versions); n > 0 {
		s.State = m.Versions[n-1].State
	}
	if c := m.Find(m.Champion); c != nil {
		s.Began = &c.Began
	}
	s.Promoted = promotedAt(m)
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
		return "its key is deleted"
	case s.Champion == 0 && s.State == "":
		return "it has no version"
	case s.Champion == 0:
		return "it has no champion: its newest version is " + string(s.State)
	case s.Began == nil:
		return "it is unknown when its champion was trained"
	}
	why := []string{"its champion was trained " + roughAge(now.Sub(*s.Began)) + " ago"}
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

// showModel answers with a model and all its versions, or with one version and its measurements.
func (g *Gateway) showModel(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"model", "version"})
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
		return g.ledgerProblem(r.Context(), err)
	}
	whole := api.ModelWhole{Model: *m, All: make([]api.ModelVersion, len(found))}
	for i := range found {
		if whole.All[i], p = g.shownVersion(ctx, &found[i], which != ""); p != nil {
			return p
		}
		g.addTrial(ctx, &whole.All[i])
	}
	if whole.Live, p = g.liveFigures(ctx, m); p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findModel finds a model by its name. The answer for a model that the caller may not touch is the
// same as for an unknown model.
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
		return nil, g.ledgerProblem(r.Context(), err)
	case m.Next == 0:
		return nil, unknownModel(name)
	case !r.caller.MayTouch(role, tidemill.OwnerOf(m.Recipe, m.Key)) && !r.caller.AllKeys(role):
		g.noteRefusal(r, role, "models", forbidden("model "+name+" is not of a key that the caller may "+string(role)))
		return nil, unknownModel(name)
	}
	return m, nil
}

// versionOf returns the number of the version that a text names.
func versionOf(m *fold.Model, which string) (int, *api.Problem) {
	if err := tidemill.CheckWhich(which); err != nil {
		return 0, badParameter("version", strconv.Quote(clipText(which))+": "+err.Error())
	}
	n := m.Which(which)
	if n == 0 {
		return 0, unknownVersion(m.Name, which)
	}
	return n, nil
}

// shownVersion returns a version, with the measurements from the store if the caller wants them.
func (g *Gateway) shownVersion(ctx context.Context, v *ledger.VersionRecord, measured bool) (api.ModelVersion, *api.Problem) {
	shown := api.ModelVersion{Version: v.Version, State: v.State, Judgement: v.Judgement}
	if !measured {
		return shown, nil
	}
	report, err := g.opt.Models.Report(ctx, &v.Version)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrMissing):
		report = tidemill.Report{Metrics: v.Metrics, Notes: []string{"the report is no longer in the store; these are the metrics from the registration of the version"}}
	case err != nil:
		return shown, g.storeFault("read the report of "+tidemill.VersionName(v.Model, v.Number), err)
	}
	shown.Measured = &report
	return shown, nil
}

// showWhy answers with the causes and consequences of a run, model, commit or event.
func (g *Gateway) showWhy(w http.ResponseWriter, r *request) *api.Problem {
	ask, p := readWhy(r)
	if p != nil {
		return p
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	graph, err := lineage.Of(ctx, g.whySources(r.caller), ask.of)
	if err != nil {
		return g.lineageProblem(r.Context(), err)
	}
	if ask.part {
		graph = lineage.Nearest(graph, ask.direction, ask.limit)
	}
	if ask.positions {
		graph.Layout = drawing.Positions(&graph, func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") })
	}
	writeJSON(w, http.StatusOK, graph)
	return nil
}

// mostDrawn is the largest number of nodes in a graph.
const mostDrawn = 200

// whyAsked is a request for causes and effects.
type whyAsked struct {
	of        string
	part      bool // only a part of the graph is wanted
	direction lineage.Direction
	limit     int
	positions bool
}

func readWhy(r *request) (ask whyAsked, p *api.Problem) {
	values, p := r.parseQuery([]string{"of", "direction", "limit", "layout"})
	if p != nil {
		return ask, p
	}
	if ask.of = values.Get("of"); ask.of == "" {
		return ask, badParameter("of", "give an id: run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID")
	}
	ask.part, ask.direction = values.Has("direction") || values.Has("limit"), lineage.Direction(orElse(values.Get("direction"), string(lineage.BothWays)))
	if !slices.Contains(lineage.Directions(), ask.direction) {
		return ask, badParameter("direction", fmt.Sprintf("%q is not valid; give both, causes or effects", clipText(string(ask.direction))))
	}
	if ask.limit, p = limitOf(values, mostDrawn, mostDrawn); p != nil {
		return ask, p
	}
	switch layout := values.Get("layout"); layout {
	case "", "positions":
		ask.positions = layout != ""
		return ask, nil
	default:
		return ask, badParameter("layout", fmt.Sprintf("%q is not valid; give positions, or leave it out", clipText(layout)))
	}
}

func (g *Gateway) whySources(caller *access.Caller) lineage.Sources {
	all := caller.AllKeys(access.Read)
	return lineage.Sources{Ledger: g.opt.Ledger, Broker: g.opt.Broker, Store: g.opt.Store, Names: g.installNames(), Config: g.opt.Config(),
		MayRead:     func(key string) bool { return all || caller.MayTouch(access.Read, key) },
		MayReadData: func(dataset string) bool { return g.hasRoleFor(caller, access.Read, dataset) }}
}

// lineageProblem is the problem of a failed lineage lookup.
func (g *Gateway) lineageProblem(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, lineage.ErrRef), errors.Is(err, ledger.ErrAmbiguous), errors.Is(err, store.ErrInvalid):
		return badParameter("of", err.Error())
	case errors.Is(err, lineage.ErrUnknown):
		return problem(api.NotFound, http.StatusNotFound, "there is no such path", err.Error())
	}
	return g.ledgerProblem(ctx, err)
}

// liveFigures returns the live figures of a model, the newest version first.
func (g *Gateway) liveFigures(ctx context.Context, m *fold.Model) ([]api.LiveFigures, *api.Problem) {
	if len(m.Live) == 0 {
		return nil, nil
	}
	var numbers []int
	for _, d := range m.Live {
		numbers = append(numbers, d.Version)
	}
	versions, err := g.opt.Ledger.Versions(ctx, m.Name, numbers...)
	if err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	gates := map[int]*float64{}
	for i := range versions {
		if accuracy, has := versions[i].Metrics["accuracy"]; has {
			gates[versions[i].Number] = &accuracy
		}
	}
	var all []api.LiveFigures
	for _, d := range slices.Backward(m.Live) {
		all = append(all, liveOf(&d, gates[d.Version]))
	}
	return all, nil
}

// liveOf returns the figures of one version in a scorer. The gate judged an accuracy of its own, unless it is nil.
func liveOf(d *tidemill.Measured, gate *float64) api.LiveFigures {
	f := evaluate.LiveFigures(d)
	l := api.LiveFigures{Scorer: d.Scorer, Version: d.Version, Sentence: evaluate.CompareLive(f.Accuracy, d.Answers, gate), Answers: d.Answers, Right: d.Right, Assumed: d.Assumed,
		Corrected: d.Corrected, Accuracy: f.Accuracy, Gate: gate, First: d.First, Last: d.Last, Classes: append([]tidemill.Class{}, f.Classes...), Cells: append([]tidemill.Cell{}, f.Cells...),
		Days: append([]tidemill.Day{}, d.Days...)}
	if e, ok := evaluate.CalibrationError(d); ok {
		l.CalibrationError = &e
	}
	for i, b := range d.Bins {
		of := api.LiveBin{From: float64(i) / 10, To: float64(i+1) / 10, Answers: b.Answers, Right: b.Right}
		if b.Answers > 0 {
			of.Score = float64(b.Score) / 1e6 / float64(b.Answers)
		}
		l.Bins = append(l.Bins, of)
	}
	return l
}
