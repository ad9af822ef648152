package telemetry

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// openBroker is a broker on an embedded Kafka that has the built-in streams.
func openBroker(t *testing.T) (*broker.Broker, *embedded.Servers) {
	t.Helper()
	servers, err := embedded.Start(t.Context(), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Close() })
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Open(t.Context(), broker.Options{Addr: servers.Kafka(), Names: names})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	_, err = b.EnsureStreams(t.Context(), []broker.StreamSpec{
		{Name: tidemill.StreamEvents, Partitions: 2}, {Name: tidemill.StreamDeadLetters, Partitions: 1}}, broker.EnsureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b, servers
}

// A trace goes on behind Kafka, because the event carries it.
func TestTraceCrossesKafka(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *spy{"http/protobuf": spyHTTP, "grpc": spyGRPC} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			tel, err := Start(t.Context(), Options{Version: "v1.2.3", Name: "door", Getenv: of(map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": s.addr, "OTEL_EXPORTER_OTLP_PROTOCOL": name,
				"OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%2Cb", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
				"OTEL_RESOURCE_ATTRIBUTES": "team=chat"})})
			if err != nil {
				t.Fatal(err)
			}
			sent, handled := throughKafka(t, tel.Tracer())
			if err := tel.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			publish, handle := s.span("publish"), s.span("handle")
			if id(publish.TraceId) != sent.TraceID().String() || id(publish.SpanId) != sent.SpanID().String() {
				t.Errorf("the collector has trace %s, not %s", id(publish.TraceId), sent.TraceID())
			}
			if id(handle.TraceId) != id(publish.TraceId) || id(handle.ParentSpanId) != id(publish.SpanId) || id(handle.SpanId) != handled.SpanID().String() {
				t.Errorf("behind Kafka: trace %s, parent %s; before it: trace %s, span %s", id(handle.TraceId), id(handle.ParentSpanId), id(publish.TraceId), id(publish.SpanId))
			}
			if s.resource["service.name"] != "door" || s.resource["service.version"] != "v1.2.3" || s.resource["team"] != "chat" {
				t.Errorf("%v", s.resource)
			}
			if s.header["x-token"] != "a,b" || name != "grpc" && s.path != "/v1/traces" {
				t.Errorf("%s %v", s.path, s.header)
			}
		})
	}
}

// throughKafka publishes an event in a span and handles it in another.
func throughKafka(t *testing.T, tracer trace.Tracer) (sent, handled trace.SpanContext) {
	t.Helper()
	b, _ := openBroker(t)
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := tracer.Start(t.Context(), "publish")
	v := broker.View{ID: "1", Source: "/shop", Type: "order-placed", Subject: "merchant-7"}
	Remember(ctx, &v)
	if _, err := p.Publish(ctx, tidemill.StreamEvents, &v); err != nil {
		t.Fatal(err)
	}
	span.End()
	c, err := b.Consumer(t.Context(), broker.ConsumerOptions{Streams: []string{tidemill.StreamEvents}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, behind := tracer.Start(ContextOf(context.Background(), &d.Events[0].View), "handle")
	behind.End()
	d.Done()
	for _, end := range []func(context.Context) error{p.Close, c.Close} {
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
	}
	return span.SpanContext(), behind.SpanContext()
}
