package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// waitUntil waits for a condition. It checks it whenever facts were folded in, and from time to
// time.
func waitUntil(t testing.TB, l *ledger.Ledger, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		changed := l.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: it is %+v", what, l.Status())
		}
	}
}

// While Redis does not work, a fact is on the log and its outcome is not known. When Redis
// works again, no fact is missing.
func TestRedisAway(t *testing.T) {
	w, m := newMiniWorld(t, 3)
	l, s := w.open(), &script{}
	first, _ := s.runRequest("intent", "bot-1", "c", nil)
	w.add(l, first)
	m.SetError("LOADING Redis is loading the dataset in memory")
	var at broker.Position
	var making *fold.Making
	var id string
	var err error
	var appended *ledger.AppendedError
	for within, n := 100*time.Millisecond, 2; within < patience; within, n = 2*within, n+1 { // the loop ends when the time is enough for Kafka
		var next *broker.View
		next, id = s.runRequest("intent", fmt.Sprint("bot-", n), "c", nil)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		at, making, err = l.Append(ctx, next)
		cancel()
		if errors.As(err, &appended) {
			break
		}
	}
	if making != nil || !errors.As(err, &appended) || appended.Position != at || at.Stream != tidemill.StreamFacts || !errors.Is(err, ledger.ErrCatchingUp) {
		t.Fatalf("appended at %v: %v", at, err)
	}
	waitUntil(t, l, "no error", func() bool { return l.Status().Err != nil })
	if _, err := l.Making(t.Context(), "intent", "bot-1"); err == nil || !strings.Contains(err.Error(), "LOADING") {
		t.Errorf("read: %v", err)
	}
	m.SetError("")
	w.waitSettled(l)
	w.checkSame(w.modelOf())
	caughtUp(t, l)
	r, err := l.Run(t.Context(), id)
	must(t, err)
	if r.State != tidemill.RunWaiting {
		t.Errorf("%+v", r)
	}
	waitUntil(t, l, "an error", func() bool { return l.Status().Err == nil })
}

// The ledger recovers even if no new fact arrives.
func TestRedisAwayAndNothingComes(t *testing.T) {
	w, m := newMiniWorld(t, 3)
	l, s := w.open(), &script{}
	first, _ := s.runRequest("intent", "bot-1", "c", nil)
	w.add(l, first)
	m.SetError("LOADING Redis is loading the dataset in memory")
	waitUntil(t, l, "no error", func() bool { return l.Status().Err != nil })
	m.SetError("")
	waitUntil(t, l, "an error", func() bool { return l.Status().Err == nil })
	caughtUp(t, l)
}

// A Redis that restarts empty is filled again.
func TestRedisRestartsEmpty(t *testing.T) {
	w, m := newMiniWorld(t, 3)
	l, s := w.open(), &script{}
	for i := range 20 {
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "c", nil)
		w.add(l, v)
	}
	m.Close()
	m.FlushAll()
	must(t, m.Restart())
	w.waitSettled(l)
	w.checkSame(w.modelOf())
}

// Until a flushed Redis has all facts again, reads and decisions fail.
func TestNothingIsDecidedBeforeItHasCaughtUp(t *testing.T) {
	dir := t.TempDir()
	servers := startedAside(t, dir)
	w := worldOn(t, servers.Kafka(), redisAlone(t), 2)
	l, s := w.open(), &script{}
	v, id := s.runRequest("intent", "bot-1", "c", nil)
	w.add(l, v)
	must(t, servers.Close()) // no refill is possible without Kafka
	must(t, w.redis.FlushAll(t.Context()).Err())
	ctx := t.Context()
	for name, ask := range map[string]func() error{
		"making": func() error { _, err := l.Making(ctx, "intent", "bot-1"); return err },
		"run":    func() error { _, err := l.Run(ctx, id); return err },
		"runs":   func() error { _, err := l.Runs(ctx, ledger.Query{}); return err },
		"of key": func() error { _, err := l.Runs(ctx, ledger.Query{Key: "bot-1"}); return err },
		"keys":   func() error { return l.Keys(ctx, "intent", func(string) bool { return true }) },
		"counts": func() error { _, err := l.Counts(ctx); return err },
		"claim": func() error {
			_, _, err := l.Claim(ctx, ask(0, ledger.Admission{Recipe: "intent"}), time.Now())
			return err
		},
		"next":  func() error { _, _, err := l.NextDue(ctx, time.Now()); return err },
		"live":  func() error { _, err := l.Live(ctx); return err },
		"way":   func() error { _, err := l.UnderWay(ctx); return err },
		"used":  func() error { _, _, err := l.Used(ctx); return err },
		"beats": func() error { _, err := l.Beats(ctx); return err },
		"some":  func() error { _, err := l.BeatsOf(ctx, []string{"a-1"}); return err },

		"model":    func() error { _, err := l.Model(ctx, "intent/bot-1"); return err },
		"versions": func() error { _, err := l.Versions(ctx, "intent/bot-1"); return err },
		"models":   func() error { _, err := l.Models(ctx, ledger.ModelQuery{}); return err },
		"owed":     func() error { _, err := l.Owed(ctx); return err },
		"links":    func() error { _, err := l.Links(ctx, "event/c"); return err },
	} {
		if err := ask(); !errors.Is(err, ledger.ErrCatchingUp) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l.Status().Behind == 0 {
		t.Error("it is not behind")
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := l.CaughtUp(short); !errors.Is(err, ledger.ErrCatchingUp) {
		t.Error(err)
	}
	servers, err := embedded.Start(ctx, embedded.Options{Dir: dir, Kafka: servers.Kafka()})
	must(t, err)
	t.Cleanup(func() { _ = servers.Close() })
	caughtUp(t, l)
	r, err := l.Run(ctx, id)
	must(t, err)
	if r.State != tidemill.RunWaiting || l.Status().Behind != 0 {
		t.Errorf("%+v, %+v", r, l.Status())
	}
}

// startedAside starts a Kafka at a port below the kernel's range of ephemeral ports. So no
// other program gets the port before the Kafka starts again.
func startedAside(t testing.TB, dir string) *embedded.Servers {
	t.Helper()
	var s *embedded.Servers
	var err error
	for range 100 {
		if s, err = embedded.Start(t.Context(), embedded.Options{Dir: dir, Kafka: fmt.Sprint("127.0.0.1:", 20000+rand.IntN(12000))}); err == nil {
			break
		}
	}
	must(t, err)
	return s
}

func redisAlone(t testing.TB) string {
	if os.Getenv(onRedisServer) != "" {
		return realRedis(t)
	}
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s.Redis()
}

// If an older copy replaces Redis, the ledger notices it and applies the missing facts.
func TestRedisFallsBack(t *testing.T) {
	w, _ := newMiniWorld(t, 1)
	l, s := w.open(), &script{}
	v, id := s.runRequest("intent", "bot-1", "c", nil)
	made := w.add(l, v)
	old := w.redisContent()
	w.add(l, s.start(made.Waiting, "gpu"))
	other := w.open()
	w.restore(old)
	for _, l := range []*ledger.Ledger{l, other} {
		waitUntil(t, l, "the run is still told to wait", func() bool {
			r, err := l.Run(t.Context(), id)
			if err != nil && !errors.Is(err, ledger.ErrCatchingUp) {
				t.Fatal(err)
			}
			if err == nil && r.State == tidemill.RunWaiting {
				t.Fatal("it tells what was before")
			}
			return err == nil
		})
	}
	w.waitSettled(l)
	w.checkSame(w.modelOf())
}

// restore replaces the content of Redis in one transaction, so that no ledger sees it empty
// and begins to fill it.
func (w *world) restore(m model) {
	w.t.Helper()
	pipe := w.redis.TxPipeline()
	pipe.FlushAll(w.t.Context())
	for name, fields := range m {
		key := w.prefix() + name
		for field, value := range fields {
			switch {
			case strings.HasPrefix(name, "keys:"):
				pipe.SAdd(w.t.Context(), key, field)
			case strings.HasPrefix(name, "list:"), strings.HasPrefix(name, "queue:"), name == "queue", name == "lists":
				pipe.Do(w.t.Context(), "ZADD", key, value, field)
			default:
				pipe.HSet(w.t.Context(), key, field, value)
			}
		}
	}
	_, err := pipe.Exec(w.t.Context())
	must(w.t, err)
}

// Facts of two Kafkas in the same Redis are kept apart.
func TestAnotherKafka(t *testing.T) {
	at := redisAlone(t)
	one, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = one.Close() })
	two, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = two.Close() })
	a, b, s := worldOn(t, one.Kafka(), at, 2), worldOn(t, two.Kafka(), at, 2), &script{}
	b.kafka = "another"
	la, lb := a.open(), b.open()
	v, _ := s.runRequest("intent", "bot-1", "c", nil)
	a.add(la, v)
	m, err := lb.Making(t.Context(), "intent", "bot-1")
	must(t, err)
	if m.Waiting != nil || m.Recipe != "intent" || m.Key != "bot-1" {
		t.Errorf("%+v", m)
	}
	a.checkSame(a.modelOf())
	b.checkSame(b.modelOf())
}

// If the stream facts is deleted and created again, no old state is left.
func TestFactsBegunAnew(t *testing.T) {
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	for i := range 10 {
		v, _ := s.runRequest("intent", fmt.Sprint("old-", i), "c", nil)
		w.add(l, v)
		w.addModel(l, s.registered(fmt.Sprint("old/", i), "run", 2))
	}
	must(t, l.Close(t.Context()))
	client := kafka.Client{Addr: kafka.TCP(w.address)}
	_, err := client.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{w.names.Topic(tidemill.StreamFacts)}})
	must(t, err)
	w.ensure(2)
	w.produce, err = w.broker.Producer(broker.ProducerOptions{})
	must(t, err)
	t.Cleanup(func() { _ = w.produce.Close(context.Background()) })
	l = w.open()
	v, _ := s.runRequest("intent", "new", "c", nil)
	w.add(l, v)
	w.checkSame(w.modelOf())
	var keys []string
	must(t, l.Keys(t.Context(), "intent", func(key string) bool { keys = append(keys, key); return true }))
	if fmt.Sprint(keys) != "[new]" {
		t.Errorf("keys %v", keys)
	}
}

// Facts that cannot be read are skipped, counted, and logged once.
func TestTornFacts(t *testing.T) {
	w := newWorld(t, 1)
	o, log, registry := w.options(), &locked{}, prometheus.NewRegistry()
	o.Logger, o.Registerer = slog.New(slog.NewTextHandler(log, nil)), registry
	l, s := w.openWith(o), &script{}
	client := kafka.Client{Addr: kafka.TCP(w.address)}
	for range 3 {
		_, err := client.Produce(t.Context(), &kafka.ProduceRequest{Topic: w.names.Topic(tidemill.StreamFacts), RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("torn")), Headers: []kafka.Header{{Key: "ce_specversion", Value: []byte("1.0")}}})})
		must(t, err)
	}
	misplaced, _ := s.runRequest("intent", "bot-1", "c", nil)
	misplaced.Key = []byte("elsewhere")
	_, err := w.produce.Publish(t.Context(), tidemill.StreamFacts, misplaced)
	must(t, err)
	v, _ := s.runRequest("intent", "bot-2", "c", nil)
	w.add(l, v)
	w.waitSettled(l)
	w.checkSame(w.modelOf())
	families, err := registry.Gather()
	must(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		counted[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	if counted["tidemill_ledger_illegible_facts_total"] != 4 || counted["tidemill_ledger_facts_total"] != 1 || strings.Count(log.String(), "a fact cannot be read") != 1 {
		t.Errorf("counted %v, log:\n%s", counted, log)
	}
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A caller that waits for a fact gets an error when the ledger is closed.
func TestCloseLetsGo(t *testing.T) {
	w, m := newMiniWorld(t, 1)
	l, s := w.open(), &script{}
	m.SetError("away")
	v, _ := s.runRequest("intent", "bot-1", "c", nil)
	done := make(chan error)
	go func() {
		_, _, err := l.Append(t.Context(), v)
		done <- err
	}()
	waitUntil(t, l, "it goes on", func() bool { return l.Status().Err != nil })
	must(t, l.Close(t.Context()))
	var appended *ledger.AppendedError
	if err := <-done; !errors.Is(err, ledger.ErrClosed) || !errors.As(err, &appended) {
		t.Error(err)
	}
	if err := l.CaughtUp(t.Context()); !errors.Is(err, ledger.ErrClosed) {
		t.Error(err)
	}
}
