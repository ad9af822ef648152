package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/commands"
)

// patience ends a test that hangs.
const patience = 2 * time.Minute

// world is a Kafka, a Redis and a store, and the parts of Tidemill that work on them.
type world struct {
	testing.TB
	servers *embedded.Servers
	redis   *redis.Client
	names   tidemill.Names
	store   *store.Store
	dir     string // folder of the store
	broker  *broker.Broker

	mu    sync.Mutex
	acts  commands.State
	again []Lost
	trial *tidemill.ServingCheck // result of each trial; nil means that nothing serves the models
	tried []ServingRequest
	runs  int // number of runs that have begun
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t}
	var err error
	w.servers, err = embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = w.servers.Close() })
	w.names, err = tidemill.NewNames("")
	w.must(err)
	w.redis = redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = w.redis.Close() })
	w.dir = t.TempDir()
	w.store, err = store.Open(t.Context(), store.Options{URL: w.dir})
	w.must(err)
	t.Cleanup(func() { _ = w.store.Close() })
	w.broker = w.dial()
	_, err = w.broker.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3, KeyOrdered: true}}, broker.EnsureOptions{})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.Context()), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) dial() *broker.Broker {
	w.Helper()
	b, err := broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: w.names})
	w.must(err)
	w.Cleanup(func() { _ = b.Close() })
	return b
}

// registrar returns a registrar with a separate ledger and connections, as in another process.
func (w *world) registrar() *Registrar {
	w.Helper()
	b := w.dial()
	p, err := b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = p.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	w.Cleanup(func() { _ = client.Close() })
	l, err := ledger.Open(w.ctx(), ledger.Options{Broker: b, Producer: p, Names: w.names, Redis: client, Kafka: "test"})
	w.must(err)
	w.Cleanup(func() { _ = l.Close(context.Background()) })
	r, err := New(Options{Ledger: l, Store: w.store, Broker: b, Names: w.names, Asked: w.asked, Again: w.asks, Try: w.try, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))})
	w.must(err)
	w.must(l.CaughtUp(w.ctx()))
	return r
}

func (w *world) asked() *commands.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acts.Clone()
}

func (w *world) act(typ, subject, by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts.Apply(commands.Command{Offset: w.acts.Next(), Type: typ, Subject: subject, By: by, At: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)})
}

func (w *world) asks(_ context.Context, l Lost) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = append(w.again, l)
	return nil
}

func (w *world) try(_ context.Context, ask ServingRequest) (*tidemill.ServingCheck, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried = append(w.tried, ask)
	return w.trial, nil
}

func (w *world) flush() { w.must(w.redis.FlushAll(w.ctx()).Err()) }

// removeTree removes a tree from the store.
func (w *world) removeTree(tree string) { w.hideTree(tree) }

// hideTree removes a tree from the store. It returns a function that brings the tree back.
func (w *world) hideTree(tree string) (show func()) {
	w.Helper()
	hidden := map[string]string{} // from where to where
	away := w.TempDir()
	w.must(filepath.WalkDir(w.dir, func(at string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(w.dir, at); err == nil && !d.IsDir() && strings.HasSuffix(strings.ReplaceAll(filepath.ToSlash(name), "/", ""), tree) {
			hidden[at] = filepath.Join(away, name[len(name)-20:])
			err = os.Rename(at, hidden[at])
		}
		return err
	}))
	if len(hidden) == 0 {
		w.Fatalf("the store has no tree %s", tree)
	}
	var err error
	w.store, err = store.Open(w.ctx(), store.Options{URL: w.dir}) // a store with an empty cache
	w.must(err)
	return func() {
		for at, to := range hidden {
			w.must(os.Rename(to, at))
		}
	}
}

// tree stores a tree of some files.
func (w *world) tree(files map[string]string) api.TreeRef {
	w.Helper()
	var all []api.File
	for path, text := range files {
		sum := sha256.Sum256([]byte(text))
		f := api.File{Path: path, Digest: hex.EncodeToString(sum[:]), Size: int64(len(text))}
		w.must(w.store.PutObject(w.ctx(), f.Digest, f.Size, strings.NewReader(text)))
		all = append(all, f)
	}
	ref, err := w.store.Tree(w.ctx(), all)
	w.must(err)
	return ref
}

// runEnd describes the end of a run that has made a version of a model.
type runEnd struct {
	model    string
	accuracy float64 // accuracy in metrics.json
	gate     []string
	on       tidemill.GateOn
	promote  tidemill.Promote
	keep     int
	given    int     // version that the run was given as champion
	beside   float64 // accuracy of that champion in metrics.json
	files    map[string]string
	run      string // id of the run; empty makes a new run
	trial    *tidemill.TrialTerms
	canary   *tidemill.Canary
}

// runEndEvent returns the event of a run's end. Each run begins after all earlier ones.
func (w *world) runEndEvent(e runEnd) *broker.View {
	w.Helper()
	w.mu.Lock()
	w.runs++
	n := w.runs
	w.mu.Unlock()
	if e.run == "" {
		e.run = tidemill.ID("run", fmt.Sprint(n))
	}
	if e.keep == 0 {
		e.keep = 10
	}
	if e.on == "" {
		e.on = tidemill.GateOnSame
	}
	if e.promote == "" {
		e.promote = tidemill.PromoteAuto
	}
	files := maps.Clone(e.files)
	if files == nil {
		files = map[string]string{}
	}
	files["model.onnx"] = "the model of run " + e.run
	ref := w.tree(files)
	d := tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: ref.Tree, Files: ref.Files, Bytes: ref.Bytes,
		Metrics: map[string]float64{"accuracy": e.accuracy}, Stages: []tidemill.Stage{{Name: "fetch", Seconds: 1}, {Name: "run", Seconds: 7}}}}
	began := time.Date(2026, 11, 22, 3, n, 0, 0, time.UTC)
	d.Candidate = &tidemill.Candidate{Model: e.model, Judge: tidemill.Judge{Gate: e.gate, On: e.on, Promote: e.promote, Keep: e.keep, Trial: e.trial, Canary: e.canary},
		Origin: tidemill.Origin{Run: e.run, Recipe: "intent", Key: "bot-42", Attempt: 1, Began: began, Ended: began.Add(time.Minute), Causes: 1,
			Mark: tidemill.Mark{Partition: 1, Offset: int64(n)}, Where: tidemill.Where{Node: "node-1"}}}
	if e.given != 0 {
		d.Candidate.Champion = &tidemill.Champion{Version: e.given, Artifact: "x"}
		if e.beside != 0 {
			d.Metrics["champion.accuracy"] = e.beside
		}
	}
	return w.view(d)
}

func (w *world) view(d tidemill.RunFinished) *broker.View {
	w.Helper()
	data, err := json.Marshal(d)
	w.must(err)
	c := d.Candidate
	return &broker.View{ID: tidemill.ID("finished", c.Run, "1"), Source: w.names.Source("gateway"), Type: tidemill.TypeRunFinished, Subject: c.Key, Data: data,
		DataContentType: "application/json", Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: c.Recipe}, {Name: tidemill.AttrRun, Value: c.Run},
			{Name: tidemill.AttrModel, Value: c.Model}, {Name: tidemill.AttrCorrelationID, Value: "the-first"}, {Name: tidemill.AttrTraceParent, Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}
}

func (w *world) finish(r *Registrar, e runEnd) {
	w.Helper()
	w.must(r.Finished(w.ctx(), w.runEndEvent(e)))
}

func (w *world) model(r *Registrar, name string) *fold.Model {
	w.Helper()
	var m *fold.Model
	w.waitCaughtUp(r, func(ctx context.Context) (err error) { m, err = r.o.Ledger.Model(ctx, name); return err })
	return m
}

// waitCaughtUp calls ask until the ledger has noticed a flush of Redis and caught up.
func (w *world) waitCaughtUp(r *Registrar, ask func(context.Context) error) {
	w.Helper()
	ctx, err := w.ctx(), error(nil)
	for {
		w.must(r.o.Ledger.CaughtUp(ctx))
		if err = ask(ctx); !errors.Is(err, ledger.ErrCatchingUp) {
			break
		}
	}
	w.must(err)
}

// versionRecord returns the record of a version.
func (w *world) versionRecord(r *Registrar, model string, number int) ledger.VersionRecord {
	w.Helper()
	var all []ledger.VersionRecord
	w.waitCaughtUp(r, func(ctx context.Context) (err error) { all, err = r.o.Ledger.Versions(ctx, model, number); return err })
	if len(all) != 1 {
		w.Fatalf("of version %d of %s there are %d records", number, model, len(all))
	}
	return all[0]
}

// factsOf returns the facts of a model on the log, in their order, each once by source and id.
func (w *world) factsOf(model string) []broker.View {
	w.Helper()
	from, err := w.broker.Places(w.ctx(), tidemill.StreamFacts, broker.Earliest())
	w.must(err)
	var all []broker.View
	known := map[tidemill.Cause]bool{}
	_, err = w.broker.ReadBack(w.ctx(), from, func(e *broker.Incoming) {
		of, _ := e.Attribute(tidemill.AttrModel)
		c := tidemill.Cause{Source: strings.Clone(e.Source), ID: strings.Clone(e.ID)}
		if of == model && !known[c] {
			known[c] = true
			all = append(all, e.View.Clone())
		}
	})
	w.must(err)
	return all
}

// types counts facts by their types.
func types(all []broker.View) map[string]int {
	n := map[string]int{}
	for i := range all {
		n[strings.TrimPrefix(all[i].Type, "tidemill.model.")]++
	}
	return n
}

func one(all []broker.View, typ string) *broker.View {
	for i := range all {
		if all[i].Type == typ {
			return &all[i]
		}
	}
	return nil
}
