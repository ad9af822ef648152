package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
)

// patience is how long a test waits for an expected change.
const patience = 5 * time.Minute

// world is a Kafka with the stream facts, and a Redis.
type world struct {
	t       testing.TB
	names   tidemill.Names
	broker  *broker.Broker
	redis   *redis.Client
	kafka   string
	produce *broker.Producer
	address string // address of the Kafka
}

func newWorld(t testing.TB, partitions int) *world {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	at := s.Redis()
	if os.Getenv(onRedisServer) != "" {
		at = realRedis(t)
	}
	return worldOn(t, s.Kafka(), at, partitions)
}

// onRedisServer is the environment variable of a process whose worlds have a redis-server.
const onRedisServer = "LEDGER_ON_REDIS_SERVER"

func realRedis(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := realservers.StartRedis(ctx)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r.Addr()
}

func worldOn(t testing.TB, kafka, at string, partitions int) *world {
	t.Helper()
	w := &world{t: t, address: kafka}
	var err error
	w.names, err = tidemill.NewNames("test")
	must(t, err)
	w.broker, err = broker.Open(t.Context(), broker.Options{Addr: kafka, Names: w.names})
	must(t, err)
	t.Cleanup(func() { _ = w.broker.Close() })
	w.ensure(partitions)
	w.kafka, err = w.broker.Cluster(t.Context())
	must(t, err)
	w.produce, err = w.broker.Producer(broker.ProducerOptions{})
	must(t, err)
	t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
	w.redis = redis.NewClient(&redis.Options{Addr: at, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = w.redis.Close() })
	return w
}

func (w *world) ensure(partitions int) {
	w.t.Helper()
	_, err := w.broker.EnsureStreams(w.t.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: partitions}}, broker.EnsureOptions{})
	must(w.t, err)
}

func (w *world) options() ledger.Options {
	return ledger.Options{Broker: w.broker, Producer: w.produce, Names: w.names, Redis: w.redis, Kafka: w.kafka,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
}

// open opens a ledger and waits until it has caught up.
func (w *world) open() *ledger.Ledger {
	w.t.Helper()
	l := w.openWith(w.options())
	caughtUp(w.t, l)
	return l
}

func (w *world) openWith(o ledger.Options) *ledger.Ledger {
	w.t.Helper()
	l, err := ledger.Open(w.t.Context(), o)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, l.Close(context.Background())) })
	return l
}

func caughtUp(t testing.TB, l *ledger.Ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, l.CaughtUp(ctx))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// script makes the facts of runs.
type script struct {
	mu sync.Mutex
	n  int
	at time.Time // time of the next fact; now if it is zero
}

func (s *script) view(typ, recipe, key, run string, data any) *broker.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	at := s.at
	if at.IsZero() {
		at = time.Now()
	} else {
		s.at = s.at.Add(time.Millisecond)
	}
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(err.Error())
	}
	return &broker.View{ID: fmt.Sprint("fact-", s.n), Source: "/tidemill/test/train", Type: typ, Subject: key, Time: at.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: text, Key: []byte(tidemill.RunKey(recipe, key)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}, {Name: tidemill.AttrRun, Value: run}}}
}

// runRequest returns a request for a run, and the run's id, which derives from the cause.
func (s *script) runRequest(recipe, key, cause string, change func(*tidemill.RunRequested)) (*broker.View, string) {
	c := tidemill.Cause{Source: "/test", ID: cause}
	run := tidemill.RunID(recipe, key, c)
	d := tidemill.RunRequested{Cause: c, Events: []json.RawMessage{event(cause, key)}, Config: "abc"}
	if change != nil {
		change(&d)
	}
	return s.view(tidemill.TypeRunRequested, recipe, key, run, d), run
}

func event(id, key string) json.RawMessage {
	text, _ := json.Marshal(map[string]any{"specversion": "1.0", "id": id, "source": "/test", "type": "new-data", "subject": key, "data": map[string]any{"uri": "s3://bucket/" + key}})
	return text
}

func plan(pool, dataset string) *tidemill.Plan {
	return &tidemill.Plan{Team: "chat", Image: "registry.example/intent-trainer:3", Command: []string{"python", "train.py", "--epochs", "3"},
		Env: map[string]string{"LANG": "C", "EPOCHS": "3"}, CPU: 2, Memory: 4 << 30, GPUs: 1, Pool: pool, Deadline: time.Hour, Grace: 30 * time.Second,
		Attempts: 3, Backoff: tidemill.Backoff{First: time.Second, Cap: time.Minute},
		Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/x", Branch: "main", Commit: strings.Repeat("a", 64), Tree: strings.Repeat("b", 64), Files: 12, Bytes: 123456}},
		Model:  "intent/x", Dataset: dataset, MaxOutput: 1 << 30, MaxLog: 1 << 20}
}

func (s *script) start(r *tidemill.Run, pool string) *broker.View {
	d := tidemill.RunStarted{Attempt: r.NextAttempt(), Causes: r.Causes, Seen: r.LastAsked(), Where: tidemill.Where{Node: "node-1", Card: "H200"}}
	if d.Attempt == 1 {
		d.Plan = plan(pool, "")
	}
	return s.view(tidemill.TypeRunStarted, r.Recipe, r.Key, r.ID, d)
}

func (s *script) finish(r *tidemill.Run, o tidemill.Outcome) *broker.View {
	return s.view(tidemill.TypeRunFinished, r.Recipe, r.Key, r.ID, tidemill.RunFinished{Attempt: len(r.Attempts), Outcome: o, Result: result()})
}

func result() tidemill.Result {
	return tidemill.Result{PeakMemory: 1 << 30, GPUSeconds: 12.5, Artifact: strings.Repeat("c", 64), Bytes: 4242, Files: 2,
		Stages:    []tidemill.Stage{{Name: "fetch", Seconds: 0.2}, {Name: "run", Seconds: 12}, {Name: "upload", Seconds: 0.3}},
		Metrics:   map[string]float64{"accuracy": 0.93, "f1": 0.91, "loss": 0.21, "examples": 1234},
		LastLines: "epoch 3 loss 0.21\ndone\n", LogBytes: 4096}
}
