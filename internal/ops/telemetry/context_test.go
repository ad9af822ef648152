package telemetry

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"unsafe"

	"go.opentelemetry.io/otel/trace"

	"tidemill.dev/broker"
)

const (
	parent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	other   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state   = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
	traceOf = "0af7651916cd43dd8448eb211c80319c"
)

func header(lines ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(lines); i += 2 {
		h.Add(lines[i], lines[i+1])
	}
	return h
}

func attributes(pairs ...string) *broker.View {
	v := &broker.View{}
	for i := 0; i < len(pairs); i += 2 {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return v
}

func TestRememberWritesTheTraceIntoTheEvent(t *testing.T) {
	ctx := ContextOfRequest(t.Context(), header("traceparent", parent, "tracestate", state))
	for name, c := range map[string]struct{ have, want []string }{
		"no trace":                  {[]string{"dataset", "d"}, []string{"dataset", "d", "tracestate", state, "traceparent", parent}},
		"its own":                   {[]string{"traceparent", other}, []string{"traceparent", other}},
		"its own, with a state":     {[]string{"traceparent", other, "tracestate", "a=b"}, []string{"traceparent", other, "tracestate", "a=b"}},
		"one that is no trace":      {[]string{"traceparent", "nonsense"}, []string{"traceparent", "nonsense"}},
		"a state that belongs to 0": {[]string{"tracestate", "a=b"}, []string{"tracestate", "a=b", "traceparent", parent}},
	} {
		v := attributes(c.have...)
		Remember(ctx, v)
		if want := attributes(c.want...); !slices.Equal(v.Extensions, want.Extensions) {
			t.Errorf("%s: %v", name, v.Extensions)
		}
	}
	v := attributes()
	if Remember(t.Context(), v); len(v.Extensions) != 0 {
		t.Errorf("without a span: %v", v.Extensions)
	}
}

// The views of a batch may share one array of extensions.
func TestRememberTouchesNoNeighbour(t *testing.T) {
	all := []broker.Attribute{{Name: "dataset", Value: "a"}, {Name: "dataset", Value: "b"}}
	v := &broker.View{Extensions: all[:1]}
	Remember(ContextOfRequest(t.Context(), header("traceparent", parent)), v)
	if all[1].Name != "dataset" || all[1].Value != "b" {
		t.Errorf("the neighbour has %v", all[1])
	}
	if got, _ := v.Attribute("traceparent"); got != parent {
		t.Errorf("traceparent %q", got)
	}
}

func TestContextOf(t *testing.T) {
	for name, c := range map[string]struct {
		v     *broker.View
		trace string // trace id; empty for none
		state string
	}{
		"a trace":               {attributes("traceparent", parent), traceOf, ""},
		"a trace and its state": {attributes("traceparent", parent, "tracestate", state), traceOf, state},
		"a state that is none":  {attributes("traceparent", parent, "tracestate", "=,="), traceOf, ""},
		"nothing":               {attributes(), "", ""},
		"no trace":              {attributes("traceparent", "00-nonsense"), "", ""},
		"zeros":                 {attributes("traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01"), "", ""},
		"capitals":              {attributes("traceparent", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"), "", ""},
		"version ff":            {attributes("traceparent", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "", ""},
		"a later version":       {attributes("traceparent", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"), traceOf, ""},
		"a state alone":         {attributes("tracestate", state), "", ""},
	} {
		got := trace.SpanContextFromContext(ContextOf(context.Background(), c.v))
		if got.IsValid() != (c.trace != "") || got.IsValid() && (got.TraceID().String() != c.trace || !got.IsRemote()) || got.TraceState().String() != c.state {
			t.Errorf("%s: %v %q", name, got.TraceID(), got.TraceState())
		}
	}
}

// The context lives longer than the bytes of the event.
func TestContextOfCopies(t *testing.T) {
	fetched := []byte(state)
	ctx := ContextOf(context.Background(), attributes("traceparent", parent, "tracestate", unsafe.String(&fetched[0], len(fetched))))
	clear(fetched)
	if got := trace.SpanContextFromContext(ctx).TraceState().String(); got != state {
		t.Errorf("tracestate has become %q", got)
	}
}

func TestContextOfRequest(t *testing.T) {
	for name, c := range map[string]struct {
		h     http.Header
		trace string
		state string
	}{
		"a trace":             {header("Traceparent", parent), traceOf, ""},
		"a state in two":      {header("traceparent", parent, "tracestate", "rojo=00f067aa0ba902b7", "tracestate", "congo=t61rcWkgMzE"), traceOf, state},
		"two of them":         {header("traceparent", parent, "traceparent", other), "", ""},
		"none":                {header(), "", ""},
		"a state that is bad": {header("traceparent", parent, "tracestate", "?"), traceOf, ""},
	} {
		got := trace.SpanContextFromContext(ContextOfRequest(context.Background(), c.h))
		if got.IsValid() != (c.trace != "") || got.IsValid() && got.TraceID().String() != c.trace || got.TraceState().String() != c.state {
			t.Errorf("%s: %v %q", name, got.TraceID(), got.TraceState())
		}
	}
}

// A forwarded context is read unchanged.
func TestForward(t *testing.T) {
	for name, given := range map[string]http.Header{"a trace": header("traceparent", parent, "tracestate", state), "no state": header("traceparent", parent), "nothing": header()} {
		got := header("Accept", "text/plain")
		Forward(ContextOfRequest(t.Context(), given), got)
		for _, key := range []string{"Traceparent", "Tracestate"} {
			if !slices.Equal(got[key], given[key]) {
				t.Errorf("%s: %s is %q, want %q", name, key, got[key], given[key])
			}
		}
	}
}
