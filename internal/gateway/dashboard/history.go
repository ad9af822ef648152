package dashboard

import (
	"cmp"
	"math"
	"net/url"
	"slices"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

// history draws the numbers of one thing over the last two hours.
type history struct{ api.History }

// askHistory returns the history of a thing; nil if this gateway keeps none.
func askHistory(v *visit, of string) (*history, error) {
	h, err := get[api.History](v, "/api/v1/history", url.Values{"of": {of}})
	if isNotFound(err) {
		return nil, nil
	}
	return &history{h}, err
}

// loadStreamHistory draws the history of a stream.
func loadStreamHistory(v *visit) ([]graph, error) {
	h, err := askHistory(v, "stream:"+v.PathValue("stream"))
	if err != nil || h == nil {
		return nil, err
	}
	return []graph{h.graph("Events", "events a second", "1/s", nil, "rate"), h.graph("Lag", "events that its readers have not read yet", "", nil, "lag")}, nil
}

// loadTriggerHistory draws the history of a trigger.
func loadTriggerHistory(v *visit) ([]graph, error) {
	h, err := askHistory(v, "trigger:"+v.PathValue("trigger"))
	if err != nil || h == nil {
		return nil, err
	}
	return []graph{h.graph("Deliveries", "a second; failed attempts are dashed", "1/s", nil, "delivered", "failed"), h.graph("Waiting", "events that wait for their subscriber", "", nil, "parked")}, nil
}

// mostPoolsDrawn is the number of pools whose histories a page draws.
const mostPoolsDrawn = 4

// loadPoolHistory draws the histories of the pools with the most runs.
func loadPoolHistory(v *visit) (all []graph, err error) {
	pools, err := get[api.Pools](v, "/api/v1/pools", nil)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(pools.Pools, func(a, b api.Pool) int { return cmp.Compare(b.Running+b.Waiting, a.Running+a.Waiting) })
	for _, p := range pools.Pools[:min(len(pools.Pools), mostPoolsDrawn)] {
		h, err := askHistory(v, "pool:"+p.Name)
		if err != nil {
			return nil, err
		}
		if h != nil {
			all = append(all, h.graph("Pool "+word(p.Name), "runs; waiting ones are dashed", "", nil, "running", "waiting", "slots"))
		}
	}
	return all, nil
}

// showPoolHistory keeps the charts closed, because the runs are what most people look for.
func showPoolHistory(v *visit, all []graph) Node {
	if len(all) == 0 {
		return nil
	}
	return details("Pools in the last two hours", h.Div(h.Class("charts"), each(all, func(one *graph) Node { return lineChart(*one) })))
}

func showHistory(_ *visit, all []graph) Node {
	if len(all) == 0 {
		return list(h.H2(say("Last two hours")), nothing(say("There is no history here. This gateway keeps none, or Redis does not answer.")))
	}
	return list(h.H2(say("Last two hours")), h.Div(h.Class("charts"), each(all, func(one *graph) Node { return lineChart(*one) })))
}

// graph makes a chart of some series. The chart says since when it has values.
func (h *history) graph(title, sentence, unit string, marks []mark, series ...string) graph {
	g := graph{Title: title, Sentence: sentence, Unit: unit, Times: true, Marks: marks}
	for _, name := range series {
		c := curve{Name: name}
		values := h.Series[name]
		for i, value := range values {
			at := h.Until.Add(-time.Duration(len(values)-1-i) * time.Duration(h.Every) * time.Second)
			y := math.NaN()
			if value != nil {
				y = *value
			}
			c.Points = append(c.Points, point{float64(at.Unix()), y})
		}
		g.Curves = append(g.Curves, c)
	}
	return g
}

// swaps returns the swaps of a scorer's history as marks.
func (h *history) swaps() (marks []mark) {
	for _, s := range h.Events {
		marks = append(marks, mark{float64(s.At.Unix()), "swap to " + tidemill.VersionName(s.Model, s.Version)})
	}
	return marks
}
