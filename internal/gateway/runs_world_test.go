package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// testRecipes is testConfig with recipes and pools. The pool small has one slot.
const testRecipes = testConfig + recipesOfTests

const recipesOfTests = `pools:
  small: {slots: 1}
  large: {slots: 100}
recipes:
  intent: {when: [{type: new-data}], run: {dir: ., command: [train], pool: small}, makes: {model: "intent/{key}"}, team: chat, gate: [metrics.recall > 0.5, metrics.accuracy > 0.5]}
  fraud: {when: [{type: new-data}], run: {dir: ., command: [train], pool: large}}
  report: {key: none, when: [{type: bot-created}], run: {dir: ., command: [report], pool: large}, makes: {dataset: reports/all}}
`

// recordingLauncher is a launcher that records its calls. Its attempts run until the test ends
// them.
type recordingLauncher struct {
	mu sync.Mutex
	at map[string]scheduler.Attempt
}

var _ scheduler.Launcher = (*recordingLauncher)(nil)

func (l *recordingLauncher) Launch(_ context.Context, a scheduler.Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at[a.Name] = a
	return nil
}

func (l *recordingLauncher) Has(_ context.Context, name string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, has := l.at[name]
	return has, nil
}

func (l *recordingLauncher) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at, name)
	return nil
}

func (*recordingLauncher) Slots(p config.Pool) int { return p.Slots }

// runWorld is a gateway with a foreman.
type runWorld struct {
	*world
	ledger    *ledger.Ledger
	store     *store.Store
	foreman   *scheduler.Foreman
	models    *registry.Registrar
	forgetter *erase.Forgetter
	launcher  *recordingLauncher
	asked     *commands.Follower // commands that the foreman has read
}

func newRuns(t testing.TB, change func(*Options)) *runWorld {
	t.Helper()
	w := &runWorld{world: newWorldOf(t, testRecipes, embedded.Options{}, nil)}
	w.startForeman()
	w.gateway = w.openGateway(w.with(change))
	w.url = "http://" + w.gateway.Addr()
	return w
}

// startForeman starts a foreman on the world's servers.
func (w *runWorld) startForeman() {
	w.Helper()
	names := must1(w.config.Names())(w)
	producer := must1(w.broker.Producer(broker.ProducerOptions{}))(w)
	w.Cleanup(func() { // bounded, because Kafka may be away with records unsent
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = producer.Close(ctx)
	})
	w.ledger = must1(ledger.Open(w.Context(), ledger.Options{Broker: w.broker, Producer: producer, Names: names, Redis: w.redis, Kafka: "test", Logger: slog.New(slog.DiscardHandler)}))(w)
	w.Cleanup(func() { _ = w.ledger.Close(context.Background()) })
	asked := must1(commands.Follow(w.Context(), w.broker, slog.New(slog.DiscardHandler)))(w)
	w.Cleanup(func() { _ = asked.Close(context.Background()) })
	w.asked = asked
	w.launcher = &recordingLauncher{at: map[string]scheduler.Attempt{}}
	kept := must1(store.Open(w.Context(), store.Options{URL: w.TempDir()}))(w)
	w.Cleanup(func() { w.must(kept.Close()) })
	w.store = kept
	tokens := must1(scheduler.NewTokens(make([]byte, scheduler.SecretSize)))(w)
	w.foreman = must1(scheduler.New(scheduler.Options{Ledger: w.ledger, Store: kept, Names: names, Config: w.applied.Load, Asked: asked.Now,
		Announce: func(context.Context, api.Commit) error { return nil }, Launcher: w.launcher, Tokens: tokens, Silence: time.Hour,
		Logger: slog.New(slog.DiscardHandler)}))(w)
	w.models = must1(registry.New(registry.Options{Ledger: w.ledger, Store: kept, Broker: w.broker, Names: names, Asked: asked.Now, Logger: slog.New(slog.DiscardHandler)}))(w)
	book := must1(deadletters.Open(w.Context(), w.broker, slog.New(slog.DiscardHandler)))(w)
	w.Cleanup(func() { _ = book.Close(context.Background()) })
	w.forgetter = must1(erase.New(erase.Options{Broker: w.broker, Producer: producer, Names: names, Config: w.applied.Load, Ledger: w.ledger, Store: kept,
		Foreman: w.foreman, Registrar: w.models, Letters: func(context.Context) (*deadletters.Book, error) { return book, nil }}))(w)
	w.startWatch()
}

// startWatch makes the foreman watch until the test ends.
func (w *runWorld) startWatch() {
	w.Helper()
	w.must(w.ledger.CaughtUp(w.Context()))
	ctx, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { _ = w.foreman.Watch(ctx) })
	w.Cleanup(func() { stop(); watching.Wait() })
}

func (w *runWorld) with(change func(*Options)) func(*Options) {
	return func(o *Options) {
		o.Runs, o.Ledger, o.Models, o.Slots, o.GPUs, o.Forgetter = w.foreman, w.ledger, w.models, w.launcher.Slots, func() int { return 2 }, w.forgetter
		o.Store = w.store
		if change != nil {
			change(o)
		}
	}
}

// endAttempt reports the end of the attempt under way.
func (w *runWorld) endAttempt(id string, o tidemill.Outcome, reason string) *tidemill.Run {
	w.Helper()
	run := must1(w.ledger.Run(w.Context(), id))(w)
	n := len(run.Attempts)
	w.must(w.launcher.Stop(w.Context(), tidemill.AttemptName(id, n)))
	return must1(w.foreman.Finish(w.Context(), run, n, tidemill.RunFinished{Attempt: n, Outcome: o, Reason: reason, Permanent: true,
		Result: tidemill.Result{Artifact: w.putOutput(o), Metrics: map[string]float64{"accuracy": 0.9}, Stages: []tidemill.Stage{{Name: "run", Seconds: 1}}}}))(w)
}

// putOutput puts the output of a successful run and returns its tree.
func (w *runWorld) putOutput(o tidemill.Outcome) string {
	w.Helper()
	if o != tidemill.OutcomeSucceeded {
		return ""
	}
	const text = "a model"
	w.must(w.store.PutObject(w.Context(), digestOf(text), int64(len(text)), strings.NewReader(text)))
	return must1(w.store.Tree(w.Context(), []api.File{{Path: "model.onnx", Digest: digestOf(text), Size: int64(len(text))}}))(w).Tree
}

func (w *runWorld) asks(path, body string, headers ...string) api.RunsDone {
	w.Helper()
	return sendDecoded[api.RunsDone](w.world, http.MethodPost, path, body, headers...)
}

// asksOn repeats a request until it is answered, because a busy machine may not finish it in
// time. The request must be named or a dry run.
func (w *runWorld) asksOn(path, body string, headers ...string) (done api.RunsDone) {
	w.Helper()
	w.waitUntil("it is answered", func() bool {
		r := w.post(path, body, headers...)
		if r.StatusCode == http.StatusServiceUnavailable {
			return false
		}
		done = decodeReply[api.RunsDone](w.world, r)
		return true
	})
	return done
}

// pauseTarget pauses a recipe or a pool, and waits until the foreman has read the command too. The
// answer only means that the gateway has read it.
func (w *runWorld) pauseTarget(path string, headers ...string) api.Rested {
	w.Helper()
	done := sendDecoded[api.Rested](w.world, http.MethodPost, path, "", headers...)
	if done.Position != nil {
		w.waitUntil("the foreman knows of it", func() bool { return w.asked.Now().Next() > done.Position.Offset })
	}
	return done
}

// startRuns starts runs and returns their ids, by key.
func (w *runWorld) startRuns(recipe string, keys ...string) map[string]string {
	w.Helper()
	ids := map[string]string{}
	for _, d := range w.asks("/api/v1/runs", `{"recipe":"`+recipe+`","keys":`+string(must1(json.Marshal(keys))(w))+`}`).Runs {
		ids[d.Key] = d.Run
	}
	return ids
}

func (w *runWorld) list(query string, headers ...string) []api.RunShown {
	w.Helper()
	return sendDecoded[api.Runs](w.world, http.MethodGet, "/api/v1/runs"+query, "", headers...).Runs
}

func (w *runWorld) show(id string) api.RunWhole {
	w.Helper()
	return sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+id, "")
}

// waitForState waits until a run is in a state.
func (w *runWorld) waitForState(id string, s tidemill.RunState) api.RunWhole {
	w.Helper()
	var r api.RunWhole
	w.waitUntil("run "+id+" is "+string(s), func() bool {
		r = w.show(id)
		return r.State == s
	})
	return r
}

func keysOf(all []api.RunShown) (keys []string) {
	for i := range all {
		keys = append(keys, all[i].Key)
	}
	slices.Sort(keys)
	return keys
}

// doneOf returns the result of each key, in words.
func doneOf(all api.RunsDone) map[string]string {
	done := map[string]string{}
	for _, d := range all.Runs {
		done[d.Key] = d.Done
	}
	return done
}
