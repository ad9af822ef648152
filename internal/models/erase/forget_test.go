package erase

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/deadletters"
)

// patience ends a test that hangs.
const patience = 2 * time.Minute

const recipesOfTests = `version: 1
streams: {events: {partitions: 2, retention: 7d}, facts: {partitions: 3}}
recipes:
  intent:
    when: {type: new-data}
    inputs: {examples: "bots/{key}", words: shared/words}
    run: {dir: ., command: ["true"]}
    makes: {model: "intent/{key}"}
  clean:
    run: {dir: ., command: ["true"]}
    makes: {dataset: "clean/{key}"}
  tongue:
    run: {dir: ., command: ["true"]}
    makes: {model: tongue}
  all:
    key: none
    run: {dir: ., command: ["true"]}
    makes: {model: all}
`

// world is a Kafka, a Redis and a store, and the parts of Tidemill that work on them.
type world struct {
	testing.TB
	names    tidemill.Names
	config   *config.Config
	b        *broker.Broker
	producer *broker.Producer
	ledger   *ledger.Ledger
	store    *store.Store
	foreman  *scheduler.Foreman
	dir      string
	options  Options

	mu    sync.Mutex
	watch func() // called at the store's writes and at the forgetter's steps
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dir: t.TempDir()}
	servers, err := embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = servers.Close() })
	w.config, err = config.Parse("test", []byte(recipesOfTests))
	w.must(err)
	w.names, err = w.config.Names()
	w.must(err)
	w.b, err = broker.Open(t.Context(), broker.Options{Addr: servers.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = w.b.Close() })
	var specs []broker.StreamSpec
	for _, s := range append(slices.Clone(w.config.Streams), w.config.Parked()...) {
		specs = append(specs, broker.StreamSpec{Name: s.Name, Partitions: s.Partitions})
	}
	_, err = w.b.EnsureStreams(t.Context(), specs, broker.EnsureOptions{})
	w.must(err)
	w.producer, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.producer.Close(context.Background()) })
	w.store, err = store.Open(t.Context(), store.Options{URL: w.dir, Watch: func(string) { w.told() }})
	w.must(err)
	client := redis.NewClient(&redis.Options{Addr: servers.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.ledger, err = ledger.Open(t.Context(), ledger.Options{Broker: w.b, Producer: w.producer, Names: w.names, Redis: client, Kafka: "k", Logger: log})
	w.must(err)
	t.Cleanup(func() { _ = w.ledger.Close(context.Background()) })
	w.must(w.ledger.CaughtUp(w.within()))
	now := func() *config.Config { return w.config }
	w.foreman, err = scheduler.New(scheduler.Options{Ledger: w.ledger, Store: w.store, Names: w.names, Config: now, Logger: log})
	w.must(err)
	registrar, err := registry.New(registry.Options{Ledger: w.ledger, Store: w.store, Broker: w.b, Names: w.names, Logger: log})
	w.must(err)
	book, err := deadletters.Open(t.Context(), w.b, log)
	w.must(err)
	t.Cleanup(func() { _ = book.Close(context.Background()) })
	w.options = Options{Broker: w.b, Producer: w.producer, Names: w.names, Config: now, Ledger: w.ledger, Store: w.store, Foreman: w.foreman,
		Registrar: registrar, Letters: func(context.Context) (*deadletters.Book, error) { return book, nil },
		Watch: func(string) { w.told() }, Logger: log}
	return w
}

func (w *world) told() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch != nil {
		w.watch()
	}
}

func (w *world) watched(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watch = fn
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) within() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) soon(what string, is func() bool) {
	w.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for end := time.After(patience); !is(); {
		select {
		case <-look.C:
		case <-end:
			w.Fatalf("it has not come that %s", what)
		}
	}
}

func (w *world) forgetter() *Forgetter {
	w.Helper()
	f, err := New(w.options)
	w.must(err)
	return f
}

func (w *world) commit(dataset, text string) {
	w.Helper()
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	w.must(w.store.PutObject(w.Context(), digest, int64(len(text)), strings.NewReader(text)))
	_, err := w.store.Commit(w.Context(), store.CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset}},
		[]api.Change{{File: api.File{Path: "text", Digest: digest, Size: int64(len(text))}}})
	w.must(err)
}

// request asks for a run.
func (w *world) request(recipe, key, id string) string {
	w.Helper()
	a, err := w.foreman.Request(w.within(), scheduler.Request{Recipe: recipe, Key: key, Cause: tidemill.Cause{Source: "/test", ID: id + " " + key},
		Events: []json.RawMessage{[]byte(`{"specversion":"1.0","id":"1","source":"/test","type":"new-data","subject":"` + key + `"}`)}})
	w.must(err)
	return a.Run
}

// begin starts an attempt of a waiting run, as a launcher does.
func (w *world) begin(recipe, key, run string) {
	w.Helper()
	m, err := w.ledger.Making(w.Context(), recipe, key)
	w.must(err)
	w.append(tidemill.TypeRunStarted, recipe, key, run, tidemill.RunStarted{Attempt: 1, Seen: m.Waiting.LastAsked(),
		Plan: &tidemill.Plan{Dir: "x", Pool: "default", Attempts: 1}})
}

func (w *world) finish(recipe, key, run string) {
	w.Helper()
	w.append(tidemill.TypeRunFinished, recipe, key, run, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded})
}

func (w *world) append(typ, recipe, key, run string, data any) {
	w.Helper()
	text, err := json.Marshal(data)
	w.must(err)
	v := broker.View{ID: tidemill.ID(typ, run), Source: "/test", Type: typ, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano), Data: text,
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}, {Name: tidemill.AttrRun, Value: run}}}
	_, _, err = w.ledger.Append(w.within(), &v)
	w.must(err)
}

// register publishes a version of a run.
func (w *world) register(key, run string, at tidemill.Mark) (*fold.Model, error) {
	text, err := json.Marshal(tidemill.ModelRegistered{Artifact: "none", Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: key, Mark: at}})
	w.must(err)
	v := broker.View{ID: tidemill.ID("registered", run), Source: "/test", Type: tidemill.TypeModelRegistered, Subject: key, Data: text,
		Time: time.Now().UTC().Format(time.RFC3339Nano), Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "intent/" + key},
			{Name: tidemill.AttrRecipe, Value: "intent"}, {Name: tidemill.AttrRun, Value: run}}}
	_, m, err := w.ledger.AppendModel(w.within(), &v)
	return m, err
}

// deadLetter publishes a dead letter of the key, and waits until it is known.
func (w *world) deadLetter(key string) {
	w.Helper()
	original := broker.View{ID: key, Source: "/shop", Type: "order", Subject: key, Data: []byte("an order")}
	v, err := deadletters.New(w.names, broker.Position{Stream: "events"}, &original, deadletters.Details{Trigger: "t", Reason: "away"}, time.Now())
	w.must(err)
	_, err = w.producer.Publish(w.within(), tidemill.StreamDeadLetters, &v)
	w.must(err)
	book, _ := w.options.Letters(w.Context())
	w.soon("the letter is known", func() bool { return book.IsOpen(v.ID) })
}

// fillKey gives a key data of all kinds, and returns its live run.
func (w *world) fillKey(key string) (live string) {
	w.Helper()
	w.commit("bots/"+key, "one of "+key)
	w.commit("bots/"+key, "two of "+key)
	w.commit("clean/"+key, "clean "+key)
	ended := w.request("intent", key, "1")
	w.begin("intent", key, ended)
	w.finish("intent", key, ended)
	_, err := w.register(key, ended, w.startPlace("intent", key))
	w.must(err)
	live = w.request("intent", key, "2")
	w.begin("intent", key, live)
	w.request("intent", key, "3")
	w.request("clean", key, "4")
	for _, run := range []string{ended, live} {
		w.must(w.store.PutLog(w.Context(), run, 1, 0, []byte("it is "+key)))
		w.must(w.store.SetCheckpoint(w.Context(), run, 1, api.TreeRef{Tree: strings.Repeat("ab", 32)}))
		w.must(w.ledger.AddPoint(w.Context(), run, time.Now(), []byte("{}")))
	}
	w.deadLetter(key)
	return live
}

// startPlace returns the place at which an ended run of a key has begun.
func (w *world) startPlace(recipe, key string) tidemill.Mark {
	m, err := w.ledger.Making(w.Context(), recipe, key)
	w.must(err)
	run, err := w.ledger.Run(w.Context(), m.Ended[0])
	w.must(err)
	return tidemill.Mark{Partition: run.Partition, Offset: run.Attempts[0].Offset}
}

func (w *world) order(key string) Order {
	return Order{ID: tidemill.ID("order", key), Source: "/test", Key: key, Reason: "a test", By: "ada", At: time.Now()}
}

// files returns the files that name a key.
func (w *world) files(key string) (found []string) {
	w.Helper()
	w.must(filepath.WalkDir(w.dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(w.dir, at)
		data, err := os.ReadFile(at)
		if strings.Contains(name+string(data), key) {
			found = append(found, filepath.ToSlash(name))
		}
		return err
	}))
	return found
}

// receiptText returns a receipt as text, without its key, ids and times.
func receiptText(r tidemill.KeyForgotten, key string) string {
	r.Asked, r.Forgetting, r.Runs, r.Remains = time.Time{}, "", slices.Clone(r.Runs), slices.Clone(r.Remains)
	for i := range r.Runs {
		r.Runs[i].Runs, r.Runs[i].At = make([]string, len(r.Runs[i].Runs)), tidemill.Mark{}
	}
	for i := range r.Remains {
		r.Remains[i].Until, r.Remains[i].Ends = nil, ""
	}
	text, _ := json.Marshal(r)
	return strings.ReplaceAll(string(text), key, "KEY")
}

// isGone checks that only the receipt still names a key.
func (w *world) isGone(key string) {
	w.Helper()
	for _, recipe := range []string{"intent", "clean"} {
		if m, err := w.ledger.Making(w.Context(), recipe, key); err != nil || m.Live != nil || m.Waiting != nil || len(m.Ended) > 0 {
			w.Errorf("%s: recipe %s has %+v: %v", key, recipe, m, err)
		}
		w.must(w.ledger.Keys(w.Context(), recipe, func(known string) bool {
			if known == key {
				w.Errorf("%s: recipe %s knows it", key, recipe)
			}
			return true
		}))
	}
	if m, err := w.ledger.Model(w.Context(), "intent/"+key); err != nil || len(m.Versions) > 0 || m.Champion != 0 {
		w.Errorf("%s: the model is %+v: %v", key, m, err)
	}
	for _, name := range w.files(key) {
		if !strings.HasPrefix(name, "objects/") && !strings.HasPrefix(name, "trees/") {
			w.Errorf("%s: the store has %s", key, name)
		}
	}
	book, _ := w.options.Letters(w.Context())
	book.ByKey(deadletters.Selection{Key: key}, func(e deadletters.Entry) { w.Errorf("%s: it has the dead letter %s", key, e.ID) })
}

// TestForgetting forgets a key whose live run takes time to end.
func TestForgetting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.options.Patience = time.Millisecond
	live := w.fillKey("bot-1")
	w.fillKey("bot-2")
	w.commit("shared/words", "of all")
	f, o := w.forgetter(), w.order("bot-1")
	there, err := f.Preview(w.Context(), "bot-1")
	w.must(err)
	if _, err := f.Forget(w.within(), o); !errors.Is(err, ErrLive) {
		t.Fatalf("with an attempt under way: %v", err)
	}
	if s, err := f.State(w.Context(), o.ID); err != nil || s.Done || s.Receipt.Key != "bot-1" {
		t.Errorf("it is known as %+v: %v", s, err)
	}
	w.finish("intent", "bot-1", live)
	got, err := f.Forget(w.within(), o)
	w.must(err)
	w.isGone("bot-1")
	if points, err := w.ledger.Points(w.Context(), live); err != nil || len(points) > 0 {
		t.Errorf("%d steps of its run are left: %v", len(points), err)
	}
	there.Forgetting, there.By, there.Reason = got.Forgetting, got.By, got.Reason
	if receiptText(there, "bot-1") != receiptText(got, "bot-1") {
		t.Errorf("it was to be\n%s\nand is\n%s", receiptText(there, "bot-1"), receiptText(got, "bot-1"))
	}
	if len(got.Runs) != 2 || len(got.Runs[1].Runs) != 3 || got.Models[0].Versions != 1 || len(got.Datasets) != 2 || got.Letters != 1 {
		t.Errorf("the receipt is %+v", got)
	}
	var passed tidemill.KeyPassedData
	_, err = w.b.Read(w.within(), broker.Position{Stream: tidemill.StreamCommands}, 1<<20, func(e *broker.Incoming) bool {
		w.must(json.Unmarshal(e.Data, &passed))
		return true
	})
	w.must(err)
	for stream := range passed.Ends {
		if id, err := w.b.TopicID(w.within(), stream); err != nil || id == "" || passed.Topics[stream] != id {
			t.Errorf("stream %s has the id %q, %v, and the command says %q", stream, id, err, passed.Topics[stream])
		}
	}
	if len(passed.Ends) == 0 {
		t.Error("the command names no streams")
	}
	again, err := w.forgetter().Forget(w.within(), o)
	if w.must(err); !reflect.DeepEqual(again.Runs, got.Runs) {
		t.Errorf("said again it is %+v", again)
	}
	if s, err := f.State(w.Context(), o.ID); err != nil || !s.Done || s.Receipt.Letters != 1 {
		t.Errorf("it is known as %+v: %v", s, err)
	}
	if m, err := w.register("bot-1", live, tidemill.Mark{Partition: got.Runs[1].At.Partition, Offset: got.Runs[1].At.Offset - 1}); err != nil || len(m.Versions) > 0 {
		t.Errorf("a late version makes the model %+v: %v", m, err)
	}
	if m, err := w.ledger.Making(w.Context(), "intent", "bot-2"); err != nil || m.Live == nil || m.Waiting == nil {
		t.Errorf("the other key has %+v: %v", m, err)
	}
	for _, dataset := range []string{"bots/bot-2", "clean/bot-2", "shared/words"} {
		if _, err := w.store.Head(w.Context(), dataset, "main"); err != nil {
			t.Error(err)
		}
	}
	w.request("intent", "bot-1", "anew")
	if m, err := w.ledger.Making(w.Context(), "intent", "bot-1"); err != nil || m.Waiting == nil {
		t.Errorf("it does not begin anew: %+v: %v", m, err)
	}
}

// A forgetter pauses before each step while another forgets the key and the key begins again.
// Another one is cut off right after the receipt. The key's new data stays in both cases.
func TestWhatBeginsAnewStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	anew := func(key string) {
		w.commit("bots/"+key, "anew "+key)
		run := w.request("intent", key, "anew")
		w.begin("intent", key, run)
		w.must(w.store.PutLog(w.Context(), run, 1, 0, []byte("it is "+key)))
	}
	stays := func(what, key string) {
		t.Helper()
		if _, err := w.store.Head(w.Context(), "bots/"+key, "main"); err != nil {
			t.Errorf("%s: its dataset has gone: %v", what, err)
		}
		m, err := w.ledger.Making(w.Context(), "intent", key)
		if w.must(err); m.Live == nil || m.Live.Cancel != nil {
			t.Fatalf("%s: it makes %+v", what, m)
		}
		if files := w.files(m.Live.ID); len(files) == 0 {
			t.Errorf("%s: the log of its run has gone", what)
		}
	}
	var names []string
	for _, s := range w.forgetter().steps(nil) {
		names = append(names, s.name)
	}
	for i, name := range names {
		key := fmt.Sprintf("slow-%02d", i)
		w.finish("intent", key, w.fillKey(key))
		o, slow, quick := w.order(key), w.options, w.forgetter()
		slow.Watch = func(step string) {
			if step == name {
				_, err := quick.Forget(w.within(), o)
				w.must(err)
				anew(key)
			}
		}
		f, err := New(slow)
		w.must(err)
		if r, err := f.Forget(w.within(), o); err != nil || len(r.Datasets) != 2 {
			t.Errorf("slow before %s: the receipt is %+v: %v", name, r, err)
		}
		stays("slow before "+name, key)
	}
	key := "cut-off"
	w.finish("intent", key, w.fillKey(key))
	o := w.order(key)
	_, err := w.forgetter().Forget(w.within(), o)
	w.must(err)
	n, err := w.forgetter().readNote(w.Context(), o.ID)
	w.must(err)
	n.KeyForgotten, err = w.forgetter().receiptAt(w.Context(), *n.Receipt)
	w.must(err)
	n.Receipt, n.Taken = nil, true
	text, err := json.Marshal(n)
	w.must(err)
	w.must(w.store.PutNote(w.Context(), noteName(o.ID), text)) // the note as it was right before the last write
	anew(key)
	_, err = w.forgetter().Forget(w.within(), o)
	w.must(err)
	stays("cut off behind the receipt", key)
}

// A power cut can empty the note in a folder, or cut it off. The key is forgotten then too.
func TestAPowerCutEmptiesTheNote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for key, left := range map[string]string{"note-empty": "", "note-zeros": "\x00\x00", "note-torn": `{"key":"note-`} {
		w.finish("intent", key, w.fillKey(key))
		o := w.order(key)
		w.must(w.store.PutNote(w.Context(), noteName(o.ID), []byte(left)))
		if s, err := w.forgetter().State(w.Context(), o.ID); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: the state is %+v, %v", key, s, err)
		}
		r, err := w.forgetter().Forget(w.within(), o)
		if w.must(err); r.Key != key || len(r.Datasets) != 2 {
			t.Errorf("%s: the receipt is %+v", key, r)
		}
		w.isGone(key)
	}
}

// A model that several keys make records its last key, and is not removed with it.
func TestASharedModelStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := w.request("tongue", "bot-4", "1")
	text, err := json.Marshal(tidemill.ModelRegistered{Artifact: "none", Origin: tidemill.Origin{Run: run, Recipe: "tongue", Key: "bot-4", Mark: tidemill.Mark{Offset: 1}}})
	w.must(err)
	v := broker.View{ID: "r", Source: "/test", Type: tidemill.TypeModelRegistered, Subject: "bot-4", Data: text, Time: time.Now().UTC().Format(time.RFC3339Nano),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "tongue"}, {Name: tidemill.AttrRecipe, Value: "tongue"}, {Name: tidemill.AttrRun, Value: run}}}
	_, _, err = w.ledger.AppendModel(w.within(), &v)
	w.must(err)
	r, err := w.forgetter().Forget(w.within(), w.order("bot-4"))
	w.must(err)
	m, err := w.ledger.Model(w.Context(), "tongue")
	if w.must(err); len(m.Versions) != 1 || len(r.Models) != 0 {
		t.Errorf("the model is %+v, and the receipt %+v", m, r.Models)
	}
}
