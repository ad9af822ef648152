package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/evaluate"
)

// patience limits how long a test waits.
const patience = 2 * time.Minute

// world is a Kafka with facts and outcomes, and a ledger.
type world struct {
	testing.TB
	names    tidemill.Names
	broker   *broker.Broker
	produce  *broker.Producer
	ledger   *ledger.Ledger
	outcomes []tidemill.OutcomeData // published ones
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	w := &world{TB: t}
	w.must(err)
	t.Cleanup(func() { _ = s.Close() })
	w.names, err = tidemill.NewNames("test")
	w.must(err)
	w.broker, err = broker.Open(t.Context(), broker.Options{Addr: s.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = w.broker.Close() })
	_, err = w.broker.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3}, {Name: tidemill.StreamOutcomes, Partitions: 2}}, broker.EnsureOptions{})
	w.must(err)
	w.produce, err = w.broker.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: s.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	kafka, err := w.broker.Cluster(t.Context())
	w.must(err)
	w.ledger, err = ledger.Open(t.Context(), ledger.Options{Broker: w.broker, Producer: w.produce, Names: w.names, Redis: client, Kafka: kafka})
	w.must(err)
	t.Cleanup(func() { w.must(w.ledger.Close(context.Background())) })
	w.must(w.ledger.CaughtUp(t.Context()))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// register gives a model a version.
func (w *world) register(model string, number int) {
	w.Helper()
	run := fmt.Sprint(model, "-", number)
	data, err := json.Marshal(tidemill.ModelRegistered{Artifact: "a", Judge: tidemill.Judge{Keep: 5}, Origin: tidemill.Origin{Run: run, Recipe: "r", Key: model,
		Began: time.Unix(int64(number), 0), Mark: tidemill.Mark{Making: "r/" + model, Number: int64(number)}}})
	w.must(err)
	_, _, err = w.ledger.AppendModel(w.Context(), &broker.View{ID: run, Source: "/tidemill/test/models", Type: tidemill.TypeModelRegistered, Subject: model, DataContentType: "application/json",
		Data: data, Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}, {Name: tidemill.AttrRun, Value: run}}})
	w.must(err)
}

// outcome publishes a new outcome of a model, or a correction of an earlier one.
func (w *world) outcome(o tidemill.OutcomeData) {
	w.Helper()
	data, err := json.Marshal(o)
	w.must(err)
	typ := tidemill.TypeOutcome
	if o.Revision > 1 {
		typ = tidemill.TypeOutcomeCorrected
	}
	_, err = w.produce.Publish(w.Context(), tidemill.StreamOutcomes, &broker.View{ID: fmt.Sprint(o.Place, "-", o.Revision), Source: "/tidemill/test/outcomes/s", Type: typ,
		Subject: o.Key, Key: []byte(o.Key), DataContentType: "application/json", Data: data})
	w.must(err)
	w.outcomes = append(w.outcomes, o)
}

// begin runs a reader; the returned function ends it.
func (w *world) begin() (end func()) {
	ctx, stop := context.WithCancel(w.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			err := Run(ctx, Options{Broker: w.broker, Names: w.names, Ledger: w.ledger, Logger: slog.New(slog.NewTextHandler(w.Output(), nil)), Every: time.Millisecond})
			switch {
			case errors.Is(err, errDisplaced): // the task is tried again
				continue
			case err != nil && !errors.Is(err, broker.ErrSuperseded):
				w.Error(err)
			}
			return
		}
	})
	return func() { stop(); running.Wait() }
}

// live returns the figures of a version in the ledger.
func (w *world) live(model string, version int, scorer string) (tidemill.Measured, bool) {
	w.Helper()
	m, err := w.ledger.Model(w.Context(), model)
	w.must(err)
	i, found := m.FindLive(version, scorer)
	if !found {
		return tidemill.Measured{}, false
	}
	return m.Live[i], true
}

// awaitLive waits until the figures count so many outcomes.
func (w *world) awaitLive(model string, version int, scorer string, folded int64) tidemill.Measured {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for {
		changed := w.ledger.Changed()
		if d, found := w.live(model, version, scorer); found && d.Folded >= folded {
			return d
		}
		select {
		case <-changed:
		case <-ctx.Done():
			d, _ := w.live(model, version, scorer)
			w.Fatalf("%s@%d in %s counts %d outcomes, want %d", model, version, scorer, d.Folded, folded)
		}
	}
}

// However often readers end, begin and displace each other, every outcome is counted once.
func TestEveryOutcomeIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	models := []string{"m/a", "m/b", "m/c"}
	for _, m := range models {
		w.register(m, 1)
		w.register(m, 2)
	}
	r := rand.New(rand.NewPCG(5, 5))
	labels := []string{"x", "y", "z"}
	var ends []func()
	for i := range 600 {
		if i%40 == 0 {
			ends = append(ends, w.begin())
			if r.IntN(2) == 0 {
				ends[0]()
				ends = ends[1:]
			}
		}
		if n := len(w.outcomes); n > 0 && r.IntN(4) == 0 {
			o := w.outcomes[r.IntN(n)]
			if newest(w.outcomes, o.Place).Revision == o.Revision {
				o.Before, o.Truth, o.Revision = o.Truth, labels[r.IntN(3)], o.Revision+1
				w.outcome(o)
			}
			continue
		}
		w.outcome(tidemill.OutcomeData{Scorer: []string{"s", "t"}[r.IntN(2)], Key: fmt.Sprint("k", r.IntN(6)), Model: models[r.IntN(3)], Version: 1 + r.IntN(2), Place: fmt.Sprintf("messages/0/%d", i),
			Label: labels[r.IntN(3)], Score: 0.5, Truth: labels[r.IntN(3)], Revision: 1, Basis: tidemill.OutcomeLabelled, Answered: time.Unix(1_700_000_000+int64(i)*1000, 0).UTC()})
	}
	ends = append(ends, w.begin())
	want := map[tallyKey]*tidemill.Measured{}
	for i := range w.outcomes {
		o := &w.outcomes[i]
		if want[keyOf(o)] == nil {
			want[keyOf(o)] = &tidemill.Measured{}
		}
		if !evaluate.Count(want[keyOf(o)], o) {
			t.Fatalf("%+v is not counted", o)
		}
	}
	for k, expected := range want {
		got := w.awaitLive(k.model, k.version, k.scorer, expected.Folded)
		if got.Folded != expected.Folded || got.Answers != expected.Answers || got.Right != expected.Right || got.Corrected != expected.Corrected || !slices.Equal(got.Days, expected.Days) || !slices.Equal(got.Bins, expected.Bins) {
			t.Errorf("%+v: got %+v\nwant %+v", k, got, *expected)
		}
	}
	for _, end := range ends {
		end()
	}
}

func newest(all []tidemill.OutcomeData, place string) (o tidemill.OutcomeData) {
	for _, one := range all {
		if one.Place == place && one.Revision > o.Revision {
			o = one
		}
	}
	return o
}

// The outcomes of a model without versions, and those of versions that are too old, change nothing.
func TestOutcomesThatNoModelKeeps(t *testing.T) {
	w := newWorld(t)
	defer w.begin()()
	give := func(model string, version int) {
		w.outcome(tidemill.OutcomeData{Scorer: "s", Key: "k", Model: model, Version: version, Place: fmt.Sprint("messages/0/", len(w.outcomes)), Label: "x", Truth: "x", Revision: 1})
	}
	give("m/unknown", 1)
	w.register("m/a", 1)
	for _, version := range []int{2, 3, 4, 5, 6, 7, 1, 8} {
		give("m/a", version)
		if version > 1 {
			w.awaitLive("m/a", version, "s", 1)
		}
	}
	m, err := w.ledger.Model(t.Context(), "m/a")
	w.must(err)
	var versions []int
	for _, d := range m.Live {
		versions = append(versions, d.Version)
	}
	if want := []int{3, 4, 5, 6, 7, 8}; !slices.Equal(versions, want) {
		t.Errorf("it keeps the versions %v, want %v", versions, want)
	}
	if m, err := w.ledger.Model(t.Context(), "m/unknown"); err != nil || m.Next != 0 {
		t.Errorf("an unknown model has facts: %+v, %v", m, err)
	}
}

// A version with many outcomes gets a fact when its figures may have changed, or after an hour.
func TestFactsAreRareOnceFiguresAreStable(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		told, folded int64
		fact, change time.Duration // ago
		want         bool
	}{
		{0, 1, time.Hour, 0, true},
		{0, 1, 9 * time.Second, 0, false},
		{1, 2, 11 * time.Second, time.Second, true},
		{1000, 1010, time.Minute, time.Minute, false},
		{1000, 1020, time.Minute, time.Minute, true},
		{100_000, 100_001, 2 * time.Hour, time.Hour, true},
	} {
		one := tally{told: c.told, sums: tidemill.Measured{Folded: c.folded}, at: now.Add(-c.fact), since: now.Add(-c.change)}
		if one.due(10*time.Second, now) != c.want {
			t.Errorf("%+v is due: %t", c, !c.want)
		}
	}
}

// If there are too many tallies, those without changes are dropped, also one that the same outcomes need.
func TestTalliesAreDroppedWhileTheyAreNeeded(t *testing.T) {
	w := newWorld(t)
	r := &run{Options: Options{Ledger: w.ledger, Logger: slog.New(slog.DiscardHandler)}, all: map[tallyKey]*tally{}, next: map[int32]int64{}}
	d := &broker.Delivery{Stream: tidemill.StreamOutcomes}
	for i, model := range []string{"known", "new"} {
		w.register(model, 1)
		data, err := json.Marshal(tidemill.OutcomeData{Model: model, Version: 1, Scorer: "s", Place: fmt.Sprint("messages/0/", i), Revision: 1, Label: "a", Truth: "a"})
		w.must(err)
		d.Events = append(d.Events, broker.Incoming{Offset: int64(i), View: broker.View{Type: tidemill.TypeOutcome, Data: data}})
	}
	for i := range mostTallies {
		k := tallyKey{"known", 1 + i, "s"}
		r.all[k] = &tally{tallyKey: k, sums: tidemill.Measured{Scorer: "s", Version: k.version, Until: map[int32]int64{}}}
	}
	w.must(r.take(t.Context(), d))
	if len(r.dirty) != 2 || len(r.all) > 3 {
		t.Errorf("%d tallies have changed, and %d are there", len(r.dirty), len(r.all))
	}
}
