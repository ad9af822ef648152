package champions

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
)

// patience limits how long a test waits.
const patience = 2 * time.Minute

// world is a Kafka with the stream of facts, a Redis and a ledger.
type world struct {
	testing.TB
	names   tidemill.Names
	broker  *broker.Broker
	redis   *redis.Client
	produce *broker.Producer
	ledger  *ledger.Ledger
	address string // address of Kafka
}

func newWorld(t testing.TB, partitions int) *world {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	w := &world{TB: t}
	w.must(err)
	w.address = s.Kafka()
	t.Cleanup(func() { _ = s.Close() })
	w.names, err = tidemill.NewNames("test")
	w.must(err)
	w.broker, err = broker.Open(t.Context(), broker.Options{Addr: s.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = w.broker.Close() })
	w.ensure(partitions)
	w.produce, err = w.broker.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
	w.redis = redis.NewClient(&redis.Options{Addr: s.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = w.redis.Close() })
	kafka, err := w.broker.Cluster(t.Context())
	w.must(err)
	w.ledger, err = ledger.Open(t.Context(), ledger.Options{Broker: w.broker, Producer: w.produce, Names: w.names, Redis: w.redis, Kafka: kafka})
	w.must(err)
	t.Cleanup(func() { w.must(w.ledger.Close(context.Background())) })
	return w
}

func (w *world) ensure(partitions int) {
	w.Helper()
	_, err := w.broker.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: partitions}}, broker.EnsureOptions{})
	w.must(err)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// ctx returns a context that ends with the test, or after the time patience.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) options() Options {
	return Options{Broker: w.broker, Ledger: w.ledger, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))}
}

func (w *world) open(o Options) *Table {
	w.Helper()
	t, err := Open(w.ctx(), o)
	w.must(err)
	w.Cleanup(func() { w.must(t.Close(context.Background())) })
	return t
}

// waitUntil polls until a condition holds.
func (w *world) waitUntil(what string, ok func() bool) {
	w.Helper()
	ctx := w.ctx()
	for tick := time.NewTicker(5 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("waited in vain: %s", what)
		}
	}
}

// publish puts a fact on the log and returns its position.
func (w *world) publish(v *broker.View) broker.Position {
	w.Helper()
	r, err := w.produce.Publish(w.ctx(), tidemill.StreamFacts, v)
	w.must(err)
	return r.Position()
}

// send publishes a fact in a transaction.
func (w *world) send(v *broker.View) func(*broker.ExclusiveTx) error {
	return func(x *broker.ExclusiveTx) error {
		x.Send(w.ctx(), tidemill.StreamFacts, v)
		return nil
	}
}

// endPlaces returns the places after all facts.
func (w *world) endPlaces() []int64 {
	w.Helper()
	ends, err := w.broker.Ends(w.ctx(), tidemill.StreamFacts)
	w.must(err)
	all := make([]int64, len(ends))
	for _, e := range ends {
		all[e.Partition] = e.Offset
	}
	return all
}

// script numbers the facts that it makes.
type script struct {
	mu sync.Mutex
	n  int
}

func (s *script) fact(typ, name, run string, data any) *broker.View {
	s.mu.Lock()
	s.n++
	id := fmt.Sprint("fact-", s.n)
	s.mu.Unlock()
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(err.Error())
	}
	return &broker.View{ID: id, Source: "/tidemill/test/models", Type: typ, Subject: "key of " + name, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: text, Key: []byte(tidemill.ModelKey(name)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: name}, {Name: tidemill.AttrRun, Value: run}}}
}

// register returns the registration of a version of the run with the same number.
func (s *script) register(name string, n int) *broker.View {
	run := fmt.Sprint("run-", n)
	return s.fact(tidemill.TypeModelRegistered, name, run, tidemill.ModelRegistered{Artifact: artifactOf(n), Judge: tidemill.Judge{Keep: 3},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Mark: tidemill.Mark{Offset: int64(n)}, Began: time.Unix(int64(n), 0)}})
}

func artifactOf(n int) string { return fmt.Sprintf("%064d", n) }

// promote makes a version the champion, whatever its verdict.
func (s *script) promote(name string, version, basis int, turn int64) *broker.View {
	return s.fact(tidemill.TypeModelPromotionProposed, name, "", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: version, Basis: basis, Turn: turn, Force: true})
}
