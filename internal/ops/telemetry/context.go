package telemetry

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/propagation"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Remember writes the context's span into the event, in the attributes of CloudEvents' distributed
// tracing extension, so that readers of the event continue its trace. If the event has a
// traceparent, it keeps its own attributes, because its publisher decides where the trace began.
func Remember(ctx context.Context, v *broker.View) {
	if _, has := v.Attribute(tidemill.AttrTraceParent); !has {
		propagation.TraceContext{}.Inject(ctx, eventCarrier{v})
	}
}

// ContextOf returns the context for handling an event: spans that begin in it belong to the event's
// trace. Without a valid traceparent, the result is ctx.
func ContextOf(ctx context.Context, v *broker.View) context.Context {
	return propagation.TraceContext{}.Extract(ctx, eventCarrier{v})
}

// ContextOfRequest is ContextOf for the headers of an HTTP request.
func ContextOfRequest(ctx context.Context, h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, requestHeaders(h))
}

// Forward writes the context's span into the headers of a request, so that its receiver continues
// the trace.
func Forward(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, requestHeaders(h))
}

// eventCarrier lets a propagator read and write an event's attributes.
type eventCarrier struct{ v *broker.View }

// Get returns a copy of the attribute, because the propagator's result lives longer than the bytes
// of the view.
func (c eventCarrier) Get(name string) string {
	value, _ := c.v.Attribute(name)
	return strings.Clone(value)
}

// Set does not change an existing attribute. The slice of extensions is clipped before a new
// attribute is added, because the memory after the slice may belong to another event.
func (c eventCarrier) Set(name, value string) {
	if _, has := c.v.Attribute(name); !has {
		c.v.Extensions = append(slices.Clip(c.v.Extensions), broker.Attribute{Name: name, Value: value})
	}
}

// Keys implements propagation.TextMapCarrier. W3C's propagator does not call it.
func (c eventCarrier) Keys() []string {
	return []string{tidemill.AttrTraceParent, tidemill.AttrTraceState}
}

// requestHeaders reads headers as W3C's specification requires: a traceparent is valid only if
// there is exactly one, and several tracestate headers are one list.
type requestHeaders http.Header

func (h requestHeaders) Get(name string) string {
	values := http.Header(h).Values(name)
	if name == tidemill.AttrTraceParent && len(values) != 1 {
		return ""
	}
	return strings.Join(values, ",")
}

// Set implements propagation.TextMapCarrier.
func (h requestHeaders) Set(name, value string) { http.Header(h).Set(name, value) }

// Keys implements propagation.TextMapCarrier.
func (h requestHeaders) Keys() []string { return eventCarrier{}.Keys() }
