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

	"tidemill.dev"
	"tidemill.dev/broker"
)

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
	lagging(t, b)
	tel := start(t, nil, nil)
	s := newStreams(b.Streams, slog.New(slog.DiscardHandler))
	if err := tel.Registry().Register(s); err != nil {
		t.Fatal(err)
	}
	values := []string{`tidemill_stream_partitions{stream="events"} 2`, `tidemill_stream_records{stream="events"} 1`, `tidemill_stream_written_total{stream="events"} 1`,
		`tidemill_stream_bytes{stream="events"} `, `tidemill_stream_lag{group="g",stream="events"} 1`, `tidemill_stream_lost{group="g",stream="events"} 0`}
	for scrape(t, tel.Metrics()); s.at.IsZero(); scrape(t, tel.Metrics()) { // a scrape does not wait for ever for Kafka's answer
		s.asked = time.Time{}
	}
	mention(t, scrape(t, tel.Metrics()), append(values, "tidemill_stream_age_seconds ")...)
	if err := servers.Close(); err != nil {
		t.Fatal(err)
	}
	s.asked, s.at = s.asked.Add(-time.Hour), s.at.Add(-time.Hour)
	text := scrape(t, tel.Metrics())
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

// lagging has a group take part in the stream and read nothing of it.
func lagging(t *testing.T, b *broker.Broker) {
	t.Helper()
	c, err := b.Consumer(t.Context(), broker.ConsumerOptions{Group: "g", Streams: []string{tidemill.StreamEvents}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Poll(t.Context()); err != nil { // it has a place by then
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.Close(ctx) // the event has not ended, and is not waited for
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

// Kafka is asked every 15 s at most, however many scrape, and a scrape waits 4 s
// at most.
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

// Before the first answer there is nothing to tell, not even an age.
func TestStreamsWithoutAnAnswer(t *testing.T) {
	s := newStreams(func(context.Context) ([]broker.StreamInfo, error) { return nil, errors.New("away") }, slog.New(slog.DiscardHandler))
	if n := collected(s); n != 0 {
		t.Errorf("%d metrics", n)
	}
}
