package gateway

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/ops/status"
)

// A version counts once, with the stages of the run that made it, whatever its scorers report later.
func TestTimeToAFreshModel(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	fresh := status.NewFreshness(w.redis, must1(w.config.Names())(t), "test")
	g := w.openGateway(w.with(func(o *Options) { o.Fresh = fresh }))
	w.url = "http://" + g.Addr()
	spans := tracetest.NewSpanRecorder()
	g.tracer = trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("test")
	id := w.startRuns("intent", "bot-1")["bot-1"]
	w.waitForState(id, tidemill.RunRunning)
	run := must1(w.ledger.Run(t.Context(), id))(t)
	w.must(w.launcher.Stop(t.Context(), tidemill.AttemptName(id, 1)))
	must1(w.foreman.Finish(t.Context(), run, 1, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded,
		Result: tidemill.Result{Artifact: w.putOutput(tidemill.OutcomeSucceeded), Stages: []tidemill.Stage{{Name: "fetch", Seconds: .25}, {Name: "run", Seconds: 3}, {Name: "upload", Seconds: .5}}}}))(t)
	if s := w.show(id).Stages; s == nil || s.Training == nil || *s.Training != 3 || *s.Fetching != .25 || s.Waiting == nil || s.Judging != nil || s.Total != nil {
		t.Errorf("before the version has scored: %+v", s)
	}
	w.judgedVersion(madeVersion{model: "intent/bot-1", key: "bot-1", run: id, accuracy: .9, passed: true})
	swaps := []status.Swap{{At: time.Now().Add(time.Minute), Model: "intent/bot-1", Version: 1, Partition: 1}, {At: time.Now().Add(2 * time.Second), Model: "intent/bot-1", Version: 1}}
	for range 2 {
		g.observeFresh(t.Context(), swaps)
	}
	clear(g.fresh.seen) // as another gateway
	g.observeFresh(t.Context(), swaps[:1])
	all := sendDecoded[api.Freshness](w.world, http.MethodGet, "/api/v1/freshness", "")
	if len(all.Recipes) != 1 || all.Recipes[0].Recipe != "intent" || all.Recipes[0].Models != 1 {
		t.Fatalf("%+v", all)
	}
	stages := all.Recipes[0].Stages
	for _, stage := range []string{"waiting", "starting", "fetching", "training", "judging", "swapping", "total"} {
		if stages[stage] == nil || stages[stage].P50 != stages[stage].P99 {
			t.Fatalf("%s: %+v", stage, stages[stage])
		}
	}
	if s := stages["swapping"].P50; s < 1 || s > 30 || stages["training"].P50 != 3 || stages["total"].P50 < s {
		t.Errorf("swapping %v of %v", s, stages["total"].P50)
	}
	if s := w.show(id).Stages; s == nil || s.Total == nil || *s.Total != stages["total"].P50 {
		t.Errorf("the run has %+v", s)
	}
	if n := testutil.CollectAndCount(g.fresh.seconds); n != 7 {
		t.Errorf("%d series", n)
	}
	wantFreshTrace(t, spans.Ended())
	wantProblem(t, w.do(http.MethodGet, "/api/v1/freshness?recipe=no", ""), http.StatusNotFound, api.UnknownRecipe, "no")
}

// wantFreshTrace fails unless one span is in the trace of the request, and its stages follow each other in it.
func wantFreshTrace(t *testing.T, all []trace.ReadOnlySpan) {
	t.Helper()
	of := map[string]trace.ReadOnlySpan{}
	for _, s := range all {
		if of[s.Name()] != nil {
			t.Errorf("there are two spans %s", s.Name())
		}
		of[s.Name()] = s
	}
	request, whole := of["publish"], of["fresh model"]
	if request == nil || whole == nil || whole.Parent().SpanID() != request.SpanContext().SpanID() {
		t.Fatalf("the spans are %v", slices.Collect(maps.Keys(of)))
	}
	at := whole.StartTime()
	for _, name := range []string{"waiting", "starting", "fetching", "training", "judging", "swapping"} {
		s := of[name]
		if s == nil || s.Parent().SpanID() != whole.SpanContext().SpanID() || !s.StartTime().Equal(at) {
			t.Fatalf("the span %s is %+v", name, s)
		}
		at = s.EndTime()
	}
	if len(of) != 8 {
		t.Errorf("the spans are %v", slices.Collect(maps.Keys(of)))
	}
}

// A scorer that begins again reports a swap to an old version. It does not count, even if Redis was flushed.
func TestAnOldVersionIsNotFresh(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	fresh := status.NewFreshness(w.redis, must1(w.config.Names())(t), "test")
	g := w.openGateway(w.with(func(o *Options) { o.Fresh = fresh }))
	w.makeChampions("intent/bot-1", "bot-1", 1)
	g.observeFresh(t.Context(), []status.Swap{{At: time.Now().Add(freshWithin + time.Minute), Model: "intent/bot-1", Version: 1},
		{At: time.Now(), Model: "intent/unknown", Version: 3}})
	if all := must1(fresh.Read(t.Context(), "intent"))(t); len(all) != 0 {
		t.Errorf("%d versions count", len(all))
	}
}
