package dedupe_test

import (
	"fmt"
	"testing"
	"time"

	"tidemill.dev/broker/dedupe"
)

const patience = 100 * time.Millisecond

// visibleDelay is the time after which other gateways know a mark.
const visibleDelay = 50 * time.Millisecond

// virtualDuration returns the duration of the function in virtual time, in which only waiting takes
// time.
func virtualDuration(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

func TestWindowEndsExactly(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := openMemory(t, dedupe.Options{Redis: w.client(t)})
		m.Mark("events", window, "/a", "1")
		for _, at := range []struct {
			wait time.Duration
			seen bool
		}{{0, true}, {window - time.Millisecond, true}, {time.Millisecond, false}, {window, false}} {
			time.Sleep(at.wait)
			if seen := m.Seen(t.Context(), "events", window, "/a", "1"); seen != at.seen {
				t.Errorf("after another %v: seen %t", at.wait, seen)
			}
		}
		if keys := w.redis.Keys(); len(keys) != 0 {
			t.Errorf("%q outlive the window", keys)
		}
	})
}

// Through many turns of the two generations every mark is remembered for its window.
func TestEveryMarkLivesItsWindow(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := openMemory(t, dedupe.Options{Redis: w.client(t)})
		const steps, every = 100, window / 7
		for now := range steps {
			id := func(step int) string { return fmt.Sprint(step) }
			m.Mark("events", window, "/a", id(now))
			for back := range min(now, 20) {
				if seen := m.Seen(t.Context(), "events", window, "/a", id(now-back)); seen != (back < 7) {
					t.Fatalf("after %d steps, what is %d old is seen: %t", now, back, seen)
				}
			}
			time.Sleep(every)
		}
		if n := remembered(t, w, "events"); n > 3*7 {
			t.Errorf("%d marks lie there, of which 7 count", n)
		}
	})
}

// The window of the question counts, not that of the mark. Beyond the mark's window, the event may
// be forgotten.
func TestWindowChanges(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := openMemory(t, dedupe.Options{Redis: w.client(t)})
		m.Mark("events", time.Hour, "/a", "1")
		time.Sleep(time.Minute)
		for asked, want := range map[time.Duration]bool{time.Second: false, time.Minute: false, 2 * time.Minute: true, 24 * time.Hour: true} {
			if seen := m.Seen(t.Context(), "events", asked, "/a", "1"); seen != want {
				t.Errorf("within %v: seen %t", asked, seen)
			}
		}
		other := openMemory(t, dedupe.Options{Redis: w.client(t)}) // it has the new config already
		for i := range 50 {
			m.Mark("events", time.Hour, "/a", fmt.Sprint("long", i))
			other.Mark("events", 10*time.Second, "/a", fmt.Sprint("short", i))
			time.Sleep(visibleDelay)
			if !m.Seen(t.Context(), "events", time.Hour, "/a", fmt.Sprint("short", i)) || !other.Seen(t.Context(), "events", 10*time.Second, "/a", fmt.Sprint("long", i)) {
				t.Fatalf("round %d: two windows at once forget", i)
			}
			time.Sleep(time.Second)
		}
	})
}

// While Redis is away a gateway uses its own marks. When Redis is back, all gateways know all
// marks.
func TestRedisAwayForFiveMinutes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m, other := watch(t, dedupe.Options{Redis: w.client(t), Patience: patience}), openMemory(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		other.Mark("events", window, "/a", "other's")
		time.Sleep(visibleDelay)
		if !m.Seen(t.Context(), "events", window, "/a", "other's") {
			t.Fatal("not seen")
		}
		w.refuse(true)
		for i := range 300 {
			waited := virtualDuration(func() {
				if m.Seen(t.Context(), "events", window, "/a", fmt.Sprint("during", i)) || !m.Seen(t.Context(), "events", window, "/a", "other's") {
					t.Error("it does not go by what it knows")
				}
				m.Mark("events", window, "/a", fmt.Sprint("during", i))
			})
			if waited > 0 {
				t.Fatalf("second %d: a caller waits %v", i, waited)
			}
			time.Sleep(time.Second)
		}
		m.expectMetric(t, "tidemill_dedupe_unavailable", 1)
		w.refuse(false)
		time.Sleep(7 * time.Second) // longest pause, plus that of the connection pool
		late := openMemory(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		for _, id := range []string{"other's", "during0", "during150", "during299"} {
			if !late.Seen(t.Context(), "events", window, "/a", id) {
				t.Errorf("%s is forgotten", id)
			}
		}
		if late.Seen(t.Context(), "events", time.Minute, "/a", "during150") {
			t.Error("a mark that waited is younger than it was made")
		}
		m.expectMetric(t, "tidemill_dedupe_unavailable", 0)
		m.expectMetric(t, "tidemill_dedupe_unchecked_total", 299) // one fewer, because the first is still fresh
		m.expectMetric(t, "tidemill_repeats_total", 301)
		if m.countLogged("Redis is down") != 1 || m.countLogged("Redis is back") != 1 {
			t.Errorf("log:\n%s", m.log)
		}
	})
}

func TestRedisHangs(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := watch(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		m.Mark("events", window, "/a", "1")
		time.Sleep(visibleDelay)
		w.hang(true)
		first := m.Ask("events", window, "/a", "2")
		time.Sleep(patience / 2)
		second := m.Ask("events", window, "/a", "2") // waits for the next trip
		if waited := virtualDuration(func() { first.Seen(t.Context()); second.Seen(t.Context()) }); waited != patience/2 {
			t.Errorf("the first callers wait another %v", waited)
		}
		for range 20 {
			waited := virtualDuration(func() {
				if m.Seen(t.Context(), "events", window, "/a", "2") || !m.Seen(t.Context(), "events", window, "/a", "1") {
					t.Error("it does not go by what it knows")
				}
			})
			if waited > 0 {
				t.Errorf("a later caller waits %v", waited)
			}
			time.Sleep(time.Second)
		}
		w.hang(false)
		time.Sleep(7 * time.Second)
		other := openMemory(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		if !other.Seen(t.Context(), "events", window, "/a", "1") {
			t.Error("not seen when it is back")
		}
		if m.countLogged("Redis is down") != 1 || m.countLogged("Redis is back") != 1 {
			t.Errorf("log:\n%s", m.log)
		}
	})
}

// While a stream is asked about all the time no call waits, even if Redis is slow.
func TestNobodyWaitsForAKnownStream(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := openMemory(t, dedupe.Options{Redis: w.client(t), Stale: 10 * time.Millisecond})
		m.Seen(t.Context(), "events", window, "/a", "0")
		for i := range 1000 {
			time.Sleep(time.Millisecond)
			if m.Ask("events", window, "/a", fmt.Sprint(i)) != (dedupe.Question{}) {
				t.Fatalf("caller %d waits", i)
			}
		}
	})
}

// A gateway that was idle for a while knows the marks that others made meanwhile.
func TestALoneCallerSeesWhatWasMarkedBefore(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		a, b := openMemory(t, dedupe.Options{Redis: w.client(t)}), openMemory(t, dedupe.Options{Redis: w.client(t)})
		for i := range 100 {
			a.Mark("events", window, "/a", fmt.Sprint(i))
			time.Sleep(visibleDelay)
			if !b.Seen(t.Context(), "events", window, "/a", fmt.Sprint(i)) {
				t.Fatalf("%d is not seen", i)
			}
		}
	})
}

// A Redis that answers with errors counts as away, and the marks wait.
func TestRedisRefusesToWork(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := watch(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		w.redis.SetError("OOM command not allowed when used memory > 'maxmemory'.")
		m.Mark("events", window, "/a", "1")
		if m.Seen(t.Context(), "events", window, "/a", "2") {
			t.Error("seen")
		}
		w.redis.SetError("")
		time.Sleep(7 * time.Second)
		other := openMemory(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		if !other.Seen(t.Context(), "events", window, "/a", "1") {
			t.Error("the mark is lost")
		}
		if m.countLogged("OOM") != 1 {
			t.Errorf("log:\n%s", m.log)
		}
	})
}

// A flush of Redis and a foreign entry do no harm: forgotten marks are not learnt.
func TestForeignEntriesAndFlushes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		a, b := watch(t, dedupe.Options{Redis: w.client(t)}), openMemory(t, dedupe.Options{Redis: w.client(t)})
		for round := range 5 {
			w.redis.FlushAll()
			_, err := w.redis.XAdd("test:repeats:1:kafka:{events}", "*", []string{"marks", "short", "by", "nobody", "more", "x"})
			must(t, err)
			b.Mark("events", window, "/a", fmt.Sprint(round))
			time.Sleep(visibleDelay)
			if !a.Seen(t.Context(), "events", window, "/a", fmt.Sprint(round)) {
				t.Errorf("round %d: not seen", round)
			}
		}
		if a.countLogged("away") > 0 {
			t.Errorf("log:\n%s", a.log)
		}
	})
}

func TestOldestMarksAreDroppedWhileRedisIsAway(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := watch(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		w.refuse(true)
		const marks, kept = 100_000, 65_536
		for i := range marks {
			m.Mark("events", window, "/a", fmt.Sprint(i))
		}
		w.refuse(false)
		time.Sleep(7 * time.Second)
		seen, other := 0, openMemory(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		for i := range marks {
			if other.Seen(t.Context(), "events", window, "/a", fmt.Sprint(i)) {
				seen++
			} else if i > marks-kept/2 {
				t.Fatalf("%d is dropped before older ones", i)
			}
		}
		if seen > kept || seen < kept*3/4 {
			t.Errorf("%d are kept", seen)
		}
		m.expectMetric(t, "tidemill_dedupe_dropped_marks_total", float64(marks-seen))
	})
}

func TestCloseWhileRedisHangs(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := watch(t, dedupe.Options{Redis: w.client(t), Patience: patience})
		w.hang(true)
		m.Mark("events", window, "/a", "1")
		m.Mark("events", window, "/a", "2")
		if waited := virtualDuration(func() { must(t, m.Close(t.Context())) }); waited > 2*patience {
			t.Errorf("it takes %v", waited)
		}
		m.expectMetric(t, "tidemill_dedupe_dropped_marks_total", 2)
	})
}

// A gateway that is killed while it reads earlier events from the log leaves some of their marks in
// Redis. The next gateway must read them all again.
func TestARecallThatWasCutShortIsRepeated(t *testing.T) {
	addr := embeddedRedis(t)
	recall := func(ends bool, ids ...string) {
		t.Helper()
		m := openMemory(t, dedupe.Options{Redis: dial(t, addr)})
		needed, err := m.BeginRecall(t.Context(), "events", window)
		if must(t, err); !needed {
			t.Fatal("earlier events are not read from the log")
		}
		for _, id := range ids {
			m.Recall("events", window, "/a", id, time.Now())
		}
		if ends {
			m.EndRecall("events")
		}
		must(t, m.Close(t.Context()))
	}
	recall(false, "1")
	recall(true, "1", "2")
	m := openMemory(t, dedupe.Options{Redis: dial(t, addr)})
	needed, err := m.BeginRecall(t.Context(), "events", window)
	if must(t, err); needed {
		t.Error("Redis has all marks, and they are read from the log again")
	}
	if !m.Seen(t.Context(), "events", window, "/a", "1") || !m.Seen(t.Context(), "events", window, "/a", "2") {
		t.Error("an event that was read from the log is not seen")
	}
}
