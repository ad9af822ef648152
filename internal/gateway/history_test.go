package gateway

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/status"
)

// A history has the numbers of the answers of the API. The steps are ten seconds of real time, so this test compares
// the figures, and the tests of package status compare the points.
func TestFiguresOfTheHistory(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testTriggers+recipesOfTests+scorersOfTests, embedded.Options{}, nil)
	runs := &runWorld{world: w}
	runs.startForeman()
	board := standingScorers(w, scorerProcess("a", time.Now()), scorerProcess("b", time.Now()), status.Process{ID: "c", Scorers: []status.Scorer{{Name: "all"}}})
	g := w.openGateway(runs.with(func(o *Options) { o.Standing, o.Scorers = boardOf(t, "kafka-1"), board }))
	w.url = "http://" + g.Addr()
	if err := g.opt.Standing.Write(t.Context(), "d", []status.Trigger{{Name: "t", Delivered: 5, Failed: 2, Parked: 1}}); err != nil {
		t.Fatal(err)
	}
	w.post("/events", "{}", eventHeaders("1")...)
	w.post("/events", "{}", eventHeaders("2")...)
	runs.startRuns("intent", "bot-1", "bot-2")
	var all map[string]status.Figures
	w.waitUntil("the figures are those of now", func() bool {
		all = g.Figures(t.Context())
		return all["pool:small"].Values[0] == 1 && all["pool:small"].Values[1] == 1 && all["stream:events"].Values[0] == 2
	})
	unknown := math.NaN()
	for name, want := range map[string][]float64{
		"scorer:intents": {5, 6, .0015, .009, 0}, "scorer:all": {0, 0, unknown, unknown, 0},
		"trigger:t": {5, 2, 1}, "pool:small": {1, 1, 1, unknown}, "pool:large": {0, 0, 100, unknown}, "stream:events": {2, unknown},
	} {
		got, kind := all[name].Values, strings.SplitN(name, ":", 2)[0]
		if len(got) != len(status.SeriesOf(kind)) || len(got) != len(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
			continue
		}
		for i := range want {
			if got[i] != want[i] && !(math.IsNaN(got[i]) && math.IsNaN(want[i])) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
	if n := all["scorer:intents"].Processes; n != 2 || len(all["scorer:intents"].Swaps) != 6 {
		t.Errorf("%+v", all["scorer:intents"])
	}
}

func TestHistoryIsShown(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("some", "role: read, keys: [a]"))
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	history := status.NewHistory(w.redis, must1(tidemill.NewNames(""))(t), "kafka-1", slog.New(slog.DiscardHandler))
	w.url = "http://" + w.openGateway(func(o *Options) { o.History, o.Access = history, guard }).Addr()
	swap := status.Swap{At: time.Now(), Model: "intent/bot-42", Before: 1, Version: 2}
	w.must(history.Sample(t.Context(), time.Now(), func(context.Context) map[string]status.Figures {
		return map[string]status.Figures{"scorer:intents": {Values: []float64{2.5, 3, .001, .25, status.Unknown()}, Processes: 1, Swaps: []status.Swap{swap}}}
	}))
	h := sendDecoded[api.History](w, http.MethodGet, "/api/v1/history?of=scorer:intents", "", tokenHeader("all")...)
	for name, want := range map[string]float64{"rate": 2.5, "lag": 3, "p50": .001, "p99": .25} {
		if got := newestPoint(h.Series[name]); got == nil || *got != want || len(h.Series[name]) != 720 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if newestPoint(h.Series["held"]) != nil || h.Every != 10 || time.Since(h.Until) > time.Minute {
		t.Errorf("%+v", h)
	}
	if len(h.Events) != 1 || h.Events[0].Model != "intent/bot-42" || h.Events[0].Version != 2 {
		t.Errorf("events: %+v", h.Events)
	}
	if h := sendDecoded[api.History](w, http.MethodGet, "/api/v1/history?of=scorer:intents", "", tokenHeader("some")...); len(h.Events) != 0 {
		t.Errorf("a caller with limited keys gets %+v", h.Events)
	}
	for of, slug := range map[string]string{"scorer:no": api.UnknownScorer, "trigger:no": api.UnknownTrigger, "pool:no": api.UnknownPool, "stream:no": api.UnknownStream} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/history?of="+of, "", tokenHeader("all")...), http.StatusNotFound, slug, "no")
	}
	for _, of := range []string{"", "?of=", "?of=intents", "?of=key:a"} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/history"+of, "", tokenHeader("all")...), http.StatusBadRequest, api.InvalidRequest, "of: name a scorer, stream, pool or trigger")
	}
}

// newestPoint returns the newest known point; nil if there is none. The step may have ended since the sample.
func newestPoint(points []*float64) *float64 {
	for i := len(points) - 1; i >= max(0, len(points)-12); i-- {
		if points[i] != nil {
			return points[i]
		}
	}
	return nil
}
