package dedupe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker/dedupe"
)

func dial(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func TestWhatOneMarksTheOtherSees(t *testing.T) {
	addr := embeddedRedis(t)
	a, b := openMemory(t, dedupe.Options{Redis: dial(t, addr)}), openMemory(t, dedupe.Options{Redis: dial(t, addr)})
	shareMarks(t, a, b)
}

func shareMarks(t *testing.T, a, b *dedupe.Memory) {
	t.Helper()
	for i := range 100 {
		id := fmt.Sprint(i)
		if a.Seen(t.Context(), "events", window, "/a", id) || b.Seen(t.Context(), "events", window, "/a", id) {
			t.Fatalf("%s was never here", id)
		}
		a.Mark("events", window, "/a", id)
		if !a.Seen(t.Context(), "events", window, "/a", id) {
			t.Fatalf("%s is not seen", id)
		}
		waitMark(t, b, "events", "/a", id)
	}
}

func TestOnlyTheSameStreamSourceAndIDAreARepeat(t *testing.T) {
	m := openMemory(t, dedupe.Options{Redis: dial(t, embeddedRedis(t))})
	m.Mark("events", window, "/ab", "c")
	if !m.Seen(t.Context(), "events", window, "/ab", "c") {
		t.Error("the same is not seen")
	}
	for _, e := range [][3]string{{"messages", "/ab", "c"}, {"events", "/a", "bc"}, {"events", "/abc", ""}, {"events", "/ab", "C"},
		{"events", "/AB", "c"}, {"events", "", "/abc"}, {"events", "/ab", "c "}, {"event", "s/ab", "c"}} {
		if m.Seen(t.Context(), e[0], window, e[1], e[2]) {
			t.Errorf("%q was never here", e)
		}
	}
}

func TestNothingIsRemembered(t *testing.T) {
	none, err := dedupe.Open(dedupe.Options{})
	must(t, err)
	off := openMemory(t, dedupe.Options{Redis: dial(t, embeddedRedis(t))})
	for name, m := range map[string]*dedupe.Memory{"without Redis": none, "with dedupe off": off} {
		m.Mark("events", 0, "/a", "1")
		if m.Seen(t.Context(), "events", 0, "/a", "1") {
			t.Error(name)
		}
	}
	must(t, none.Close(t.Context()))
}

func TestAskForManyAndWaitOnce(t *testing.T) {
	m := openMemory(t, dedupe.Options{Redis: dial(t, embeddedRedis(t))})
	const events = 10_000
	for i := 0; i < events; i += 3 {
		m.Mark("events", window, "/a", fmt.Sprint(i))
	}
	asked := make([]dedupe.Question, events)
	for i := range asked {
		asked[i] = m.Ask("events", window, "/a", fmt.Sprint(i))
	}
	for i, q := range asked {
		if seen := q.Seen(t.Context()); seen != (i%3 == 0) {
			t.Fatalf("%d: seen %t", i, seen)
		}
	}
}

func TestSeenEndsWithItsContext(t *testing.T) {
	m := openMemory(t, dedupe.Options{Redis: dial(t, embeddedRedis(t))})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Seen(ctx, "events", window, "/a", "1") // returns, with or without the answer
}

// Two gateways make far more marks than the limit. The newest are remembered, also by a third
// gateway that starts later. Redis holds no more than a gateway remembers, plus two entries.
func TestLimit(t *testing.T) {
	addr := embeddedRedis(t)
	client := dial(t, addr)
	const limit, marks = 20_000, 100_000
	var both []*dedupe.Memory
	for range 2 {
		both = append(both, openMemory(t, dedupe.Options{Redis: client, Limit: limit}))
	}
	for i := range marks {
		both[i%2].Mark("events", window, "/a", fmt.Sprint(i))
		if i%1000 == 999 {
			waitMark(t, both[0], "events", "/a", fmt.Sprint(i))
			waitMark(t, both[1], "events", "/a", fmt.Sprint(i-1))
			if n := countMarks(t, client, "events"); n > limit+2*4096 {
				t.Fatalf("after %d marks %d lie there", i, n)
			}
		}
	}
	third := openMemory(t, dedupe.Options{Redis: client, Limit: limit})
	for _, m := range append(both, third) {
		for ago, want := range map[int]bool{1: true, limit / 4: true, limit * 7 / 16: true, 2 * limit: false, marks: false} {
			if seen := m.Seen(t.Context(), "events", window, "/a", fmt.Sprint(marks-ago)); seen != want {
				t.Errorf("%d marks ago: seen %t", ago, seen)
			}
		}
	}
}

// waitMark waits until a gateway knows a mark.
func waitMark(t *testing.T, m *dedupe.Memory, stream, source, id string) {
	t.Helper()
	waitUntil(t, "the mark arrives", func() bool { return m.Seen(t.Context(), stream, window, source, id) })
}

// waitUntil waits until the condition is true, and leaves the processor to other goroutines
// meanwhile.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(2 * time.Minute); !is(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// countMarks counts the marks of a stream in Redis.
func countMarks(t *testing.T, c *redis.Client, stream string) (marks int) {
	t.Helper()
	entries, err := c.XRange(t.Context(), "test:repeats:1:kafka:{"+stream+"}", "-", "+").Result()
	must(t, err)
	for _, e := range entries {
		marks += len(e.Values["marks"].(string)) / 24
	}
	return marks
}

func remembered(t *testing.T, w *testRedis, stream string) int {
	return countMarks(t, w.client(t), stream)
}

// With concurrent calls and a Redis that is flushed all the time, no unmarked event is seen and no
// call takes long.
func TestFlushInFullFlight(t *testing.T) {
	client := dial(t, embeddedRedis(t))
	m := watch(t, dedupe.Options{Redis: client, Limit: 1000})
	ctx, stop := context.WithCancel(t.Context())
	var flusher, all sync.WaitGroup
	flusher.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C { // other goroutines run in between
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Error(err)
			}
		}
	})
	for who := range 8 {
		all.Go(func() {
			for i := range 100 {
				mine, stream := fmt.Sprint(who, "-", i), fmt.Sprint("stream", i%3)
				if m.Seen(t.Context(), stream, window, "/a", mine) {
					t.Errorf("%s was never here", mine)
				}
				m.Mark(stream, window, "/a", mine)
			}
		})
	}
	all.Wait()
	stop()
	flusher.Wait()
	if m.countLogged("away") > 0 {
		t.Errorf("log:\n%s", m.log)
	}
	m.Mark("events", window, "/a", "after")
	if !m.Seen(t.Context(), "events", window, "/a", "after") {
		t.Error("it remembers nothing any more")
	}
}

// Comparison with a model: an event is seen if it was marked within the window and is among the
// newest. An unmarked event is never seen.
func TestNeverSeenWhatWasNeverMarked(t *testing.T) {
	addr := embeddedRedis(t)
	for seed := range uint64(3) {
		const limit = 512
		client := dial(t, addr)
		must(t, client.FlushAll(t.Context()).Err())
		var gateways []*dedupe.Memory
		for range 3 {
			gateways = append(gateways, openMemory(t, dedupe.Options{Redis: client, Limit: limit, Stale: time.Nanosecond}))
		}
		r := rand.New(rand.NewPCG(seed, 0))
		marked := map[[3]string]int{} // number of marks that its stream had
		streams := map[string]int{}
		for range 1000 {
			e := [3]string{fmt.Sprint("s", r.IntN(2)), fmt.Sprint("/", r.IntN(3)), fmt.Sprint(r.IntN(150))}
			m := gateways[r.IntN(len(gateways))]
			if r.IntN(3) == 0 {
				streams[e[0]]++
				marked[e] = streams[e[0]]
				m.Mark(e[0], window, e[1], e[2])
				for _, other := range gateways {
					waitMark(t, other, e[0], e[1], e[2])
				}
				continue
			}
			at, ever := marked[e]
			seen := m.Seen(t.Context(), e[0], window, e[1], e[2])
			if seen && !ever || !seen && ever && streams[e[0]]-at < limit/4 {
				t.Fatalf("seed %d: %q, marked %t, %d marks ago: seen %t", seed, e, ever, streams[e[0]]-at, seen)
			}
		}
	}
}

func TestCloseWritesTheMarks(t *testing.T) {
	addr := embeddedRedis(t)
	a, b := openMemory(t, dedupe.Options{Redis: dial(t, addr)}), openMemory(t, dedupe.Options{Redis: dial(t, addr)})
	const marks = 20_000
	for i := range marks {
		a.Mark(fmt.Sprint("s", i%7), window, "/a", fmt.Sprint(i))
	}
	must(t, a.Close(t.Context()))
	must(t, a.Close(t.Context()))
	asked := make([]dedupe.Question, marks)
	for i := range asked {
		asked[i] = b.Ask(fmt.Sprint("s", i%7), window, "/a", fmt.Sprint(i))
	}
	if i := slices.IndexFunc(asked, func(q dedupe.Question) bool { return !q.Seen(t.Context()) }); i >= 0 {
		t.Errorf("mark %d is lost", i)
	}
	a.Mark("events", window, "/a", "late")
	if a.Seen(t.Context(), "s0", window, "/a", "0") {
		t.Error("a closed Memory sees")
	}
}

// The metrics of two Memories would be mixed.
func TestOneMemoryARegistry(t *testing.T) {
	r, client := prometheus.NewRegistry(), dial(t, embeddedRedis(t))
	openMemory(t, dedupe.Options{Redis: client, Registerer: r})
	if m, err := dedupe.Open(dedupe.Options{Redis: client, Registerer: r, Patience: time.Second}); err == nil {
		t.Error("a second one is registered", m.Close(t.Context()))
	}
}
