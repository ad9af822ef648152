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

// Remember writes the context's span into the event, in the attributes of
// CloudEvents' distributed tracing extension, so that whoever reads the event
// goes on with its trace. An event that has a traceparent keeps it and what
// stands beside it: where it began is its publisher's to say.
func Remember(ctx context.Context, v *broker.View) {
	if _, has := v.Attribute(tidemill.AttrTraceParent); !has {
		propagation.TraceContext{}.Inject(ctx, carrier{v})
	}
}

// ContextOf is the context to handle an event in: spans that begin in it belong
// to the event's trace. Without a traceparent, or with one that is no W3C trace
// context, it is the context as it was given.
func ContextOf(ctx context.Context, v *broker.View) context.Context {
	return propagation.TraceContext{}.Extract(ctx, carrier{v})
}

// ContextOfRequest is ContextOf for the headers of an HTTP request.
func ContextOfRequest(ctx context.Context, h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, headers(h))
}

// Forward writes the context's span into the headers of a request that is made
// in it, so that whoever answers goes on with its trace.
func Forward(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, headers(h))
}

// carrier lets a propagator read and write an event's attributes.
type carrier struct{ v *broker.View }

// Get copies: what the propagator makes of it lives as long as its context,
// which is longer than the bytes that a view points into.
func (c carrier) Get(name string) string {
	value, _ := c.v.Attribute(name)
	return strings.Clone(value)
}

// Set leaves alone what the event has. The extensions become the view's own
// first: behind the slice that it was given there may lie another event's.
func (c carrier) Set(name, value string) {
	if _, has := c.v.Attribute(name); !has {
		c.v.Extensions = append(slices.Clip(c.v.Extensions), broker.Attribute{Name: name, Value: value})
	}
}

// Keys is for propagators that do not know what they look for. W3C's does.
func (c carrier) Keys() []string {
	return []string{tidemill.AttrTraceParent, tidemill.AttrTraceState}
}

// headers are read as W3C's specification wants it: a traceparent stands there
// once or not at all, and several of the other are one list.
type headers http.Header

func (h headers) Get(name string) string {
	values := http.Header(h).Values(name)
	if name == tidemill.AttrTraceParent && len(values) != 1 {
		return ""
	}
	return strings.Join(values, ",")
}

// Set is called for requests of ours.
func (h headers) Set(name, value string) { http.Header(h).Set(name, value) }

// Keys is as a carrier's.
func (h headers) Keys() []string { return carrier{}.Keys() }
