package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
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
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/commands"
)

// patience ends a test that hangs; it measures nothing.
const patience = 2 * time.Minute

// world holds a Kafka, a Redis and a store, with the processes that use them.
type world struct {
	testing.TB
	servers *embedded.Servers
	redis   *redis.Client
	names   tidemill.Names
	store   *store.Store
	dir     string // folder of the store
	launch  *launches
	log     *slog.Logger
	tokens  *Tokens

	mu        sync.Mutex
	config    *config.Config
	acts      commands.State
	announced map[string]int // number of announcements per commit
}

func newWorld(t testing.TB, recipes ...config.Recipe) *world {
	t.Helper()
	w := &world{TB: t, log: slog.New(slog.DiscardHandler), announced: map[string]int{}, dir: t.TempDir()}
	if os.Getenv("RUNS_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.launch = newLaunches(w)
	w.config = &config.Config{Recipes: recipes, Pools: []config.Pool{{Name: "default", Slots: 4}}}
	var err error
	w.servers, err = embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = w.servers.Close() })
	w.names, err = tidemill.NewNames("")
	w.must(err)
	w.tokens, err = NewTokens(make([]byte, SecretSize))
	w.must(err)
	w.redis = redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = w.redis.Close() })
	w.store, err = store.Open(t.Context(), store.Options{URL: w.dir})
	w.must(err)
	t.Cleanup(func() { _ = w.store.Close() })
	b := w.dial()
	_, err = b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3, KeyOrdered: true}}, broker.EnsureOptions{})
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
	b, err := broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: w.names, Logger: w.log})
	w.must(err)
	w.Cleanup(func() { _ = b.Close() })
	return b
}

// foreman returns a Foreman with its own ledger and connections, like another process.
func (w *world) foreman(set func(*Options)) *Foreman {
	w.Helper()
	b := w.dial()
	p, err := b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = p.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	w.Cleanup(func() { _ = client.Close() })
	l, err := ledger.Open(w.ctx(), ledger.Options{Broker: b, Producer: p, Names: w.names, Redis: client, Kafka: "test", Logger: w.log})
	w.must(err)
	w.Cleanup(func() { _ = l.Close(context.Background()) })
	o := Options{Ledger: l, Store: w.store, Names: w.names, Config: w.configNow, Asked: w.actsNow, Announce: w.announce,
		Launcher: w.launch, Tokens: w.tokens, Dir: "/home/ada", Logger: w.log}
	if set != nil {
		set(&o)
	}
	f, err := New(o)
	w.must(err)
	w.must(l.CaughtUp(w.ctx()))
	w.Cleanup(w.launch.working.Wait) // goroutines report the end of attempts to this Foreman
	return f
}

// watch runs a Foreman's Watch until the test ends, or stop is called.
func (w *world) watch(f *Foreman) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = f.Watch(ctx) })
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	w.Cleanup(stop)
	return stop
}

func (w *world) configNow() *config.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config
}

func (w *world) change(set func(*config.Config)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := *w.config
	set(&next)
	w.config = &next
}

func (w *world) actsNow() *commands.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acts.Clone()
}

func (w *world) act(typ, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts.Apply(commands.Command{Offset: w.acts.Next(), Type: typ, Subject: name})
}

func (w *world) announce(_ context.Context, c api.Commit) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announced[c.Dataset+"@"+c.ID]++
	return nil
}

func (w *world) announcements() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.announced)
}

// waitUntil waits until a condition is true.
func (w *world) waitUntil(what string, is func() bool) {
	w.Helper()
	ctx := w.ctx()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("in vain: %s", what)
		}
	}
}

// run returns a run from the ledger.
func (w *world) run(f *Foreman, id string) *tidemill.Run {
	w.Helper()
	for {
		r, err := f.ledger.Run(w.ctx(), id)
		if err == nil {
			return r
		}
		w.must(f.ledger.CaughtUp(w.ctx()))
	}
}

func (w *world) until(f *Foreman, id string, state tidemill.RunState) *tidemill.Run {
	w.Helper()
	var r *tidemill.Run
	w.waitUntil(fmt.Sprintf("run %s is %s", id, state), func() bool {
		r = w.run(f, id)
		return r.State == state
	})
	return r
}

// wish returns the request of an event.
func wish(recipe, key, id string) Request {
	event := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":"new-data","subject":%q}`, id, key)
	return Request{Recipe: recipe, Key: key, Cause: tidemill.Cause{Source: "/s", ID: id}, Events: []json.RawMessage{json.RawMessage(event)}}
}

func (w *world) ask(f *Foreman, r Request) Answer {
	w.Helper()
	a, err := f.Request(w.ctx(), r)
	w.must(err)
	return a
}

// begun requests a run and waits for its launch: a watching Foreman may start the run before the
// requesting Foreman does.
func (w *world) begun(f *Foreman, r Request) Answer {
	w.Helper()
	a := w.ask(f, r)
	w.waitUntil("it begins", func() bool { return len(w.launch.of(a.Run)) == 1 })
	return a
}

// putFile commits a file to a dataset and returns the commit.
func (w *world) putFile(dataset, path, text string) api.Commit {
	w.Helper()
	c, err := w.store.Commit(w.ctx(), store.CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset, Branch: "main"}, Time: time.Now(),
		Announce: func(context.Context, api.Commit) error { return nil }}, []api.Change{{File: w.file(path, text)}})
	w.must(err)
	return c.Commit
}

func (w *world) file(path, text string) api.File {
	w.Helper()
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	w.must(w.store.PutObject(w.ctx(), digest, int64(len(text)), strings.NewReader(text)))
	return api.File{Path: path, Digest: digest, Size: int64(len(text))}
}

// tree stores a tree with one file and returns its id.
func (w *world) tree(path, text string) string {
	w.Helper()
	t, err := w.store.Tree(w.ctx(), []api.File{w.file(path, text)})
	w.must(err)
	return t.Tree
}
