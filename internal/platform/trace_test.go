package platform

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/telemetry"
)

// A caller's trace continues through the gateway's span into the event on Kafka. The collector has
// that span when the process has ended.
func TestATraceGoesThroughTheDoor(t *testing.T) {
	t.Parallel()
	var spans spanSink
	sink := httptest.NewServer(&spans)
	defer sink.Close()
	p, err := Open(t.Context(), Options{Embedded: &embedded.Options{}, OwnStreams: true, Telemetry: &telemetry.Options{Getenv: func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": sink.URL}[name]
	}}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.WithoutCancel(t.Context())) }()
	const caller, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	post(t, g.Addr(), map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "t", "traceparent": "00-" + caller + "-" + parent + "-01"})
	carried := ""
	at := []broker.Position{}
	for i := range int32(12) {
		at = append(at, broker.Position{Stream: tidemill.StreamEvents, Partition: i})
	}
	if _, err := p.Broker().ReadBack(t.Context(), at, func(e *broker.Incoming) {
		carried, _ = e.Attribute(tidemill.AttrTraceParent)
		carried = strings.Clone(carried)
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	s := spans.only(t)
	if hex.EncodeToString(s.TraceId) != caller || hex.EncodeToString(s.ParentSpanId) != parent {
		t.Errorf("the span is of trace %x and of parent %x", s.TraceId, s.ParentSpanId)
	}
	if want := "00-" + caller + "-" + hex.EncodeToString(s.SpanId) + "-01"; carried != want {
		t.Errorf("the event carries %q, want %q", carried, want)
	}
}

func post(t *testing.T, addr string, headers map[string]string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		t.Fatal(res.Status)
	}
}

// spanSink is a collector.
type spanSink struct {
	mu    sync.Mutex
	spans []*trace.Span
	fault error
}

func (s *spanSink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var sent collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &sent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
	for _, resource := range sent.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			s.spans = append(s.spans, scope.Spans...)
		}
	}
}

func (s *spanSink) only(t *testing.T) *trace.Span {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil || len(s.spans) != 1 {
		t.Fatalf("%d spans, %v", len(s.spans), s.fault)
	}
	return s.spans[0]
}
