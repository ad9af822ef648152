package runmetrics_test

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/ops/runmetrics"
)

const scrapeTimeout = 2 * time.Minute

// A census counts the verdicts of all processes since it was opened, and no other facts. A recipe
// has both counters from its first fact on.
func TestVerdictsAreCounted(t *testing.T) {
	w := open(t)
	w.publish(t, tidemill.TypeModelRefused, "intent", "before")
	c, registry := w.census(t)
	defer func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for i, typ := range []string{tidemill.TypeModelRefused, tidemill.TypeModelPromoted, tidemill.TypeModelRefused, tidemill.TypeModelRegistered} {
		w.publish(t, typ, "intent", string(rune('a'+i)))
	}
	w.publish(t, tidemill.TypeModelPromoted, "no label: a stranger's", "x")
	w.publish(t, tidemill.TypeRunRequested, "spam", "asked")
	w.publish(t, tidemill.TypeModelPromoted, "fraud", "last")
	awaitValues(t, registry, "tidemill_controller_versions_judged_total", map[string]float64{"intent promoted": 1, "intent refused": 2, "fraud promoted": 1, "fraud refused": 0, "spam promoted": 0, "spam refused": 0})
	awaitValues(t, registry, "tidemill_controller_attempts_running", map[string]float64{"default": 0, "gpu": 0})
	awaitValues(t, registry, "tidemill_controller_runs_waiting", map[string]float64{"intent": 0})
}

func awaitValues(t *testing.T, registry *prometheus.Registry, metric string, want map[string]float64) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(scrapeTimeout)
	for got := valuesOf(t, registry, metric); !maps.Equal(got, want); got = valuesOf(t, registry, metric) {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("counted %v, want %v", got, want)
		}
	}
}

type world struct {
	b     *broker.Broker
	p     *broker.Producer
	l     *ledger.Ledger
	names tidemill.Names
}

func open(t *testing.T) *world {
	t.Helper()
	servers, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { _ = servers.Close() })
	w := &world{}
	w.names, err = tidemill.NewNames("test")
	must(t, err)
	w.b, err = broker.Open(t.Context(), broker.Options{Addr: servers.Kafka(), Names: w.names})
	must(t, err)
	t.Cleanup(func() { _ = w.b.Close() })
	_, err = w.b.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 2}}, broker.EnsureOptions{})
	must(t, err)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	must(t, err)
	t.Cleanup(func() { _ = w.p.Close(context.WithoutCancel(t.Context())) })
	r := redis.NewClient(&redis.Options{Addr: servers.Redis()})
	t.Cleanup(func() { _ = r.Close() })
	kafka, err := w.b.Cluster(t.Context())
	must(t, err)
	w.l, err = ledger.Open(t.Context(), ledger.Options{Broker: w.b, Producer: w.p, Names: w.names, Redis: r, Kafka: kafka, Logger: quiet()})
	must(t, err)
	t.Cleanup(func() { _ = w.l.Close(context.WithoutCancel(t.Context())) })
	return w
}

func (w *world) census(t *testing.T) (*runmetrics.Census, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	c, err := runmetrics.Open(t.Context(), runmetrics.Options{Broker: w.b, Ledger: w.l,
		InConfig: func() (recipes, pools []string) { return []string{"intent"}, []string{"default", "gpu"} }, Registerer: registry, Logger: quiet()})
	must(t, err)
	return c, registry
}

func (w *world) publish(t *testing.T, typ, recipe, id string) {
	t.Helper()
	v := broker.View{ID: id, Source: w.names.Source("test"), Type: typ, Subject: "bot-1", Time: time.Now().UTC().Format(time.RFC3339Nano), Key: []byte("intent/bot-1"),
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}}}
	_, err := w.p.Publish(t.Context(), tidemill.StreamFacts, &v)
	must(t, err)
}

// valuesOf returns the numbers of a metric, by the values of its labels.
func valuesOf(t *testing.T, registry *prometheus.Registry, metric string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			all[strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
