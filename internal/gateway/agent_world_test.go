package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
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
	"tidemill.dev/internal/runs/rendezvous"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/internal/runs/warmpods"
)

const attemptConfig = testConfig + `pools:
  default: {slots: 100, linger: 1h}
recipes:
  fit:
    when: {type: new-data}
    run: {dir: ., command: [fit], attempts: 3, backoff: {first: 1ms}, maxOutput: 1MiB, maxLog: 1MiB}
    makes: {model: "fit/{key}"}
  boxed:
    when: {type: nothing-of-tests}
    run: {image: "trainer:3", command: [fit], gpus: 2}
    makes: {model: "boxed/{key}"}
  pair:
    when: {type: nothing-of-tests}
    run: {dir: ., command: [fit], workers: 2, servers: {count: 1}, maxLog: 1MiB}
    makes: {model: "pair/{key}"}
  clean:
    when: {type: bot-created}
    run: {dir: ., command: [clean]}
    makes: {dataset: "clean/{key}"}
`

// idleLauncher is a launcher that starts nothing: the test acts as the agent.
type idleLauncher struct {
	mu  sync.Mutex
	all []scheduler.Attempt
}

var _ scheduler.Launcher = (*idleLauncher)(nil)

func (l *idleLauncher) Launch(_ context.Context, a scheduler.Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, a)
	return nil
}

func (l *idleLauncher) Has(context.Context, string) (bool, error) { return true, nil }
func (l *idleLauncher) Stop(context.Context, string) error        { return nil }
func (l *idleLauncher) Slots(p config.Pool) int                   { return p.Slots }

func (l *idleLauncher) find(run string, number int) (scheduler.Attempt, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.all {
		if a.Run == run && a.Number == number {
			return a, true
		}
	}
	return scheduler.Attempt{}, false
}

// trainingWorld is a gateway with a scheduler, a ledger and a store.
type trainingWorld struct {
	*world
	ledger   *ledger.Ledger
	store    *store.Store
	foreman  *scheduler.Foreman
	tokens   *scheduler.Tokens
	launched *idleLauncher
	warm     *warmpods.Book
	files    string // folder of the store
}

func newMill(t testing.TB, change func(*Options)) *trainingWorld {
	t.Helper()
	return newMillOn(t, embedded.Options{}, change)
}

func newMillOn(t testing.TB, servers embedded.Options, change func(*Options)) *trainingWorld {
	t.Helper()
	m := &trainingWorld{world: newWorldOf(t, attemptConfig, servers, nil), launched: &idleLauncher{}, files: t.TempDir()}
	names := must1(m.config.Names())(t)
	producer := must1(m.broker.Producer(broker.ProducerOptions{}))(t)
	t.Cleanup(func() { _ = producer.Close(context.Background()) }) // Kafka may be away
	m.ledger = must1(ledger.Open(t.Context(), ledger.Options{Broker: m.broker, Producer: producer, Names: names, Redis: m.redis,
		Kafka: must1(m.broker.Cluster(t.Context()))(t)}))(t)
	t.Cleanup(func() { m.must(m.ledger.Close(context.Background())) })
	m.store = must1(store.Open(t.Context(), store.Options{URL: m.files}))(t)
	t.Cleanup(func() { m.must(m.store.Close()) })
	m.tokens = must1(scheduler.NewTokens(bytes.Repeat([]byte{1}, scheduler.SecretSize)))(t)
	m.warm = warmpods.NewBook(m.redis, names, "kafka-1")
	announce := func(context.Context, api.Commit) error { return nil }
	m.foreman = must1(scheduler.New(scheduler.Options{Ledger: m.ledger, Store: m.store, Names: names, Config: m.applied.Load, Announce: announce,
		Launcher: m.launched, Tokens: m.tokens, Dir: t.TempDir()}))(t)
	m.gateway = m.openGateway(func(o *Options) {
		o.Runs, o.Ledger, o.Store, o.Tokens, o.Announce = m.foreman, m.ledger, m.store, m.tokens, announce
		o.Warm, o.Muster = m.warm, rendezvous.NewRoll(m.redis, names, "kafka-1")
		if change != nil {
			change(o)
		}
	})
	m.url = "http://" + m.gateway.Addr()
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	m.must(m.ledger.CaughtUp(ctx))
	return m
}

// requestRun requests a run, with an event of that id.
func (m *trainingWorld) requestRun(recipe, key, id string) string {
	m.Helper()
	event := must1(json.Marshal(map[string]any{"specversion": "1.0", "id": id, "source": "/test", "type": "new-data", "subject": key,
		"correlationid": "chain-" + id}))(m)
	a, err := m.foreman.Request(m.Context(), scheduler.Request{Recipe: recipe, Key: key, Cause: tidemill.Cause{Source: "/test", ID: id},
		Events: []json.RawMessage{event}})
	if err != nil {
		m.Fatal(err)
	}
	return a.Run
}

// agentAttempt is an attempt with the token of its agent.
type agentAttempt struct {
	*trainingWorld
	name, run, token string
}

// waitForAttempt waits until an attempt has been launched.
func (m *trainingWorld) waitForAttempt(run string, number int) *agentAttempt {
	m.Helper()
	var a scheduler.Attempt
	m.waitUntil("an attempt is launched", func() (ok bool) {
		a, ok = m.launched.find(run, number)
		if !ok {
			m.must(m.foreman.Advance(m.Context(), m.runOf(run).Recipe, m.runOf(run).Key))
		}
		return ok
	})
	return &agentAttempt{m, a.Name, a.Run, a.Token}
}

// beginRun requests a run and returns its first attempt.
func (m *trainingWorld) beginRun(recipe, key string) *agentAttempt {
	m.Helper()
	return m.waitForAttempt(m.requestRun(recipe, key, "1"), 1)
}

func (m *trainingWorld) runOf(id string) *tidemill.Run {
	m.Helper()
	return must1(m.ledger.Run(m.Context(), id))(m)
}

// loseAttempt makes the controller report an attempt as lost.
func (m *trainingWorld) loseAttempt(run string, number int) {
	m.Helper()
	must1(m.foreman.Finish(m.Context(), m.runOf(run), number, tidemill.RunFinished{Outcome: tidemill.OutcomeLost, Reason: "nobody heard of it"}))(m)
}

func (a *agentAttempt) path(of string) string { return "/agent/v1/attempts/" + a.name + of }

// send sends a request below the attempt's path, as its agent.
func (a *agentAttempt) send(method, path, body string, headers ...string) reply {
	a.Helper()
	return a.do(method, a.path(path), body, append([]string{"Authorization", "Bearer " + a.token}, headers...)...)
}

func (a *agentAttempt) post(path, body string) reply {
	a.Helper()
	return a.send(http.MethodPost, path, body)
}
func (a *agentAttempt) get(path string) reply { a.Helper(); return a.send(http.MethodGet, path, "") }

// postJSON posts JSON and decodes the answer, which must be a success.
func (a *agentAttempt) postJSON(path string, body, answer any) {
	a.Helper()
	r := a.post(path, string(must1(json.Marshal(body))(a)))
	if r.StatusCode != http.StatusOK {
		a.Fatalf("%s: %d %s", path, r.StatusCode, r.body)
	}
	a.must(json.Unmarshal([]byte(r.body), answer))
}

// putObject puts an object and returns a file with its content.
func (a *agentAttempt) putObject(path, content string) api.File {
	a.Helper()
	digest := sumOf(content)
	r := a.post("/object?digest="+digest+"&size="+itoa(len(content)), content)
	if r.StatusCode/100 != 2 {
		a.Fatalf("put %s: %d %s", path, r.StatusCode, r.body)
	}
	return api.File{Path: path, Digest: digest, Size: int64(len(content))}
}

// linesOf returns the lines of a text, without their ends.
func linesOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// isRecent reports whether a time is less than ten minutes ago.
func isRecent(at time.Time) bool { return time.Since(at) < 10*time.Minute }
