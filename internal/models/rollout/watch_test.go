package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
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
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
)

// patience ends a test that hangs.
const patience = 2 * time.Minute

// world is a Kafka, a Redis and a store, on which several controllers work.
type world struct {
	*testing.T
	servers *embedded.Servers
	names   tidemill.Names
	store   *store.Store
	config  atomic.Pointer[config.Config]
	runs    int
}

// process is one controller with its own connections.
type process struct {
	*Watcher
	b        *broker.Broker
	producer *broker.Producer
	ledger   *ledger.Ledger
	models   *registry.Registrar
	asked    *commands.Follower
	board    *status.Rollouts
	crash    func() error // called before each rollback; nil does nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t}
	var err error
	w.servers, err = embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = w.servers.Close() })
	w.names, err = tidemill.NewNames("")
	w.must(err)
	w.store, err = store.Open(t.Context(), store.Options{URL: t.TempDir()})
	w.must(err)
	t.Cleanup(func() { _ = w.store.Close() })
	b, err := broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { _ = b.Close() })
	_, err = b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3, KeyOrdered: true},
		{Name: tidemill.StreamCommands, Partitions: 1}, {Name: tidemill.StreamOutcomes, Partitions: 2}}, broker.EnsureOptions{})
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

func (w *world) use(r *config.Recipe) {
	w.config.Store(&config.Config{Recipes: []config.Recipe{*r}})
}

func (w *world) process() *process {
	w.Helper()
	p := &process{}
	var err error
	p.b, err = broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: w.names})
	w.must(err)
	w.Cleanup(func() { _ = p.b.Close() })
	p.producer, err = p.b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = p.producer.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	w.Cleanup(func() { _ = client.Close() })
	p.asked, err = commands.Follow(w.ctx(), p.b, slog.New(slog.DiscardHandler))
	w.must(err)
	w.Cleanup(func() { _ = p.asked.Close(context.Background()) })
	p.ledger, err = ledger.Open(w.ctx(), ledger.Options{Broker: p.b, Producer: p.producer, Names: w.names, Redis: client, Kafka: "test"})
	w.must(err)
	w.Cleanup(func() { _ = p.ledger.Close(context.Background()) })
	p.models, err = registry.New(registry.Options{Ledger: p.ledger, Store: w.store, Broker: p.b, Names: w.names, Asked: p.asked.Now})
	w.must(err)
	w.must(p.ledger.CaughtUp(w.ctx()))
	p.board = status.NewRollouts(client, w.names, "test")
	p.Watcher = New(Options{Broker: p.b, Producer: p.producer, Names: w.names, Config: w.config.Load, Asked: p.asked, Board: p.board,
		Sign: func(_ string, way tidemill.Way) tidemill.Way { way.MAC = "ours"; return way },
		RollBack: func(ctx context.Context, wish registry.Wish) (registry.Answer, error) {
			if p.crash != nil {
				if err := p.crash(); err != nil {
					return registry.Answer{}, err
				}
			}
			return p.models.Wish(ctx, wish)
		}, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))})
	w.Cleanup(p.closeAll)
	return p
}

// state waits until a process has folded the rollout into a state.
func (w *world) state(p *process, is func(*commands.Rollout) bool) *commands.Rollout {
	w.Helper()
	ctx := w.ctx()
	for {
		changed := p.asked.Changed()
		if s := p.asked.Now().Rollout("intent"); s != nil && is(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.Fatalf("the rollout stays %+v", p.asked.Now().Rollout("intent"))
		}
	}
}

// finish ends a run with a version for a key. The version is right in some of ten rows, and the champion in nine.
func (w *world) finish(p *process, key, rollout string, given, right int) {
	w.Helper()
	w.runs++
	run := tidemill.ID("run", fmt.Sprint(w.runs))
	rows := "truth,predicted\n"
	if given > 0 {
		rows = "truth,predicted,champion\n"
	}
	label := func(is bool) string {
		if is {
			return "a"
		}
		return "b"
	}
	for i := range 10 {
		rows += "a," + label(i < right)
		if given > 0 {
			rows += "," + label(i < 9)
		}
		rows += "\n"
	}
	ref := w.tree(map[string]string{"weights": run, "predictions.csv": rows})
	c := &tidemill.Candidate{Model: "intent/" + key, Judge: tidemill.Judge{On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: key, Attempt: 1, Began: time.Now(), Ended: time.Now(), Causes: 1, Rollout: rollout,
			Mark: tidemill.Mark{Making: tidemill.RunKey("intent", key), Number: int64(w.runs)}}}
	if given > 0 {
		c.Champion = &tidemill.Champion{Version: given, Artifact: "x"}
	}
	data, err := json.Marshal(tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Candidate: c, Result: tidemill.Result{Artifact: ref.Tree, Files: ref.Files, Bytes: ref.Bytes}})
	w.must(err)
	v := broker.View{ID: tidemill.ID("finished", run), Source: w.names.Source("gateway"), Type: tidemill.TypeRunFinished, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano),
		Key: []byte(tidemill.RunKey("intent", key)), Data: data, DataContentType: "application/json", Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "intent"},
			{Name: tidemill.AttrRun, Value: run}, {Name: tidemill.AttrOutcome, Value: "succeeded"}, {Name: tidemill.AttrRollout, Value: rollout}}}
	if rollout == "" {
		v.Extensions = v.Extensions[:3]
	}
	_, err = p.producer.Publish(w.ctx(), tidemill.StreamFacts, &v)
	w.must(err)
	w.must(p.models.Finished(w.ctx(), &v))
}

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

func (w *world) model(p *process, key string) *fold.Model {
	w.Helper()
	m, err := p.ledger.Model(w.ctx(), "intent/"+key)
	w.must(err)
	return m
}

// goesBack counts the announced rollbacks of each model on the log, each once by its id.
func (w *world) goesBack(p *process) map[string]int {
	w.Helper()
	from, err := p.b.Places(w.ctx(), tidemill.StreamFacts, broker.Earliest())
	w.must(err)
	n, known := map[string]int{}, map[string]bool{}
	_, err = p.b.ReadBack(w.ctx(), from, func(e *broker.Incoming) {
		model, _ := e.Attribute(tidemill.AttrModel)
		if e.Type == tidemill.TypeModelRolledBack && !known[e.ID] {
			known[strings.Clone(e.ID)] = true
			n[strings.Clone(model)]++
		}
	})
	w.must(err)
	return n
}

// Two controllers watch a rollout of a bad image. One of them dies while it rolls the keys back, and later ones end the
// work. Each key of the cohort goes back once, no other key changes, and a run that ends late promotes nothing.
func TestABadRolloutGoesBackOnceThroughCrashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := trainer("1")
	r.Rollout.Keys = []float64{0.5, 1}
	w.use(r)
	a, b := w.process(), w.process()
	var keys, cohort []string
	for i := range 40 {
		key := fmt.Sprint("k", i)
		if keys = append(keys, key); tidemill.TakesPart("intent", key, 0.5) {
			cohort = append(cohort, key)
		}
		w.finish(a, key, "", 0, 9)
	}
	a.Look(w.ctx())
	w.state(b, func(s *commands.Rollout) bool { return s.Base != nil })
	changed := trainer("2")
	changed.Rollout = r.Rollout
	w.use(changed)
	var both sync.WaitGroup
	both.Go(func() { a.Look(w.ctx()) })
	both.Go(func() { b.Look(w.ctx()) })
	both.Wait()
	if s := w.state(a, (*commands.Rollout).Open); s.Name() != "intent/1" || s.Share != 0.5 {
		t.Fatalf("the rollout is %+v", s)
	}
	for i, key := range keys {
		if tidemill.TakesPart("intent", key, 0.5) {
			w.finish([]*process{a, b}[i%2], key, "intent/1", 1, 3)
		}
	}
	a.Look(w.ctx())
	s := w.state(a, func(s *commands.Rollout) bool { return s.State == commands.RolloutStopped })
	w.state(b, func(s *commands.Rollout) bool { return s.State == commands.RolloutStopped })
	if s.Reason != "fleet.worse > 0.02" || s.Figures["measured"] != float64(len(cohort)) {
		t.Errorf("it has stopped by %s: %v", s.Reason, s.Figures)
	}

	died := errors.New("killed")
	left := 5
	a.crash = func() error { // a dies after some rollbacks
		if left--; left < 0 {
			return died
		}
		return nil
	}
	both.Go(func() { a.Look(w.ctx()) })
	both.Go(func() { b.Look(w.ctx()) })
	both.Wait()
	c := w.process() // it begins without any memory
	c.Look(w.ctx())
	back := w.goesBack(c)
	for _, key := range keys {
		want := 0
		if tidemill.TakesPart("intent", key, 0.5) {
			want = 1
		}
		if n := back["intent/"+key]; n != want {
			t.Errorf("%s went back %d times, want %d", key, n, want)
		}
		if m := w.model(c, key); m.Champion != 1 {
			t.Errorf("%s serves version %d", key, m.Champion)
		}
	}
	w.finish(c, cohort[0], "intent/1", 1, 10) // its run was under way
	if m := w.model(c, cohort[0]); m.Champion != 1 || m.Find(3).State != tidemill.VersionAwaiting {
		t.Errorf("after a late run it is %+v", m)
	}
	standing, err := c.board.Read(w.ctx(), "intent")
	if err != nil || standing == nil || standing.Back != len(cohort) || standing.Todo != 0 || !strings.Contains(standing.Wait, "for a person") {
		t.Errorf("the board has %+v, %v", standing, err)
	}

	by := commands.Author{Names: w.names, By: "ada", Now: time.Now()}
	v, err := by.AbortRollout("intent", "intent/1", "")
	w.must(err)
	_, err = commands.Publish(w.ctx(), c.producer, &v)
	w.must(err)
	w.state(c, func(s *commands.Rollout) bool { return s.State == commands.RolloutAborting })
	c.Look(w.ctx())
	if s := w.state(c, func(s *commands.Rollout) bool { return !s.Open() }); s.Last != tidemill.RolloutAborted || s.Back != len(cohort) || s.Base.Hash != r.Way().Hash || s.Base.MAC != "ours" {
		t.Errorf("in the end it is %+v", s)
	}
	c.Look(w.ctx())
	if c.asked.Now().Rollout("intent").Open() {
		t.Error("an aborted way begins again by itself")
	}
}

// A person's change after the stop stays, and a key without a champion before the rollout has nothing to go back to.
func TestWhatDoesNotGoBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := trainer("1")
	r.Rollout.Keys = []float64{1}
	r.Rollout.Stop = []string{"fleet.keys >= 3"}
	w.use(r)
	p := w.process()
	w.finish(p, "old", "", 0, 9)
	w.finish(p, "pinned", "", 0, 9)
	p.Look(w.ctx())
	changed := trainer("2")
	changed.Rollout = r.Rollout
	w.use(changed)
	w.state(p, func(s *commands.Rollout) bool { return s.Base != nil })
	p.Look(w.ctx())
	w.state(p, (*commands.Rollout).Open)
	w.finish(p, "old", "intent/1", 1, 3)
	w.finish(p, "pinned", "intent/1", 1, 3)
	w.finish(p, "new", "intent/1", 0, 3)
	_, err := p.models.Wish(w.ctx(), registry.Wish{Model: "intent/pinned", Action: tidemill.ActionPin, By: "ada"})
	w.must(err)
	p.Look(w.ctx())
	w.state(p, func(s *commands.Rollout) bool { return s.State == commands.RolloutStopped })
	p.Look(w.ctx())
	standing, err := p.board.Read(w.ctx(), "intent")
	if err != nil || standing.Back != 1 || standing.Left != 2 || !strings.Contains(standing.Why["intent/pinned"], "is pinned") || !strings.Contains(standing.Why["intent/new"], "no champion before") {
		t.Fatalf("the board has %+v, %v", standing, err)
	}
	_, err = p.models.Wish(w.ctx(), registry.Wish{Model: "intent/old", Action: tidemill.ActionPromote, Version: 2, By: "ada", Force: true})
	w.must(err)
	p.Look(w.ctx())
	if m := w.model(p, "old"); m.Champion != 2 {
		t.Errorf("the rollout took a person's promotion back: version %d serves", m.Champion)
	}
}

// A key that cannot be rolled back for now does not keep the other keys on the bad version.
func TestOneRollbackFails(t *testing.T) {
	t.Parallel()
	tried := ""
	w := New(Options{RollBack: func(_ context.Context, wish registry.Wish) (registry.Answer, error) {
		tried += wish.Model
		if wish.Model == "c" {
			return registry.Answer{}, nil
		}
		return registry.Answer{}, errors.New("its record cannot be read")
	}})
	work := &reading{Evidence: NewEvidence("intent", "intent/1", time.Time{}), left: map[string]string{}}
	for _, model := range []string{"a", "b", "c", "d", "e"} {
		work.models[model] = &member{versions: map[int]bool{2: true}, champion: 2, back: 1}
	}
	err := w.rollBack(t.Context(), work, &commands.Rollout{Recipe: "intent", Number: 1, State: commands.RolloutAborting})
	if todo, back := work.remaining(); err == nil || todo != 4 || back != 1 || tried != "abcd" {
		t.Errorf("tried %s, %d are left and %d are rolled back: %v", tried, todo, back, err)
	}
}
