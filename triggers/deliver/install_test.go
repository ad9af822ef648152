package deliver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// maxWait bounds waits; it only ends hangs.
const maxWait = 5 * time.Minute

// install has a Kafka with Tidemill's streams, dispatchers and subscribers.
type install struct {
	testing.TB
	servers *embedded.Servers // nil if the Kafka is another one
	options embedded.Options
	kafka   string // address of the Kafka
	names   tidemill.Names
	b       *broker.Broker
	p       *broker.Producer
	config  *config.Config
	ctx     context.Context
	log     *slog.Logger
	n       int
	opened  []*Dispatcher
	session time.Duration
}

func newInstall(t testing.TB, partitions int) *install {
	t.Helper()
	w := installOf(t)
	w.serve()
	t.Cleanup(func() { _ = w.servers.Close() })
	return w.begin(partitions)
}

// installOf returns an install without a Kafka.
func installOf(t testing.TB) *install {
	t.Helper()
	w := &install{TB: t, options: embedded.Options{Dir: t.TempDir()}, config: config.Default(), session: 6 * time.Second} // a busy machine loses a shorter session
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(context.Background(), maxWait)
	t.Cleanup(cancel)
	w.log = slog.New(slog.DiscardHandler)
	if os.Getenv("DELIVER_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return w
}

// begin connects to the Kafka and makes the streams.
func (w *install) begin(partitions int) *install {
	w.Helper()
	var err error
	w.names, err = w.config.Names()
	w.must(err)
	for i := range w.config.Streams {
		if w.config.Streams[i].Name == tidemill.StreamEvents {
			w.config.Streams[i].Partitions = partitions
		}
	}
	w.b = w.dial()
	w.ensure()
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = w.p.Close(context.Background()) })
	return w
}

func (w *install) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *install) serve() {
	w.Helper()
	var err error
	w.servers, err = embedded.Start(w.ctx, w.options)
	w.must(err)
	w.options.Kafka, w.options.Redis = w.servers.Kafka(), w.servers.Redis()
	w.kafka = w.servers.Kafka()
}

func (w *install) dial() *broker.Broker {
	w.Helper()
	b, err := broker.Open(w.ctx, broker.Options{Addr: w.kafka, Names: w.names, Logger: w.log})
	w.must(err)
	w.Cleanup(func() { _ = b.Close() })
	return b
}

func (w *install) ensure() {
	w.Helper()
	var specs []broker.StreamSpec
	for _, s := range w.config.Streams {
		if s.Name == tidemill.StreamEvents || s.Name == tidemill.StreamDeadLetters || s.Name == tidemill.StreamCommands || s.Name == tidemill.StreamGroupOffsets {
			specs = append(specs, broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention})
		}
		if s.Name == tidemill.StreamEvents {
			specs = append(specs, broker.StreamSpec{Name: s.Parked().Name, Partitions: s.Partitions, Retention: s.Retention})
		}
	}
	_, err := w.b.EnsureStreams(w.ctx, specs, broker.EnsureOptions{})
	w.must(err)
}

// trigger adds a trigger on orders to the config, or replaces the trigger of that name.
func (w *install) trigger(name, url string, change func(*config.Trigger)) {
	t := config.Trigger{Name: name, When: []config.When{{Types: []string{"order"}}}, To: config.Target{URL: url},
		Delivery: config.Delivery{Attempts: 10, Timeout: 10 * time.Second, Ordered: true, Concurrency: 32, Replies: config.Replies{Accept: true, AnyKey: true},
			Backoff: config.Backoff{Kind: config.Constant, First: 20 * time.Millisecond}}}
	if change != nil {
		change(&t)
	}
	next := *w.config
	next.Triggers = slices.DeleteFunc(slices.Clone(next.Triggers), func(o config.Trigger) bool { return o.Name == name })
	next.Triggers = append(next.Triggers, t)
	w.config = &next
}

func (w *install) remove(name string) {
	next := *w.config
	next.Triggers = slices.DeleteFunc(slices.Clone(next.Triggers), func(o config.Trigger) bool { return o.Name == name })
	w.config = &next
}

// open opens a dispatcher with its own connection and waits until it has begun.
func (w *install) open() *Dispatcher {
	w.Helper()
	d, err := Open(w.ctx, Options{Broker: w.dial(), Config: w.config, Logger: w.log, SessionTimeout: w.session})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = d.Close(ctx)
	})
	w.opened = append(w.opened, d)
	w.must(d.Ready(w.ctx))
	return d
}

func (w *install) close(d *Dispatcher) {
	w.Helper()
	w.must(d.Close(w.ctx))
}

// publish publishes n orders and cycles through the keys.
func (w *install) publish(n, keys int) {
	w.Helper()
	var sent sync.WaitGroup
	for range n {
		sent.Add(1)
		v := broker.View{ID: fmt.Sprint(w.n), Source: "/shop", Type: "order", Subject: fmt.Sprintf("k%d", w.n%keys), Data: []byte(`{}`), DataContentType: "application/json"}
		w.n++
		w.p.Send(w.ctx, tidemill.StreamEvents, &v, func(_ broker.Receipt, err error) {
			if err != nil {
				w.Error(err)
			}
			sent.Done()
		})
	}
	sent.Wait()
}

// letters returns the dead letters so far.
func (w *install) letters() (all []*deadletters.Letter) {
	w.Helper()
	for p := range int32(6) {
		_, err := w.b.ReadBack(w.ctx, []broker.Position{{Stream: tidemill.StreamDeadLetters, Partition: p}}, func(in *broker.Incoming) {
			if in.Type != tidemill.TypeEventDeadLettered {
				return
			}
			l, err := deadletters.Read(&in.View)
			w.must(err)
			all = append(all, l)
		})
		w.must(err)
	}
	return all
}

func (w *install) pause(trigger string, paused bool) {
	w.Helper()
	by := commands.Author{Names: w.names, By: "ada", Now: time.Now()}
	v := by.ResumeTrigger(trigger)
	if paused {
		v = by.PauseTrigger(trigger)
	}
	_, err := commands.Publish(w.ctx, w.p, &v)
	w.must(err)
}

// waitFor waits for a condition.
func (w *install) waitFor(what string, holds func() bool) {
	w.Helper()
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for !holds() {
		select {
		case <-t.C:
		case <-w.ctx.Done():
			for _, d := range w.opened {
				d.logState(w)
				w.Logf("paused %v next %d", d.commands.Now().TriggerPaused("a"), d.commands.Now().Next())
			}
			buf := make([]byte, 1<<20)
			w.Logf("%s", buf[:runtime.Stack(buf, true)])
			w.Fatalf("waited too long until %s", what)
		}
	}
}

// sink is a subscriber that records the events it gets.
type sink struct {
	t   testing.TB
	url string

	mu     sync.Mutex
	answer func(id string, try int) int // returns the status; 0 hangs until the caller goes
	tries  map[string]int
	got    []string            // ids in the order of their first success
	byKey  map[string][]string // these ids by key
	header map[string]http.Header
}

func newSink(t testing.TB, answer func(id string, try int) int) *sink {
	s := &sink{t: t, answer: answer, tries: map[string]int{}, byKey: map[string][]string{}, header: map[string]http.Header{}}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s.url = server.URL
	return s
}

func (s *sink) set(answer func(id string, try int) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the caller goes
	id, key := r.Header.Get("Ce-Id"), r.Header.Get("Ce-Subject")
	s.mu.Lock()
	s.tries[id]++
	s.header[id] = r.Header.Clone()
	status := 200
	if s.answer != nil {
		status = s.answer(id, s.tries[id])
	}
	if status == 200 && !slices.Contains(s.byKey[key], id) {
		s.got = append(s.got, id)
		s.byKey[key] = append(s.byKey[key], id)
	}
	s.mu.Unlock()
	if status == 0 {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(status)
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

func (s *sink) attempts() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tries := range s.tries {
		n += tries
	}
	return n
}

// inOrder fails unless the events of each key came in the order of publishing.
func (s *sink) inOrder() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, ids := range s.byKey {
		if !slices.IsSortedFunc(ids, func(a, b string) int {
			if len(a) != len(b) {
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		}) {
			s.t.Errorf("the events of %s came out of order: %v", key, ids)
		}
	}
}
