package telemetry

import (
	"context"
	"errors"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// scope is the name under which all of our spans are made.
const scope = "tidemill.dev"

// silent is the tracer of a process without a collector: it costs nothing and
// no goroutine stands behind it.
func silent() trace.Tracer { return noop.NewTracerProvider().Tracer(scope) }

// traces is the way of spans from their end to the collector:
//
//	span ends ─▶ batches (the SDK's) ─▶ reporter ─▶ exporter ─▶ collector
type traces struct {
	provider *sdk.TracerProvider
	batches  sdk.SpanProcessor
	out      *reporter
}

// openTraces begins to export, or is nil where the environment names no
// collector.
func openTraces(ctx context.Context, o Options, counts *spanCounts) (*traces, error) {
	env := environment(o.Getenv)
	to, err := env.collector()
	if err != nil || to == nil {
		return nil, err
	}
	sampler, err := env.sampler()
	if err != nil {
		return nil, err
	}
	who, err := env.resource(o)
	if err != nil {
		return nil, err
	}
	exporter, err := to.dial(ctx)
	if err != nil {
		return nil, err
	}
	o.Logger.Info("traces are exported", "to", to.endpoint.Redacted())
	t := &traces{out: newReporter(exporter, o.Logger, counts)}
	t.batches = sdk.NewBatchSpanProcessor(t.out)
	t.provider = sdk.NewTracerProvider(sdk.WithSampler(sampler), sdk.WithResource(who),
		sdk.WithSpanProcessor(counted{t.batches, counts}))
	return t, nil
}

func (t *traces) tracer(version string) trace.Tracer {
	return t.provider.Tracer(scope, trace.WithInstrumentationVersion(version))
}

// close flushes and waits until no goroutine is left. The batches are shut down
// directly: the provider would not touch them once the context has ended, and
// nothing would end them then.
func (t *traces) close(ctx context.Context) error {
	err := t.batches.Shutdown(ctx)
	t.out.stop(errors.New("closing")) // whatever is still on its way has had its time
	<-t.out.gone
	return errors.Join(err, t.provider.Shutdown(context.WithoutCancel(ctx)))
}
