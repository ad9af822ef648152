package score

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
)

// patience is how long a test waits for an expected state; it measures nothing.
const patience = 2 * time.Minute

const (
	streamIn  = "messages"
	streamOut = "scored"
)

// world is a laptop's Kafka and Redis, a folder of models, and a ledger.
type world struct {
	testing.TB
	install    string // name of the install; empty means prod
	names      tidemill.Names
	kafka      string
	redis      string
	dir        string // folder of the models, by artifact
	b          *broker.Broker
	p          *broker.Producer
	l          *ledger.Ledger
	partitions int

	mu    sync.Mutex
	facts int
}

func newWorld(t testing.TB, partitions int) *world {
	t.Helper()
	w := &world{TB: t, dir: t.TempDir(), partitions: partitions}
	s, err := embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = s.Close() })
	w.kafka, w.redis = s.Kafka(), s.Redis()
	w.connect()
	return w
}

// newSeparateWorld returns a world whose broker runs in a separate process.
func newSeparateWorld(t testing.TB) *world {
	t.Helper()
	_, addrs := child(t, "broker")
	w := &world{TB: t, dir: t.TempDir(), partitions: 8, kafka: addrs[0], redis: addrs[1]}
	w.connect()
	return w
}

// connect opens the clients of the test itself.
func (w *world) connect() {
	w.Helper()
	var err error
	w.names, err = tidemill.NewNames(cmp.Or(w.install, "prod"))
	w.must(err)
	w.b, err = broker.Open(w.Context(), broker.Options{Addr: w.kafka, Names: w.names})
	w.must(err)
	w.Cleanup(func() { _ = w.b.Close() })
	_, err = w.b.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3}, {Name: tidemill.StreamProgress, Partitions: 1}, {Name: tidemill.StreamCommands, Partitions: 1},
		{Name: tidemill.StreamDeadLetters, Partitions: 2, MaxMessageBytes: 10 << 20}, {Name: streamIn, Partitions: w.partitions}, {Name: streamOut, Partitions: w.partitions},
		{Name: tidemill.ScorerParked("s"), Partitions: w.partitions}, {Name: tidemill.StreamGroupOffsets, Partitions: 1}}, broker.EnsureOptions{})
	w.must(err)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = w.p.Close(context.Background()) })
	w.l = openLedger(w, w.b, w.p, w.names, w.redis)
	w.Cleanup(func() { w.must(w.l.Close(context.Background())) })
}

func openLedger(t testing.TB, b *broker.Broker, p *broker.Producer, names tidemill.Names, addr string) *ledger.Ledger {
	t.Helper()
	r := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = r.Close() })
	cluster, err := b.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(t.Context(), ledger.Options{Broker: b, Producer: p, Names: names, Redis: r, Kafka: cluster})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// poll polls for a state that is not announced.
func (w *world) poll(what string, ok func() bool) {
	w.Helper()
	until := time.After(patience)
	for tick := time.NewTicker(2 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-until:
			w.Fatalf("waited in vain: %s", what)
		}
	}
}

// scorer returns the config of the tests' scorer, named s.
func scorer() config.Scorer {
	return config.Scorer{Name: "s", From: streamIn, To: streamOut, Key: "subject", Model: "m/{key}", Map: []config.Mapped{{Input: "x", Path: "data.x"}},
		NoModel: config.NoModel{Action: config.NoModelDeadLetter}, Hold: 200 * time.Millisecond, MaxBatch: 4096, Engine: infer.EngineAuto}
}

// process contains the parts that one process of an install opens for a scorer.
type process struct {
	w     *world
	b     *broker.Broker
	cache *infer.Cache
	table *champions.Table
	m     *serving.Models
	s     *Scorer
	log   *slog.Logger
	fetch func(artifact string) error // called before a file is fetched
	held  heldOptions
	child []string // command of ONNX Runtime's process

	unloadable func(model string, version, kept int, reason error)

	session time.Duration // session timeout of the group
}

func (w *world) open(c config.Scorer) *process {
	w.Helper()
	p := &process{w: w}
	p.start(c)
	return p
}

func (p *process) start(c config.Scorer) {
	p.w.Helper()
	p.open(c)
	p.score(c)
}

// open opens everything except the scorer.
func (p *process) open(c config.Scorer) {
	w := p.w
	w.Helper()
	log := slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	var err error
	p.b, err = broker.Open(w.Context(), broker.Options{Addr: w.kafka, Names: w.names, Logger: log})
	w.must(err)
	p.cache, err = infer.Open(infer.Options{Fetch: func(ctx context.Context, artifact, file string, limit int64) ([]byte, error) {
		if p.fetch != nil {
			if err := p.fetch(artifact); err != nil {
				return nil, err
			}
		}
		return os.ReadFile(filepath.Join(w.dir, artifact, file))
	}, Child: p.child, Logger: log})
	w.must(err)
	var changed func(string, champions.Champion)
	p.table, err = champions.Open(w.Context(), champions.Options{Broker: p.b, Ledger: w.l, Logger: log,
		Changed: func(model string, now champions.Champion) { changed(model, now) }})
	w.must(err)
	p.m, err = serving.Open(serving.Options{Cache: p.cache, Champions: p.table, Engine: c.Engine, Unloadable: p.unloadable, Logger: log})
	w.must(err)
	changed = p.m.Changed
	p.log = log
}

func (p *process) score(c config.Scorer) {
	p.w.Helper()
	s, err := Open(p.w.Context(), Options{Broker: p.b, Names: p.w.names, Config: c, Champions: p.table, Models: p.m, Logger: p.log, SessionTimeout: p.session, held: p.held})
	p.w.must(err)
	p.s = s
	p.w.Cleanup(p.close)
}

func (p *process) close() {
	if p.s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.w.must(p.s.Close(ctx))
	p.w.must(p.m.Close())
	p.w.must(p.table.Close(ctx))
	p.w.must(p.cache.Close())
	p.w.must(p.b.Close())
	p.s = nil
}

// model writes a model's files.
func (w *world) model(artifact string, onnx []byte) {
	w.Helper()
	w.must(os.MkdirAll(filepath.Join(w.dir, artifact), 0o755))
	err := os.WriteFile(filepath.Join(w.dir, artifact, infer.ModelFile), onnx, 0o644)
	w.must(err)
}

func artifactOf(model string, version int) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(model, "/", "-"), version)
}

func (w *world) fact(typ, model, run string, data any) {
	w.Helper()
	w.mu.Lock()
	w.facts++
	id := fmt.Sprint("fact-", w.facts)
	w.mu.Unlock()
	text, err := json.Marshal(data)
	w.must(err)
	_, err = w.p.Publish(w.Context(), tidemill.StreamFacts, &broker.View{ID: id, Source: "/tidemill/prod/models", Type: typ, Subject: "key of " + model,
		Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json", Data: text, Key: []byte(tidemill.ModelKey(model)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}, {Name: tidemill.AttrRun, Value: run}}})
	w.must(err)
}

// register makes the next version of a model, with its own files.
func (w *world) register(model string, version int) {
	w.Helper()
	w.model(artifactOf(model, version), network(uint64(version), 4, 8, 3))
	w.registered(model, version)
}

func (w *world) registered(model string, version int) {
	w.Helper()
	run := fmt.Sprint("run-", model, version)
	w.fact(tidemill.TypeModelRegistered, model, run, tidemill.ModelRegistered{Artifact: artifactOf(model, version), Judge: tidemill.Judge{Keep: 3},
		Origin: tidemill.Origin{Run: run, Recipe: "r", Mark: tidemill.Mark{Offset: int64(version)}, Began: time.Unix(int64(version), 0)}})
}

// promote makes a version the champion.
func (w *world) promote(model string, version, basis int, turn int64) {
	w.Helper()
	w.fact(tidemill.TypeModelPromotionProposed, model, "", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: version, Basis: basis, Turn: turn, Force: true})
}

func (w *world) first(model string) {
	w.Helper()
	w.register(model, 1)
	w.promote(model, 1, 0, 0)
}

// promoted makes an existing version the champion.
func (w *world) promoted(model string, version int) {
	w.Helper()
	w.registered(model, version)
	w.promote(model, version, 0, 0)
}

// message returns an event of a key, with the inputs of the models.
func message(key string, n int) broker.View {
	return broker.View{ID: fmt.Sprint(key, "-", n), Source: "/crm", Type: "message", Subject: key, DataContentType: "application/json",
		Data: fmt.Appendf(nil, `{"n":%d,"x":[%d,%d,1,0.5]}`, n, n%7, n%3)}
}

func (w *world) publish(views ...broker.View) {
	w.Helper()
	var done sync.WaitGroup
	for i := range views {
		done.Add(1)
		w.p.Send(w.Context(), streamIn, &views[i], func(_ broker.Receipt, err error) {
			if err != nil {
				w.Error(err)
			}
			done.Done()
		})
	}
	done.Wait()
}

// scoredEvent is an output.
type scoredEvent struct {
	broker.View
	at broker.Position
}

// outputs returns all events that have been committed to a stream.
func (w *world) outputs(stream string) (all []scoredEvent) {
	w.Helper()
	from, err := w.b.Places(w.Context(), stream, broker.Earliest())
	w.must(err)
	_, err = w.b.ReadBack(w.Context(), from, func(e *broker.Incoming) {
		all = append(all, scoredEvent{e.View.Clone(), e.Position()})
	})
	w.must(err)
	return all
}

// waitEvents waits until a stream has a number of events.
func (w *world) waitEvents(stream string, n int) []scoredEvent {
	w.Helper()
	w.poll(fmt.Sprint(n, " events on stream ", stream), func() bool {
		ends, err := w.b.Ends(w.Context(), stream)
		w.must(err)
		sum := int64(0)
		for _, e := range ends {
			sum += e.Offset
		}
		return sum >= int64(n) && len(w.outputs(stream)) >= n
	})
	return w.outputs(stream)
}
