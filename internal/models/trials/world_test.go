package trials

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/registry"
)

// patience ends a test that hangs.
const patience = time.Minute

// world is a Kafka, a Redis, a ledger, a registrar, and the streams of a scorer.
type world struct {
	testing.TB
	servers   *embedded.Servers
	names     tidemill.Names
	broker    *broker.Broker
	producer  *broker.Producer
	ledger    *ledger.Ledger
	registrar *registry.Registrar
	artifact  string // tree of every version
	runs      int
	scored    int32 // number of partitions of the answers

	mu      sync.Mutex
	away    bool // whether no candidate can answer
	answers int  // number of answers after which no candidate can answer; 0 means no limit
	loads   map[string]int
	told    []api.Trial
	news    chan struct{}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, loads: map[string]int{}, news: make(chan struct{}, 1), scored: 2}
	servers, err := embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = servers.Close() })
	w.servers = servers
	w.names, err = tidemill.NewNames("")
	w.must(err)
	w.broker, err = broker.Open(t.Context(), broker.Options{Addr: servers.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = w.broker.Close() })
	_, err = w.broker.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 2, KeyOrdered: true},
		{Name: "messages", Partitions: 3}, {Name: "scored", Partitions: 2}, {Name: tidemill.StreamOutcomes, Partitions: 2}}, broker.EnsureOptions{})
	w.must(err)
	w.producer, err = w.broker.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.producer.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: servers.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	w.ledger, err = ledger.Open(t.Context(), ledger.Options{Broker: w.broker, Producer: w.producer, Names: w.names, Redis: client, Kafka: "test"})
	w.must(err)
	t.Cleanup(func() { _ = w.ledger.Close(context.Background()) })
	files, err := store.Open(t.Context(), store.Options{URL: t.TempDir()})
	w.must(err)
	t.Cleanup(func() { _ = files.Close() })
	text := "a model"
	sum := sha256.Sum256([]byte(text))
	file := api.File{Path: "model.onnx", Digest: hex.EncodeToString(sum[:]), Size: int64(len(text))}
	w.must(files.PutObject(t.Context(), file.Digest, file.Size, strings.NewReader(text)))
	tree, err := files.Tree(t.Context(), []api.File{file})
	w.must(err)
	w.artifact = tree.Tree
	w.registrar, err = registry.New(registry.Options{Ledger: w.ledger, Store: files, Broker: w.broker, Names: w.names, Logger: w.logger()})
	w.must(err)
	w.must(w.ledger.CaughtUp(t.Context()))
	return w
}

func (w *world) logger() *slog.Logger { return slog.New(slog.NewTextHandler(w.Output(), nil)) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// scorer is the config of the tests' scorer.
func scorer() config.Scorer {
	return config.Scorer{Name: "s", From: "messages", To: "scored", Key: "subject", Model: "m/{key}"}
}

// version makes the next version of a model. Its recipe has a trial if terms is not nil.
func (w *world) version(key string, terms *tidemill.TrialTerms) *fold.Model {
	w.Helper()
	w.runs++
	run, model := tidemill.ID("run", fmt.Sprint(w.runs)), "m/"+key
	began := time.Date(2026, 11, 22, 3, 0, w.runs, 0, time.UTC)
	data, err := json.Marshal(tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: w.artifact},
		Candidate: &tidemill.Candidate{Model: model, Judge: tidemill.Judge{Promote: tidemill.PromoteAuto, Keep: 10, Trial: terms},
			Origin: tidemill.Origin{Run: run, Recipe: "r", Key: key, Attempt: 1, Began: began, Ended: began,
				Mark: tidemill.Mark{Making: "r/" + key, Number: int64(w.runs)}}}})
	w.must(err)
	err = w.registrar.Finished(w.Context(), &broker.View{ID: tidemill.ID("finished", run), Source: w.names.Source("gateway"), Type: tidemill.TypeRunFinished,
		Subject: key, Data: data, DataContentType: "application/json"})
	w.must(err)
	return w.model(key)
}

func (w *world) model(key string) *fold.Model {
	w.Helper()
	m, err := w.ledger.Model(w.Context(), "m/"+key)
	w.must(err)
	return m
}

func (w *world) record(key string, version int) *ledger.VersionRecord {
	w.Helper()
	all, err := w.ledger.Versions(w.Context(), "m/"+key, version)
	w.must(err)
	if len(all) != 1 {
		w.Fatalf("%d records of version %d", len(all), version)
	}
	return &all[0]
}

func (w *world) send(stream string, partition int32, v *broker.View) int64 {
	w.Helper()
	type sent struct {
		r   broker.Receipt
		err error
	}
	done := make(chan sent, 1)
	w.producer.SendTo(w.Context(), stream, partition, v, func(r broker.Receipt, err error) { done <- sent{r, err} })
	s := <-done
	w.must(s.err)
	return s.r.Offset
}

// answered publishes an event and the champion's answer to it, and returns the event's place. The event has the
// label of each version by its number.
func (w *world) answered(key string, n, champion int, labels map[int]string) broker.Position {
	w.Helper()
	data, err := json.Marshal(labels)
	w.must(err)
	at := broker.Position{Stream: "messages", Partition: int32(n % 3)}
	at.Offset = w.send("messages", at.Partition, &broker.View{ID: fmt.Sprint(key, "-", n), Source: "/test", Type: "message", Subject: key, Data: data, DataContentType: "application/json"})
	w.answer(key, fmt.Sprint(key, "-", n), at, champion, labels[champion])
	return at
}

// answer publishes the champion's answer to the event with this id and place.
func (w *world) answer(key, id string, at broker.Position, champion int, label string) {
	w.Helper()
	w.send("scored", at.Partition%w.scored, &broker.View{ID: at.Place(), Source: "/scorer", Type: tidemill.TypeScored, Subject: key, DataContentType: "application/json",
		Data: fmt.Appendf(nil, `{"label":%q}`, label), Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "m/" + key},
			{Name: tidemill.AttrModelVersion, Value: strconv.Itoa(champion)}, {Name: tidemill.AttrCausationID, Value: id}, {Name: tidemill.AttrCausationSource, Value: "/test"}}})
}

// outcome publishes the truth about an answer.
func (w *world) outcome(key string, at broker.Position, champion int, label, truth string, revision int) {
	w.Helper()
	typ := tidemill.TypeOutcome
	if revision > 1 {
		typ = tidemill.TypeOutcomeCorrected
	}
	data, err := json.Marshal(tidemill.OutcomeData{Scorer: "s", Key: key, Model: "m/" + key, Version: champion, Place: at.Place(), Label: label, Truth: truth, Revision: revision})
	w.must(err)
	w.send(tidemill.StreamOutcomes, int32(at.Offset%2), &broker.View{ID: fmt.Sprint(at.Place(), "/", revision), Source: "/observer", Type: typ, Subject: key, Data: data,
		DataContentType: "application/json", Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "m/" + key},
			{Name: tidemill.AttrModelVersion, Value: strconv.Itoa(champion)}, {Name: tidemill.AttrScorer, Value: "s"}}})
}

// toy is a candidate whose label is in the event.
type toy struct {
	w       *world
	version string
}

func (c *toy) Label(v *broker.View) (string, error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.w.away {
		return "", fmt.Errorf("%w: it is away", ErrLater)
	}
	if c.w.answers > 0 {
		c.w.answers--
		c.w.away = c.w.answers == 0
	}
	if label := jsonscan.TextAt(v.Data, []string{c.version}); label != "" {
		return label, nil
	}
	return "", errors.New("the event has no label of this version")
}

func (c *toy) Close() {}

func (w *world) options() Options {
	return Options{Broker: w.broker, Ledger: w.ledger, Registrar: w.registrar, Scorer: scorer(), Share: 1, Every: 10 * time.Millisecond, Logger: w.logger(),
		Load: func(_ context.Context, v *tidemill.Version) (Candidate, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.loads[v.Model]++
			return &toy{w, strconv.Itoa(v.Number)}, nil
		},
		Told: func(_ context.Context, all []api.Trial) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = all
			select {
			case w.news <- struct{}{}:
			default:
			}
		}}
}

// run runs the trials until the test or stop ends them, and again after a stream was not there, as an observer does.
func (w *world) run(o Options) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() {
		err := Run(ctx, o)
		for errors.Is(err, broker.ErrNoStream) {
			if retry.Sleep(ctx, o.Every) != nil { // it is stopped
				err = nil
				break
			}
			err = Run(ctx, o)
		}
		ended <- err
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// wait waits until the standings of the trials are as wanted.
func (w *world) wait(what string, ok func([]api.Trial) bool) {
	w.Helper()
	limit := time.After(patience)
	for {
		w.mu.Lock()
		told := w.told
		w.mu.Unlock()
		if ok(told) {
			return
		}
		select {
		case <-w.news:
		case <-limit:
			w.Fatalf("waited in vain: %s; it is %+v", what, told)
		}
	}
}

// ended waits until a version is not on trial any more, and returns it.
func (w *world) ended(key string, version int) *ledger.VersionRecord {
	w.Helper()
	limit := time.After(patience)
	for {
		changed := w.ledger.Changed()
		if v := w.record(key, version); v.State != tidemill.VersionTrial && v.State != tidemill.VersionRegistered {
			return v
		}
		select {
		case <-changed:
		case <-limit:
			w.Fatalf("version %d of %s is still on trial", version, key)
		}
	}
}
