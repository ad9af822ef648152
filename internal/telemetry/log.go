package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Logger writes a line a record, as key=value. Every process of ours logs
// through one. A record that is logged with a span's context names the trace,
// so that one leads to the other.
func Logger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(traced{slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})})
}

// traced adds the trace to what it hands on.
type traced struct{ slog.Handler }

func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone() // its attributes may share memory with another's
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(attrs)} }

func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
