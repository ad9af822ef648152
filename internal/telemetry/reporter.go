package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// spanCounts are what has become of spans. What ended and was neither exported
// nor failed waits in a batch or fell out of a full queue.
type spanCounts struct{ ended, exported, failed atomic.Uint64 }

// counted counts the spans that end and are sampled.
type counted struct {
	sdk.SpanProcessor
	counts *spanCounts
}

func (c counted) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.counts.ended.Add(1)
	}
	c.SpanProcessor.OnEnd(s)
}

// reporter exports spans and deals with what goes wrong by itself. The SDK hands
// an exporter's errors to a handler that the whole process shares and that
// writes each of them to standard error; so none reaches it. What the SDK would
// say there about the environment has been found before (environment.go).
type reporter struct {
	exporter sdk.SpanExporter
	log      *slog.Logger
	counts   *spanCounts
	failing  atomic.Bool

	life context.Context // of the exports; ended by stop
	stop context.CancelCauseFunc
	once sync.Once
	gone chan struct{} // closed when nothing is exported any more
}

func newReporter(exporter sdk.SpanExporter, log *slog.Logger, counts *spanCounts) *reporter {
	r := &reporter{exporter: exporter, log: log, counts: counts, gone: make(chan struct{})}
	r.life, r.stop = context.WithCancelCause(context.Background())
	return r
}

// ExportSpans never fails. A collector that is away costs spans and one line in
// the log, and one more when it is back.
func (r *reporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	err := r.exporter.ExportSpans(ctx, spans)
	if err == nil {
		r.counts.exported.Add(uint64(len(spans)))
	} else {
		r.counts.failed.Add(uint64(len(spans)))
	}
	if r.failing.Swap(err != nil) == (err != nil) {
		return nil
	}
	if err != nil {
		r.log.Warn("spans are dropped until the collector takes them", "reason", shortened(err))
		return nil
	}
	r.log.Info("the collector takes spans again")
	return nil
}

// Shutdown is called when the last batch has been exported.
func (r *reporter) Shutdown(ctx context.Context) error {
	defer r.once.Do(func() { close(r.gone) })
	return r.exporter.Shutdown(ctx)
}

const reasonShown = 300

// shortened keeps a collector that answers with a page from filling the log.
func shortened(err error) string {
	text := err.Error()
	if len(text) > reasonShown {
		return text[:reasonShown] + "…"
	}
	return text
}
