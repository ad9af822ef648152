package gateway

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/runmetrics"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/ops/telemetry"
)

// showHistory answers with the numbers of one scorer, stream, pool or trigger in the last two hours.
func (g *Gateway) showHistory(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"of"})
	if p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	of := values.Get("of")
	if p := g.findMeasured(ctx, of); p != nil {
		return p
	}
	past, err := g.opt.History.Read(ctx, of, time.Now())
	if err != nil {
		g.log.Warn("gateway: reading a history failed; the caller gets a 503", "reason", err)
		return unavailable("the history cannot be read from Redis now; try again later")
	}
	shown := api.History{Of: of, Every: int(status.HistoryEvery.Seconds()), Until: past.Until, Series: map[string][]*float64{}, Events: []api.HistorySwap{}}
	for name, points := range past.Series {
		shown.Series[name] = pointsOrNull(points)
	}
	if r.caller.AllKeys(access.Read) { // a model is named after its key
		for _, s := range past.Swaps {
			shown.Events = append(shown.Events, api.HistorySwap{At: s.At, Model: s.Model, Before: s.Before, Version: s.Version})
		}
	}
	writeJSON(w, http.StatusOK, shown)
	return nil
}

// findMeasured returns a problem if there is no such scorer, stream, pool or trigger.
func (g *Gateway) findMeasured(ctx context.Context, of string) *api.Problem {
	c := g.opt.Config()
	kind, name, _ := strings.Cut(of, ":")
	switch kind {
	case "scorer":
		if _, ok := c.Scorer(name); !ok {
			return g.unknownScorer(name)
		}
	case "trigger":
		if _, ok := c.Trigger(name); !ok {
			return g.unknownTrigger(name)
		}
	case "pool":
		if _, ok := c.Pool(name); !ok {
			return g.unknownPool(name)
		}
	case "stream":
		if _, ok := c.Stream(name); ok {
			return nil
		}
		infos, err := g.survey.current(ctx)
		if err != nil {
			return g.kafkaProblem(ctx, err)
		}
		for i := range infos {
			if infos[i].Name == name {
				return nil
			}
		}
		return noSuchStream(name, namesOf(infos))
	default:
		return badParameter("of", "name a scorer, stream, pool or trigger, as scorer:NAME")
	}
	return nil
}

// pointsOrNull returns null for each unknown point, because JSON has no NaN.
func pointsOrNull(points []float64) []*float64 {
	all := make([]*float64, len(points))
	for i := range points {
		if !math.IsNaN(points[i]) {
			all[i] = &points[i]
		}
	}
	return all
}

// Figures returns the numbers that histories have, of all scorers, streams, pools and triggers. It leaves out the
// things whose numbers it could not read.
func (g *Gateway) Figures(ctx context.Context) map[string]status.Figures {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	all := map[string]status.Figures{}
	look := g.lookAtScorers(ctx)
	g.addScorers(all, look)
	for _, f := range all {
		g.observeFresh(ctx, f.Swaps)
	}
	addStreams(all, look.streams)
	g.addTriggers(ctx, all)
	g.addPools(ctx, all)
	return all
}

func (g *Gateway) addScorers(to map[string]status.Figures, look *scorerLook) {
	for _, c := range g.opt.Config().Scorers {
		whole, n := status.Of(look.processes, c.Name)
		f := status.Figures{Values: []float64{whole.Rate, float64(whole.Lag), latencyOf(whole.P50), latencyOf(whole.P99), float64(whole.Held)}, Processes: n, Swaps: whole.Swaps}
		if n == 0 { // also if Redis could not be read
			for i := range f.Values {
				f.Values[i] = status.Unknown()
			}
		}
		if lag := look.groupLag(&c); lag != nil {
			f.Values[1] = float64(*lag)
		}
		to["scorer:"+c.Name] = f
	}
}

// latencyOf returns a latency in seconds. A scorer that has scored nothing lately has none.
func latencyOf(d time.Duration) float64 {
	if d == 0 {
		return status.Unknown()
	}
	return d.Seconds()
}

// addStreams adds the ends of streams, and how far the dispatchers are behind.
func addStreams(to map[string]status.Figures, streams []broker.StreamInfo) {
	for i := range streams {
		s := &streams[i]
		end, lag := 0.0, status.Unknown()
		for _, p := range s.Partitions {
			end += float64(p.End)
		}
		for _, group := range s.Groups {
			if group.Group == tidemill.TriggersGroup(s.Name) {
				lag = float64(group.Lag)
			}
		}
		to["stream:"+s.Name] = status.Figures{Values: []float64{end, lag}}
	}
}

func (g *Gateway) addTriggers(ctx context.Context, to map[string]status.Figures) {
	whole, err := g.opt.Standing.Read(ctx)
	if err != nil {
		return
	}
	for name, t := range whole.Triggers {
		to["trigger:"+name] = status.Figures{Values: []float64{float64(t.Delivered), float64(t.Failed), float64(t.Parked)}, Processes: whole.Dispatchers}
	}
}

func (g *Gateway) addPools(ctx context.Context, to map[string]status.Figures) {
	if g.opt.Ledger == nil {
		return
	}
	pools, p := g.poolsNow(ctx)
	if p != nil {
		return
	}
	for _, p := range pools {
		idle := p.IdleSeconds
		if g.opt.Warm == nil {
			idle = status.Unknown()
		}
		to["pool:"+p.Name] = status.Figures{Values: []float64{float64(p.Running), float64(p.Waiting), float64(p.Slots), idle}}
	}
}

// freshWithin is the longest time from a promotion to the first score that counts. A scorer that begins again, or gets
// other partitions, reports a swap too. Redis knows then that the version has scored before, unless it was flushed.
const freshWithin = status.HistoryPoints * status.HistoryEvery

// freshTimes observes the time to a fresh model. Only the goroutine that samples the history uses it.
type freshTimes struct {
	seen    map[string]int // newest version of each model that was looked at
	seconds *prometheus.HistogramVec
}

const mostSeen = 100_000 // models in freshTimes.seen

func (g *Gateway) openFresh() error {
	g.fresh = freshTimes{seen: map[string]int{}, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_fresh_model_seconds",
		Help:    "From the newest event that led to a version to the version's first score, by stage. One gateway at a time observes it.",
		Buckets: []float64{.1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200}}, []string{"recipe", "stage"})}
	return g.opt.Telemetry.Registry().Register(g.fresh.seconds)
}

// observeFresh adds the versions that have scored for the first time. It runs with each sample of the history, so that
// no follower of its own is needed.
func (g *Gateway) observeFresh(ctx context.Context, swaps []status.Swap) {
	if g.opt.Fresh == nil || g.opt.Ledger == nil {
		return
	}
	if len(g.fresh.seen) > mostSeen {
		clear(g.fresh.seen)
	}
	for _, s := range slices.Backward(swaps) { // the newest is the first
		if g.fresh.seen[s.Model] >= s.Version {
			continue
		}
		if err := g.addFresh(ctx, s); err != nil {
			g.log.Debug("gateway: the time to a fresh model is not known yet; trying again", "model", s.Model, "version", s.Version, "reason", err)
			continue
		}
		g.fresh.seen[s.Model] = s.Version
	}
}

// addFresh adds the stages of a version, unless the version has scored before.
func (g *Gateway) addFresh(ctx context.Context, s status.Swap) error {
	s.At = s.At.Truncate(time.Millisecond) // as Redis keeps it, so that the run has the same stages
	m, err := g.opt.Ledger.Model(ctx, s.Model)
	if err != nil {
		return err
	}
	run, err := g.runOfVersion(ctx, m, s.Version)
	if err != nil {
		return err
	}
	asked, event, err := g.newestRequest(ctx, run)
	if err != nil {
		return err
	}
	stages := runmetrics.StagesOf(run, asked, m, s.Version, s.At)
	if late := stages.Swapping; late == nil || *late > freshWithin.Seconds() {
		return nil
	}
	first, err := g.opt.Fresh.Claim(ctx, s)
	if err != nil || !first {
		return err
	}
	stages.Each(func(stage string, seconds *float64) {
		if seconds != nil {
			g.fresh.seconds.WithLabelValues(m.Recipe, stage).Observe(*seconds)
		}
	})
	g.traceFresh(event, s, m.Recipe, &stages)
	return g.opt.Fresh.Add(ctx, m.Recipe, stages)
}

// traceFresh adds the way to a fresh model to the trace of the event that led to it: one span to the first score, and in
// it one for each stage, up to the first stage that is not known.
func (g *Gateway) traceFresh(event context.Context, s status.Swap, recipe string, stages *api.FreshStages) {
	if stages.Total == nil {
		return
	}
	after := func(at time.Time, seconds float64) time.Time {
		return at.Add(time.Duration(seconds * float64(time.Second)))
	}
	at, known := after(s.At, -*stages.Total), true
	event, whole := g.tracer.Start(event, "fresh model", trace.WithTimestamp(at), trace.WithAttributes(attribute.String("tidemill.recipe", recipe),
		attribute.String("tidemill.model", s.Model), attribute.Int("tidemill.model.version", s.Version)))
	stages.Each(func(stage string, seconds *float64) {
		if known = known && seconds != nil; known && stage != "total" {
			_, span := g.tracer.Start(event, stage, trace.WithTimestamp(at))
			at = after(at, *seconds)
			span.End(trace.WithTimestamp(at))
		}
	})
	whole.End(trace.WithTimestamp(s.At))
}

// runOfVersion returns the run that made a version; nil if the ledger has forgotten it.
func (g *Gateway) runOfVersion(ctx context.Context, m *fold.Model, version int) (*tidemill.Run, error) {
	for _, held := range m.Versions {
		if held.Number == version {
			runs, err := g.opt.Ledger.RunsOf(ctx, []string{held.Run})
			return runs[held.Run], err
		}
	}
	return nil, nil
}

// newestRequest returns the time of a run's newest request, and the context of its trace. The time is zero if it is not
// known.
func (g *Gateway) newestRequest(ctx context.Context, run *tidemill.Run) (asked time.Time, event context.Context, err error) {
	event = ctx
	if run != nil && len(run.Asked) > 0 {
		err = g.factsAt(ctx, run.Partition, []int64{run.LastAsked()}, func(e *broker.Incoming) error {
			asked, event = e.Time, telemetry.ContextOf(ctx, &e.View)
			return nil
		})
	}
	return asked, event, err
}

// addStages adds the stages to the answer about a run. Without a version, or if the version has not scored, the later
// stages are null.
func (g *Gateway) addStages(ctx context.Context, run *tidemill.Run, whole *api.RunWhole) error {
	var m *fold.Model
	var swapped time.Time
	version := 0
	if whole.Plan != nil && whole.Plan.Model != "" {
		var err error
		if m, err = g.opt.Ledger.Model(ctx, whole.Plan.Model); err != nil {
			return err
		}
		if i := slices.IndexFunc(m.Versions, func(h fold.Held) bool { return h.Run == run.ID }); i >= 0 {
			version = m.Versions[i].Number
			if swapped, err = g.opt.Fresh.Swapped(ctx, m.Name, version); err != nil {
				return err
			}
		}
	}
	asked, _, err := g.newestRequest(ctx, run)
	if err == nil {
		whole.Stages = new(runmetrics.StagesOf(run, asked, m, version, swapped))
	}
	return err
}

// showFreshness answers with the time to a fresh model of all recipes that make models, or of one recipe.
func (g *Gateway) showFreshness(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"recipe"})
	if p != nil {
		return p
	}
	recipes := slices.DeleteFunc(slices.Clone(g.opt.Config().Recipes), func(c config.Recipe) bool { return c.Makes.Model == "" })
	if name := values.Get("recipe"); name != "" {
		c, ok := g.opt.Config().Recipe(name)
		if !ok {
			return g.unknownRecipe(name)
		}
		recipes = []config.Recipe{c}
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	shown := api.Freshness{Recipes: []api.RecipeFreshness{}}
	for _, c := range recipes {
		all, err := g.opt.Fresh.Read(ctx, c.Name)
		if err != nil {
			g.log.Warn("gateway: reading the times to fresh models failed; the caller gets a 503", "reason", err)
			return unavailable("the times cannot be read from Redis now; try again later")
		}
		shown.Recipes = append(shown.Recipes, api.RecipeFreshness{Recipe: c.Name, Models: len(all), Stages: runmetrics.Summarize(all)})
	}
	writeJSON(w, http.StatusOK, shown)
	return nil
}
