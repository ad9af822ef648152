package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
)

// newMiniWorld returns a world, and its Redis for the test to control.
func newMiniWorld(t testing.TB, partitions int) (*world, *miniredis.Miniredis) {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	m := miniredis.NewMiniRedis()
	must(t, m.Start())
	t.Cleanup(m.Close)
	return worldOn(t, s.Kafka(), m.Addr(), partitions), m
}

// poolWorld is a ledger with waiting runs.
type poolWorld struct {
	*world
	*script
	l   *ledger.Ledger
	now time.Time
}

func newYard(w *world) *poolWorld {
	now := time.Now().UTC().Truncate(time.Second).Add(-time.Hour / 2) // a past time, so that runs are due by the real clock too
	return &poolWorld{world: w, script: &script{at: now}, l: w.open(), now: now.Add(time.Minute)}
}

func (y *poolWorld) asks(recipe, key string, change func(*tidemill.RunRequested)) *tidemill.Run {
	y.t.Helper()
	v, _ := y.runRequest(recipe, key, "cause", change)
	return y.add(y.l, v).Waiting
}

// claims claims slots until none is left, and returns the claimed keys.
func (y *poolWorld) claims(a ledger.Ask) string {
	y.t.Helper()
	var keys []string
	for {
		s, ok, err := y.l.Claim(y.t.Context(), a, y.now)
		must(y.t, err)
		if !ok {
			return strings.Join(keys, " ")
		}
		keys = append(keys, s.Key)
	}
}

func ask(slots int, recipes ...ledger.Admission) ledger.Ask {
	return ledger.Ask{Pool: "gpu", Slots: slots, Recipes: recipes}
}

func priority(n int) func(*tidemill.RunRequested) {
	return func(d *tidemill.RunRequested) { d.Priority = n }
}

func TestClaimsInOrder(t *testing.T) {
	claimsInOrder(t, func(t *testing.T) *world { return newWorld(t, 4) })
}

func claimsInOrder(t *testing.T, world func(*testing.T) *world) {
	a, b := ledger.Admission{Recipe: "a"}, ledger.Admission{Recipe: "b"}
	for name, c := range map[string]struct {
		wait func(*poolWorld)
		ask  ledger.Ask
		want string
	}{
		"the oldest first": {func(y *poolWorld) { y.asks("a", "1", nil); y.asks("a", "2", nil); y.asks("a", "3", nil) }, ask(0, a), "1 2 3"},
		"the highest priority first": {func(y *poolWorld) {
			y.asks("a", "low", priority(-1))
			y.asks("a", "mid", nil)
			y.asks("a", "high", priority(10))
		}, ask(0, a), "high mid low"},
		"the recipe's counts too": {func(y *poolWorld) { y.asks("a", "mine", priority(4)); y.asks("b", "theirs", nil) }, ask(0, a, ledger.Admission{Recipe: "b", Priority: 5}), "theirs mine"},
		"recipes take turns": {func(y *poolWorld) {
			for i := range 3 {
				y.asks("a", fmt.Sprint("a", i), nil)
			}
			y.asks("b", "b0", nil)
			y.asks("b", "b1", nil)
		}, ask(0, a, b), "a0 b0 a1 b1 a2"},
		"slots bound":               {func(y *poolWorld) { y.asks("a", "1", nil); y.asks("a", "2", nil); y.asks("a", "3", nil) }, ask(2, a), "1 2"},
		"a recipe's bound":          {func(y *poolWorld) { y.asks("a", "a1", nil); y.asks("a", "a2", nil); y.asks("b", "b1", nil) }, ask(0, ledger.Admission{Recipe: "a", MaxRunning: 1}, b), "a1 b1"},
		"only those that may start": {func(y *poolWorld) { y.asks("a", "1", nil); y.asks("b", "2", nil) }, ask(0, b), "2"},
		"only those that are due": {func(y *poolWorld) {
			y.asks("a", "later", func(d *tidemill.RunRequested) { d.Debounce, d.Priority = time.Hour, 9 })
			y.asks("a", "now", nil)
		}, ask(0, a), "now"},
		"nothing": {func(*poolWorld) {}, ask(0, a, b), ""},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(world(t))
			c.wait(y)
			if got := y.claims(c.ask); got != c.want {
				t.Errorf("claimed %q, want %q", got, c.want)
			}
		})
	}
}

// Another process has filled Redis again, with the claim, and this process does not know of it yet. The run is due
// at once.
func TestASlotIsGivenBackToALaterFilling(t *testing.T) {
	y := newYard(newWorld(t, 4))
	run := y.asks("a", "1", nil)
	one := ask(1, ledger.Admission{Recipe: "a"})
	s, ok, err := y.l.Claim(t.Context(), one, y.now)
	if must(t, err); !ok {
		t.Fatal("nothing is claimed")
	}
	at := y.prefix() + "at"
	fill, err := y.redis.HGet(t.Context(), at, "fill").Result()
	must(t, err)
	must(t, y.redis.HSet(t.Context(), at, "fill", "later").Err())
	must(t, y.l.Return(t.Context(), s))
	must(t, y.redis.HSet(t.Context(), at, "fill", fill).Err())
	if s, ok, err := y.l.Claim(t.Context(), one, y.now); err != nil || !ok || s.Run != run.ID {
		t.Errorf("claimed %+v, %v, %v; want run %s", s, ok, err, run.ID)
	}
}

// A run that is postponed is claimed after the others of its recipe, and not before its time.
func TestAPostponedRunLetsOthersGoFirst(t *testing.T) {
	y := newYard(newWorld(t, 4))
	first, second := y.asks("a", "1", nil), y.asks("a", "2", nil)
	claimed := func() (ledger.Slot, bool) {
		t.Helper()
		s, ok, err := y.l.Claim(t.Context(), ask(1, ledger.Admission{Recipe: "a"}), y.now)
		must(t, err)
		return s, ok
	}
	s, _ := claimed()
	must(t, y.l.Postpone(t.Context(), s, y.now.Add(time.Hour)))
	if s, _ := claimed(); s.Run != second.ID {
		t.Errorf("claimed %+v, want run %s", s, second.ID)
	}
	y.now = y.now.Add(time.Minute)
	m := y.add(y.l, y.start(second, "gpu"))
	y.add(y.l, y.finish(m.Live, tidemill.OutcomeSucceeded))
	if s, ok := claimed(); ok {
		t.Errorf("claimed %+v before its time", s)
	}
	y.now = y.now.Add(time.Hour)
	if s, _ := claimed(); s.Run != first.ID {
		t.Errorf("claimed %+v, want run %s", s, first.ID)
	}
}

// A slot is used from the claim to the attempt's end.
func TestSlotsAreGivenBack(t *testing.T) {
	y := newYard(newWorld(t, 4))
	one := ask(1, ledger.Admission{Recipe: "a", MaxRunning: 1})
	first, second := y.asks("a", "1", nil), y.asks("a", "2", nil)
	claim := func(want *tidemill.Run) ledger.Slot {
		t.Helper()
		s, ok, err := y.l.Claim(t.Context(), one, y.now)
		must(t, err)
		if ok != (want != nil) || ok && s.Run != want.ID {
			t.Fatalf("claimed %+v, %v; want %+v", s, ok, want)
		}
		return s
	}
	s := claim(first)
	claim(nil)
	must(t, y.l.Return(t.Context(), s))
	must(t, y.l.Return(t.Context(), s)) // the second return changes nothing
	claim(first)
	claim(nil)
	y.now = y.now.Add(31 * time.Second) // the claim expires: it is neither confirmed nor returned
	claim(first)
	m := y.add(y.l, y.start(first, "gpu"))
	must(t, y.l.Return(t.Context(), s)) // too late: it has been confirmed
	claim(nil)
	m = y.add(y.l, y.finish(m.Live, tidemill.OutcomeFailed))
	claim(second) // the first run rests
	m2 := y.add(y.l, y.start(second, "gpu"))
	y.now = m.Live.Due
	claim(nil)
	y.add(y.l, y.finish(m2.Live, tidemill.OutcomeSucceeded))
	claim(m.Live) // the next attempt of a live run waits in its recipe's queue
	y.add(y.l, y.view(tidemill.TypeRunCancelled, "a", "1", m.Live.ID, tidemill.RunCancelledData{}))
	claim(nil)
	third := y.asks("a", "3", nil)
	claim(third) // a claim ends with its run
}

// During an upgrade processes of two layouts count the same claims. A run is claimed once, and a pool
// never has more runs than slots.
func TestClaimsOfTwoLayouts(t *testing.T) {
	y := newYard(newWorld(t, 4))
	o := y.options()
	o.Layout = "next"
	other := y.openWith(o)
	runs := map[string]*tidemill.Run{}
	for _, key := range []string{"1", "2", "3", "4"} {
		runs[key] = y.asks("a", key, nil)
	}
	caughtUp(t, other)
	claim := func(l *ledger.Ledger, slots int) string {
		t.Helper()
		s, _, err := l.Claim(t.Context(), ask(slots, ledger.Admission{Recipe: "a"}), y.now)
		must(t, err)
		return s.Key
	}
	waitUntil(t, other, "it does not know the runs", func() bool { _, due, err := other.NextDue(t.Context(), y.now); return err == nil && due == 4 })
	if got := claim(y.l, 2) + claim(y.l, 2) + claim(other, 2); got != "12" {
		t.Fatalf("claimed %q for two slots", got)
	}
	if got := claim(other, 3); got != "3" {
		t.Fatalf("claimed %q next", got)
	}
	for key, l := range map[string]*ledger.Ledger{"1": other, "2": y.l, "3": y.l} {
		y.add(l, y.start(runs[key], "gpu"))
	}
	for _, l := range []*ledger.Ledger{other, y.l} {
		waitUntil(t, l, "it does not know what runs", func() bool { live, err := l.Live(t.Context()); return err == nil && len(live) == 3 })
	}
	if left, err := y.redis.HLen(t.Context(), y.names.Key("{ledger}", "claims", y.kafka)).Result(); err != nil || left > 0 {
		t.Errorf("both layouts have applied all starts, and %d claims are left: %v", left, err)
	}
	if got := claim(y.l, 3) + claim(other, 3) + claim(other, 4) + claim(y.l, 4); got != "4" {
		t.Fatalf("claimed %q last", got)
	}
}

// A layout that has not applied a run's start counts the run's claim, also after another layout has applied it.
func TestClaimsOfALayoutThatIsBehind(t *testing.T) {
	y := newYard(newWorld(t, 4))
	run := y.asks("a", "1", nil)
	y.asks("a", "2", nil)
	if got := y.claims(ask(1, ledger.Admission{Recipe: "a"})); got != "1" {
		t.Fatalf("claimed %q", got)
	}
	y.add(y.l, y.start(run, "gpu"))
	key := y.names.Key("{ledger}", "claims", y.kafka)
	started, err := y.redis.HGet(t.Context(), key, "a/1").Result()
	must(t, err)
	if got := y.claims(ask(2, ledger.Admission{Recipe: "a"})); got != "2" { // it counts the attempt, and not the claim too
		t.Fatalf("claimed %q next to the started run", got)
	}
	for _, c := range []struct {
		claim string
		slots int
		want  string
	}{
		{strings.Replace(started, ledger.Layout+":", "next:", 1), 3, ""},
		{started, 3, "3"},
	} {
		must(t, y.redis.HSet(t.Context(), key, "a/other", c.claim).Err())
		y.asks("a", "3", nil)
		if got := y.claims(ask(c.slots, ledger.Admission{Recipe: "a"})); got != c.want {
			t.Errorf("with the claim %s of another key: claimed %q, want %q", c.claim, got, c.want)
		}
	}
	must(t, y.redis.HDel(t.Context(), key, "a/other").Err())
	b, err := y.l.Busy(t.Context(), y.now)
	if must(t, err); b.Pools["gpu"] != 3 {
		t.Errorf("%d are busy, want 3", b.Pools["gpu"])
	}
}

// NextDue returns the first due time after now.
func TestNextDueAndUsed(t *testing.T) {
	y := newYard(newWorld(t, 4))
	at := map[string]time.Time{}
	for i, debounce := range []time.Duration{0, time.Millisecond, time.Second, 90 * time.Second, time.Hour, 40 * 24 * time.Hour} {
		key := fmt.Sprint(i)
		at[key] = y.asks([]string{"a", "b"}[i%2], key, func(d *tidemill.RunRequested) { d.Debounce, d.Priority = debounce, i%3 }).Due
	}
	times := []time.Time{y.now.Add(-time.Hour), y.now.Add(-time.Minute), y.now, at["3"], at["3"].Add(-time.Millisecond), at["5"], at["4"].Add(time.Nanosecond)}
	for _, now := range times {
		var want time.Time
		begun := 0
		for _, due := range at {
			if !due.After(now) {
				begun++
			}
			if due.After(now.Truncate(time.Millisecond)) && (want.IsZero() || due.Before(want)) {
				want = due
			}
		}
		got, due, err := y.l.NextDue(t.Context(), now)
		must(t, err)
		if !got.Equal(want) || due != begun {
			t.Errorf("at %v %d are due, want %d, and the next at %v, want %v", now, due, begun, got, want)
		}
	}
	y.now = time.Now()
	running, due, err := y.l.Used(t.Context())
	must(t, err)
	want := map[string]int{}
	for key, when := range at {
		if when.Before(y.now) {
			want[[]string{"a", "b"}[int(key[0]-'0')%2]]++
		}
	}
	if fmt.Sprint(due) != fmt.Sprint(want) || len(running) != 0 {
		t.Errorf("due %v, want %v; running %v", due, want, running)
	}
}

type cost struct {
	commands int // number of commands that scripts call for a decision
	largest  int // size of the largest sorted set that is read
	memory   int // bytes of Redis's values for each waiting run
}

func decisionCost(t *testing.T, waiting int) cost {
	w, m := newMiniWorld(t, 8)
	s := &script{at: time.Now().Add(-24 * time.Hour)}
	w.publish(waiting, func(i int) *broker.View {
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "c", nil)
		return v
	})
	l := w.open()
	var mu sync.Mutex
	var keys []string
	counted := false
	noteCommands(m.Server().SetPreHook, func(command string, args []string) {
		mu.Lock()
		defer mu.Unlock()
		if counted && command != "EVALSHA" {
			keys = append(keys, args[0])
		}
	})
	switchTo := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		counted = on
	}
	decide := func() {
		slot, ok, err := l.Claim(t.Context(), ask(4, ledger.Admission{Recipe: "intent"}, ledger.Admission{Recipe: "fraud"}), time.Now())
		must(t, err)
		if !ok || slot.Key == "" {
			t.Fatal("nothing is claimed")
		}
		_, _, err = l.NextDue(t.Context(), time.Now())
		must(t, err)
		must(t, l.Return(t.Context(), slot))
	}
	decide() // the scripts are loaded
	switchTo(true)
	decide()
	switchTo(false)
	c := cost{commands: len(keys)}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		c.largest = max(c.largest, int(w.redis.ZCard(t.Context(), key).Val()))
	}
	for key, fields := range w.redisContent() {
		for field, value := range fields {
			c.memory += len(field) + len(value)
		}
		c.memory += len(key)
	}
	c.memory /= waiting
	return c
}

// noteCommands calls note with every command that a server gets, including those of scripts.
func noteCommands[P any, H ~func(P, string, ...string) bool](set func(H), note func(command string, args []string)) {
	set(func(_ P, command string, args ...string) bool {
		note(command, args)
		return false
	})
}
