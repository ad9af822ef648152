package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// openBroker returns a broker on an embedded Kafka with the built-in streams.
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

// A trace continues after Kafka, because the event carries it.
func TestTraceCrossesKafka(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *spanStore{"http/protobuf": spyHTTP, "grpc": spyGRPC} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			tel, err := Start(t.Context(), Options{Version: "v1.2.3", Name: "door", Getenv: environmentOf(map[string]string{
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
			publish, handle := s.spanNamed("publish"), s.spanNamed("handle")
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

// throughKafka publishes an event in one span and handles it in another.
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

func TestMetricsOfStreams(t *testing.T) {
	b, servers := openBroker(t)
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v := broker.View{ID: "1", Source: "/s", Type: "t", Subject: "k"}
	if _, err := p.Publish(t.Context(), tidemill.StreamEvents, &v); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	joinWithoutCommit(t, b)
	tel := start(t, nil, nil)
	s := newStreams(b.Streams, slog.New(slog.DiscardHandler))
	if err := tel.Registry().Register(s); err != nil {
		t.Fatal(err)
	}
	values := []string{`tidemill_stream_partitions{stream="events"} 2`, `tidemill_stream_records{stream="events"} 1`, `tidemill_stream_written_total{stream="events"} 1`,
		`tidemill_stream_bytes{stream="events"} `, `tidemill_stream_lag{group="g",stream="events"} 1`, `tidemill_stream_lost{group="g",stream="events"} 0`}
	for readMetrics(t, tel.Metrics()); s.at.IsZero(); readMetrics(t, tel.Metrics()) { // a scrape does not wait for ever for Kafka's answer
		s.asked = time.Time{}
	}
	mention(t, readMetrics(t, tel.Metrics()), append(values, "tidemill_stream_age_seconds ")...)
	if err := servers.Close(); err != nil {
		t.Fatal(err)
	}
	s.asked, s.at = s.asked.Add(-time.Hour), s.at.Add(-time.Hour)
	text := readMetrics(t, tel.Metrics())
	mention(t, text, values...)
	if age := streamAge(t, text); age < 3600 {
		t.Errorf("what is an hour old is %g s old", age)
	}
	if !s.failing {
		t.Error("Kafka is away and was not asked")
	}
}

func streamAge(t *testing.T, text string) float64 {
	t.Helper()
	_, rest, _ := strings.Cut(text, "\ntidemill_stream_age_seconds ")
	rest, _, _ = strings.Cut(rest, "\n")
	age, err := strconv.ParseFloat(rest, 64)
	if err != nil {
		t.Fatal(err)
	}
	return age
}

// joinWithoutCommit makes a group that joins the stream and commits nothing.
func joinWithoutCommit(t *testing.T, b *broker.Broker) {
	t.Helper()
	c, err := b.Consumer(t.Context(), broker.ConsumerOptions{Group: "g", Streams: []string{tidemill.StreamEvents}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Poll(t.Context()); err != nil { // the group has its partitions after the first poll
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.Close(ctx) // the context has ended, so Close does not wait for the event
}

func collected(s *streams) (n int) {
	ch := make(chan prometheus.Metric)
	go func() {
		s.Collect(ch)
		close(ch)
	}()
	for range ch {
		n++
	}
	return n
}

// Kafka is asked at most every 15 s for any number of scrapes, and a scrape waits at most 4 s.
func TestStreamsAreNotAskedForAtEveryScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		asked, away := 0, false
		s := newStreams(func(ctx context.Context) ([]broker.StreamInfo, error) {
			asked++
			if away {
				<-ctx.Done()
				return nil, errors.New("kafka is away")
			}
			time.Sleep(time.Second)
			return []broker.StreamInfo{{Name: "events", Bytes: -1}}, nil
		}, Logger(&out, slog.LevelInfo))
		var scrapes sync.WaitGroup
		for range 5 {
			scrapes.Go(func() {
				if n := collected(s); n != 4 { // age, partitions, records, written
					t.Errorf("%d metrics", n)
				}
			})
		}
		scrapes.Wait()
		if asked != 1 {
			t.Errorf("asked %d times at once", asked)
		}
		away = true
		for range 60 { // a scrape a second
			time.Sleep(time.Second)
			began := time.Now()
			if n := collected(s); n != 4 {
				t.Errorf("%d metrics while Kafka is away", n)
			}
			if took := time.Since(began); took > streamsPatience {
				t.Errorf("a scrape took %s", took)
			}
		}
		if asked != 5 {
			t.Errorf("asked %d times", asked)
		}
		away = false
		time.Sleep(streamsEvery)
		collected(s)
		if got := strings.Count(out.String(), "\n"); got != 2 {
			t.Errorf("%d lines:\n%s", got, &out)
		}
	})
}

// Before the first answer there are no metrics, not even an age.
func TestStreamsWithoutAnAnswer(t *testing.T) {
	s := newStreams(func(context.Context) ([]broker.StreamInfo, error) { return nil, errors.New("away") }, slog.New(slog.DiscardHandler))
	if n := collected(s); n != 0 {
		t.Errorf("%d metrics", n)
	}
}

// The lag is the number of events after the positions, and the age of the first of them.
func TestLagOfATask(t *testing.T) {
	b, _ := openBroker(t)
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	began := time.Now()
	at := broker.Position{Stream: tidemill.StreamEvents}
	for range 5 {
		r, err := p.Publish(t.Context(), tidemill.StreamEvents, &broker.View{ID: "a", Source: "/s", Type: "t", Subject: "k"})
		if err != nil {
			t.Fatal(err)
		}
		at.Partition = r.Position().Partition
	}
	for _, c := range []struct {
		offset int64
		behind float64
	}{{2, 3}, {5, 0}} {
		registry := prometheus.NewRegistry()
		at.Offset = c.offset
		stop, err := Lag{registry, "outcomes.s", b}.Report(func() []broker.Position {
			return []broker.Position{at, {Stream: tidemill.StreamDeadLetters}}
		})
		if err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue()
			}
		}
		seconds, known := got["tidemill_observer_lag_seconds outcomes.s"]
		if len(got) != 3 || got["tidemill_observer_lag events outcomes.s"] != c.behind || got["tidemill_observer_lag dead-letters outcomes.s"] != 0 || !known {
			t.Errorf("from offset %d: %v", c.offset, got)
		}
		if late := time.Since(began).Seconds() + 1; seconds > late || c.behind == 0 && seconds != 0 {
			t.Errorf("from offset %d: %v s behind, at most %v s have passed", c.offset, seconds, late)
		}
		stop()
		if families, err := registry.Gather(); err != nil || len(families) != 0 {
			t.Errorf("after the task has ended: %v, %v", families, err)
		}
	}
}
