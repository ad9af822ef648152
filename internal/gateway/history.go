package gateway

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/status"
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
