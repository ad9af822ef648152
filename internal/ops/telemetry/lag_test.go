package telemetry

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
)

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
