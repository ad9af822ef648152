package platform

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func serve(t *testing.T, o embedded.Options) *embedded.Servers {
	t.Helper()
	s, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func open(t *testing.T, o Options) *Platform {
	t.Helper()
	p, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestLaptopAndClusterAreOneAfterOpen(t *testing.T) {
	t.Parallel()
	s := serve(t, embedded.Options{})
	for name, o := range map[string]Options{
		"laptop":  {Embedded: &embedded.Options{Dir: t.TempDir()}, OwnStreams: true},
		"cluster": {Addresses: config.Addresses{Kafka: s.Kafka(), Redis: s.Redis()}, OwnStreams: true},
	} {
		p := open(t, o)
		producer, err := p.Producer(broker.ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v := broker.View{ID: "1", Source: "/x", Type: "t", Subject: "k"}
		if _, err := producer.Publish(t.Context(), tidemill.StreamEvents, &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := p.Ready(t.Context()); r.Status != api.OK {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestWhoDoesNotOwnStreamsCreatesNone(t *testing.T) {
	t.Parallel()
	s := serve(t, embedded.Options{})
	p := open(t, Options{Addresses: config.Addresses{Kafka: s.Kafka()}})
	infos, err := p.Broker().Streams(t.Context())
	if err != nil || len(infos) != 0 {
		t.Errorf("%d streams, %v", len(infos), err)
	}
	r := p.Ready(t.Context())
	if r.Status != api.Failed || !strings.Contains(check(r, "streams").Detail, "missing: clock, commands, dead-letters, events, facts, group-offsets, outcomes, progress") {
		t.Errorf("%+v", r)
	}
}

func check(r api.Readiness, name string) api.Check {
	i := slices.IndexFunc(r.Checks, func(c api.Check) bool { return c.Name == name })
	if i < 0 {
		return api.Check{}
	}
	return r.Checks[i]
}

func TestReadyFollowsTheServers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, embedded.Options{Dir: dir})
	o := Options{Addresses: config.Addresses{Kafka: s.Kafka(), Redis: s.Redis()}, OwnStreams: true}
	p := open(t, o)
	within := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 2*time.Second) }
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := within()
	defer cancel()
	r := p.Ready(ctx)
	for name, want := range map[string]api.Status{"kafka": api.Failed, "redis": api.Degraded, "streams": api.Failed} {
		if c := check(r, name); c.Status != want || c.Detail == "" {
			t.Errorf("with the servers away: %+v", c)
		}
	}
	if c := check(r, "config"); c.Status != api.OK {
		t.Errorf("%+v", c)
	}
	serve(t, embedded.Options{Dir: dir, Kafka: s.Kafka(), Redis: s.Redis()})
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for p.Ready(ctx).Status != api.OK {
		if ctx.Err() != nil {
			t.Fatalf("not ready again: %+v", p.Ready(t.Context()))
		}
	}
}

func TestRoom(t *testing.T) {
	t.Parallel()
	for left, want := range map[int64]api.Status{0: api.Failed, diskFull - 1: api.Failed, diskFull: api.Degraded, diskFilled: api.OK, math.MaxInt64: api.OK} {
		if c := room(left); c.Status != want || c.Detail == "" {
			t.Errorf("%d bytes left: %+v, want %s", left, c, want)
		}
	}
}

func TestStopOrder(t *testing.T) {
	t.Parallel()
	var p Platform
	var order []string
	step := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { order = append(order, name); return err }
	}
	broken := errors.New("broken")
	p.AtStop(lastly, "servers", step("servers", nil))
	p.AtStop(traces, "traces", step("traces", nil))
	p.AtStop(clients, "client", step("client", nil))
	p.AtStop(Producers, "producer", step("producer", nil))
	p.AtStop(Consumers, "consumer 1", step("consumer 1", nil))
	p.AtStop(Consumers, "consumer 2", step("consumer 2", broken))
	p.AtStop(Doors, "door", step("door", nil))
	err := p.Close(t.Context())
	if want := []string{"door", "consumer 2", "consumer 1", "producer", "client", "traces", "servers"}; !slices.Equal(order, want) {
		t.Errorf("stopped %v, want %v", order, want)
	}
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "stop consumer 2: ") {
		t.Errorf("error %v", err)
	}
	if err := p.Close(t.Context()); err != nil || len(order) != 7 {
		t.Errorf("a second Close stopped again: %v, %v", order, err)
	}
	if p.AtStop(clients, "late client", step("late client", nil)); len(order) != 8 {
		t.Errorf("what was opened after its stage is left open: %v", order)
	}
}

// A stage that uses all its time leaves the reserved time to the next.
func TestStopOrderSharesItsTime(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration][]time.Duration{
		25 * time.Second: {20 * time.Second, 22 * time.Second, 23 * time.Second, 24 * time.Second, 25 * time.Second},
		9 * time.Second:  {4 * time.Second, 6 * time.Second, 7 * time.Second, 8 * time.Second, 9 * time.Second},
		0:                {0, 0, 0, 0, 0}, // no time is left, and each stage still runs
	} {
		synctest.Test(t, func(t *testing.T) {
			var p Platform
			var ends []time.Duration
			began := time.Now()
			for _, s := range []Stage{Doors, Consumers, Producers, clients, traces} {
				p.AtStop(s, "a slow one", func(ctx context.Context) error {
					<-ctx.Done()
					ends = append(ends, time.Since(began))
					return ctx.Err()
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), given)
			defer cancel()
			if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(ends, want) {
				t.Errorf("of %s the stages end at %v, %v", given, ends, err)
			}
		})
	}
}

func TestFailedOpenLeavesTheFolderFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{Embedded: &embedded.Options{Dir: dir}, OwnStreams: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := Open(ctx, o); err == nil {
		t.Fatal("opened without a context", p.Close(t.Context()))
	}
	open(t, o)
}

func TestWatcherAppliesWhatStandsStill(t *testing.T) {
	t.Parallel()
	const first, second = "version: 1\n", "version: 1\nstreams: {messages: {}}\n"
	p := open(t, Options{Config: parse(t, first), Embedded: &embedded.Options{}, OwnStreams: true})
	text := first
	w := configWatcher{p: p, settled: p.Config().Hash(), load: func() (*config.Config, error) { return config.Parse("test.yaml", []byte(text)) }}
	w.last = w.settled
	look := func(content string) api.Check {
		text = content
		w.poll(t.Context())
		return check(p.Ready(t.Context()), "config")
	}
	has := func() bool { _, ok := p.Config().Stream("messages"); return ok }

	if look(second); has() {
		t.Error("a file was applied that may be half written")
	}
	if look(second); !has() {
		t.Error("a valid change does not apply")
	}
	look("version: 1\nstrems: {}\n")
	if c := look("version: 1\nstrems: {}\n"); c.Status != api.Degraded || !strings.Contains(c.Detail, "test.yaml:2: strems") || !has() {
		t.Errorf("an invalid change: %+v", c)
	}
	err := p.addComponent(t.Context(), component{name: "the triggers", apply: func(_ context.Context, c *config.Config) error {
		if _, there := c.Stream("late"); there {
			return errors.New("Kafka is away")
		}
		return nil
	}})
	if err != nil {
		t.Error(err)
	}
	look("version: 1\nstreams: {late: {}}\n")
	if c := look("version: 1\nstreams: {late: {}}\n"); c.Status != api.Degraded || !strings.Contains(c.Detail, "the change is valid") || !strings.Contains(c.Detail, "Kafka is away") || strings.Contains(c.Detail, "does not apply") {
		t.Errorf("a change that cannot be applied yet: %+v", c)
	}
	look("version: 1\nname: other\n")
	if c := look("version: 1\nname: other\n"); c.Status != api.Degraded || !strings.Contains(c.Detail, "restart") {
		t.Errorf("another name: %+v", c)
	}
	look(second)
	if c := look(second); c.Status != api.OK {
		t.Errorf("mended: %+v", c)
	}
}

// A component may take long to open, for example while Kafka is away. It gets the changes of that time.
func TestAComponentGetsTheConfigOfItsOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second, third := config.Default(), config.Default(), config.Default()
		p := &Platform{config: first}
		got := map[string]*config.Config{}
		add := func(name string) {
			err := p.addComponent(t.Context(), component{name: name, has: first, apply: func(_ context.Context, c *config.Config) error {
				got[name] = c
				time.Sleep(time.Second)
				return nil
			}})
			if err != nil {
				t.Error(err)
			}
		}
		change := func(c *config.Config) {
			if err := p.applyToParts(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		change(second)
		add("opened before a change")
		if got["opened before a change"] != second {
			t.Error("the change before its opening has ended did not come")
		}
		go change(third)
		synctest.Wait()
		add("opened during a change")
		for name, c := range got {
			if c != third {
				t.Errorf("%s: the newest config did not come", name)
			}
		}
		if len(got) != 2 {
			t.Errorf("%d components have a config", len(got))
		}
	})
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	(&Platform{config: config.Default()}).Watch(ctx, nil, time.Hour)
}

func TestRunningIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, found, err := Find(dir); found || err != nil {
		t.Errorf("found in an empty folder: %v", err)
	}
	want := Running{PID: 7, Name: "n", Kafka: "k:1", Redis: "r:1", HTTP: "h:1", URL: "http://h:1", Config: "/c.yaml"}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	if got, found, err := Find(dir); got != want || !found || err != nil {
		t.Errorf("got %+v, %t, %v", got, found, err)
	}
	if err := os.WriteFile(AddressFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Find(dir); err == nil || !strings.Contains(err.Error(), AddressFile(dir)) {
		t.Errorf("a torn file gave %v", err)
	}
	if err := errors.Join(Forget(dir), Forget(dir)); err != nil {
		t.Error(err)
	}
}
