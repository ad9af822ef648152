package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
)

// testConfig has a stream that claims a type, a stream that recognises no repeats, and the
// built-in streams.
const testConfig = `version: 1
streams:
  messages: {partitions: 4, types: [message]}
  scored: {partitions: 2, dedupe: off}
`

// patienceOfTests bounds every wait of the tests. It ends a hang and measures nothing.
const patienceOfTests = 2 * time.Minute

// patientLimits are limits as long as patienceOfTests, because a busy machine may be slow. A test
// of a limit sets that limit itself. The wait for Kafka's acknowledgement keeps its default,
// because tests with a lost Kafka must wait for it.
func patientLimits() Limits {
	return Limits{ReadHeader: patienceOfTests, BodyGrace: patienceOfTests, Room: patienceOfTests, Write: patienceOfTests,
		Look: patienceOfTests, Soon: patienceOfTests, Sight: patienceOfTests}
}

// world is a gateway with all the servers that it needs.
type world struct {
	testing.TB
	servers  *embedded.Servers
	config   *config.Config // config with which the streams were made
	applied  atomic.Pointer[config.Config]
	broker   *broker.Broker
	redis    *redis.Client
	producer *broker.Producer
	memory   *dedupe.Memory
	tel      *telemetry.Telemetry
	gateway  *Gateway
	url      string
}

// newWorld starts a world. change may alter the options of the gateway.
func newWorld(t testing.TB, change func(*Options)) *world {
	t.Helper()
	return newWorldOn(t, embedded.Options{}, change)
}

func newWorldOn(t testing.TB, servers embedded.Options, change func(*Options)) *world {
	t.Helper()
	return newWorldOf(t, testConfig, servers, change)
}

func newWorldOf(t testing.TB, text string, servers embedded.Options, change func(*Options)) *world {
	t.Helper()
	w := &world{TB: t, config: must1(config.Parse("test.yaml", []byte(text)))(t)}
	w.applied.Store(w.config)
	w.servers = must1(embedded.Start(t.Context(), servers))(t)
	t.Cleanup(func() { w.must(w.servers.Close()) })
	names := must1(w.config.Names())(t)
	w.broker = must1(broker.Open(t.Context(), broker.Options{Addr: w.servers.Kafka(), Names: names}))(t)
	t.Cleanup(func() { w.must(w.broker.Close()) })
	w.createStreams()
	w.redis = redis.NewClient(&redis.Options{Addr: w.servers.Redis(), Protocol: 2, DisableIdentity: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { w.must(w.redis.Close()) })
	w.gateway = w.openGateway(change)
	w.url = "http://" + w.gateway.Addr()
	return w
}

func (w *world) createStreams() {
	var specs []broker.StreamSpec
	for _, s := range append(w.config.Streams, w.config.Parked()...) {
		specs = append(specs, broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention, KeyOrdered: s.KeyOrdered, Builtin: s.Builtin})
	}
	must1(w.broker.EnsureStreams(w.Context(), specs, broker.EnsureOptions{}))(w)
}

// openGateway opens and serves another gateway on the same servers.
func (w *world) openGateway(change func(*Options)) *Gateway {
	w.Helper()
	names := must1(w.config.Names())(w)
	w.producer = must1(w.broker.Producer(broker.ProducerOptions{Timeout: 20 * time.Second}))(w)
	producer := w.producer
	w.tel = must1(telemetry.Start(w.Context(), telemetry.Options{Name: "test", Getenv: func(string) string { return "" }}))(w)
	w.memory = must1(dedupe.Open(dedupe.Options{Redis: w.redis, Names: names, Registerer: w.tel.Registry()}))(w)
	memory := w.memory
	o := Options{Listen: "127.0.0.1:0", Config: w.applied.Load, Broker: w.broker, Producer: producer, Limits: patientLimits(),
		Repeats: memory, Telemetry: w.tel, Version: "test",
		Ready: func(ctx context.Context) api.Readiness {
			r := api.Readiness{Status: api.OK, Checks: []api.Check{{Name: "kafka", Status: api.OK, Detail: w.servers.Kafka()}}}
			if err := w.broker.Ping(ctx); err != nil {
				r.Checks[0] = api.Check{Name: "kafka", Status: api.Failed, Detail: err.Error()}
			}
			return r
		}}
	if change != nil {
		change(&o)
	}
	g := must1(Open(w.Context(), o))(w)
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background()) }()
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patienceOfTests)
		defer cancel()
		w.must(g.Close(ctx))
		w.must(<-served)
		_ = producer.Close(ctx) // Kafka may be away
		w.must(memory.Close(ctx))
	})
	return g
}

// startAgain starts the servers on their old ports. While the servers were away, another
// connection may have been given one of these ports, and keeps it for a while.
func (w *world) startAgain(o embedded.Options) {
	w.Helper()
	w.waitUntil("the ports are free", func() bool {
		s, err := embedded.Start(context.WithoutCancel(w.Context()), o)
		if errors.Is(err, syscall.EADDRINUSE) {
			return false
		}
		w.servers = must1(s, err)(w)
		return true
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
}

// must1 returns a function that fails the test on an error and otherwise returns the value.
func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// openGuard opens an access file with the given text.
func openGuard(t testing.TB, text string) *access.Guard {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := must1(access.Open(t.Context(), path, access.Options{}))(t)
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	return g
}

// reply is an answer that was read to its end.
type reply struct {
	*http.Response
	body string
}

// post sends a request with headers as name, value, name, value…
func (w *world) post(path, body string, headers ...string) reply {
	w.Helper()
	return w.do(http.MethodPost, path, body, headers...)
}

func (w *world) do(method, path, body string, headers ...string) reply {
	w.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req := must1(http.NewRequestWithContext(w.Context(), method, w.url+path, content))(w)
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	return w.exchange(req)
}

// exchange sends a request and reads the answer. If net/http refuses a body, it reads nothing
// more half a second after its answer. On a busy machine the client may see the closed
// connection before the answer; then it sends the request again.
func (w *world) exchange(req *http.Request) (r reply) {
	w.Helper()
	const unread = 256 << 10 // net/http reads the rest of a smaller body
	w.waitUntil("it is answered", func() bool {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			r = read(w.TB, res)
			return true
		}
		if req.ContentLength <= unread || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			w.Fatal(err)
		}
		req.Body = must1(req.GetBody())(w)
		return false
	})
	return r
}

func read(t testing.TB, res *http.Response) reply {
	t.Helper()
	defer res.Body.Close()
	return reply{res, string(must1(io.ReadAll(res.Body))(t))}
}

// storedEvents returns the events of a stream, in each partition's order.
func (w *world) storedEvents(stream string) []broker.View {
	w.Helper()
	s, ok := w.config.Stream(stream)
	if !ok {
		w.Fatalf("no stream %s", stream)
	}
	from := make([]broker.Position, s.Partitions)
	for i := range from {
		from[i] = broker.Position{Stream: stream, Partition: int32(i)}
	}
	var all []broker.View
	must1(w.broker.ReadBack(w.Context(), from, func(in *broker.Incoming) { all = append(all, in.View.Clone()) }))(w)
	return all
}

func ids(views []broker.View) []string {
	var all []string
	for i := range views {
		all = append(all, views[i].ID)
	}
	return all
}

// eventHeaders are the headers of an event in binary mode.
func eventHeaders(id string, more ...string) []string {
	return append([]string{"ce-specversion", "1.0", "ce-type", "test", "ce-source", "/test", "ce-id", id}, more...)
}

// tokenFor returns the token of a caller in the tests.
func tokenFor(name string) string { return "tm_" + name }

// callerLine returns the line of a caller in an access file.
func callerLine(name, rights string) string {
	sum := sha256.Sum256([]byte(tokenFor(name)))
	return "  " + name + ": {hash: \"sha256:" + hex.EncodeToString(sum[:]) + "\", " + rights + "}\n"
}

// tokenHeader returns the header with a caller's token.
func tokenHeader(name string) []string { return []string{"Authorization", "Bearer " + tokenFor(name)} }

// applyConfig puts another config in force, without creating its streams.
func (w *world) applyConfig(c *config.Config) { w.applied.Store(c) }

// waitUntil waits until a condition is true.
func (w *world) waitUntil(what string, ok func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond) // the condition needs the processor too
	defer tick.Stop()
	for late := time.After(patienceOfTests); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			w.Fatalf("waited for this in vain: %s", what)
		}
	}
}
