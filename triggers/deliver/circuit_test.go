package deliver

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/config"
)

// Attempts in a row that do not reach the subscriber open the circuit; an answer closes it.
func TestACircuitOpensAndCloses(t *testing.T) {
	d := &config.Delivery{Concurrency: 1, Timeout: 10 * time.Second, Backoff: config.Backoff{Kind: config.Exponential, First: time.Second}}
	var c circuit
	now := time.Unix(1_700_000_000, 0)
	for range leastFailures - 1 {
		if c.failed(d, false, 0, now) {
			t.Fatal("it opens early")
		}
	}
	if c.answered() || c.failed(d, false, 0, now) {
		t.Error("an answer does not end the row of failures")
	}
	for range leastFailures - 2 {
		c.failed(d, false, 0, now)
	}
	if !c.failed(d, false, 0, now) || c.failed(d, false, 0, now) {
		t.Fatal("it does not open once")
	}
	var waits []time.Duration
	for range 8 {
		waits = append(waits, c.next.Sub(now))
		if now = c.next; c.mayProbe(d, now.Add(-1)) || !c.mayProbe(d, now) || c.mayProbe(d, now.Add(d.Timeout)) {
			t.Error("there is not one probe at a time")
		}
		c.failed(d, false, 0, now) // an attempt that was under way
		c.failed(d, true, 0, now)
	}
	s := time.Second
	if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}; !slices.Equal(waits, want) {
		t.Errorf("probes after %v, want %v", waits, want)
	}
	c.mayProbe(d, now.Add(time.Hour))
	if !c.mayProbe(d, now.Add(2*time.Hour)) {
		t.Error("a probe whose outcome never comes ends all probes")
	}
	if !c.answered() || c.open {
		t.Error("an answer does not close it")
	}
}

func TestWhatCountsAsNotReached(t *testing.T) {
	for status, want := range map[int]bool{0: true, 429: true, 502: true, 503: true, 504: true, 404: false, 409: false, 500: false} {
		if o := (&attemptResult{kind: again, attempt: Attempt{Status: status}}); o.unreached() != want {
			t.Errorf("%d: %v", status, !want)
		}
	}
	for _, kind := range []verdict{delivered, refused, notYet} {
		if (&attemptResult{kind: kind}).unreached() {
			t.Error(kind)
		}
	}
}

// While a subscriber cannot be reached, one event at a time is tried. The others wait without
// an attempt, and all come in order once it answers.
func TestAnUnreachableSubscriberIsProbed(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	var dead, late atomic.Bool
	var now, most atomic.Int64
	dead.Store(true)
	to := newSink(t, func(string, int) int {
		if dead.Load() {
			return 503
		}
		return 200
	})
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if n := now.Add(1); late.Load() {
			most.Store(max(most.Load(), n))
		}
		defer now.Add(-1)
		to.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.trigger("a", server.URL, func(t *config.Trigger) { t.Delivery.Attempts, t.Delivery.Concurrency = 1000, 8 })
	d := w.open()
	waits := func() string { return d.Standing()[0].Waits }
	w.publish(300, 100)
	w.waitFor("the circuit is open", func() bool { return waits() != "" })
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 300 && w.committed() && d.Standing()[0].InFlight == 0 })
	late.Store(true)
	before := to.attempts()
	w.publish(300, 300)
	w.waitFor("ten probes have failed", func() bool { return to.attempts() >= before+10 })
	w.waitFor("the new events are parked", func() bool { return parkedOf(d, "a") == 600 && w.committed() })
	if n := most.Load(); n != 1 {
		t.Errorf("%d were tried at once while the circuit was open", n)
	}
	late.Store(false)
	dead.Store(false)
	w.waitFor("all have come", func() bool { return to.count() == 600 && waits() == "" })
	to.inOrder()
}

// A probe is an attempt: events become dead letters while the circuit is open, too.
func TestProbesUseUpAttempts(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, func(string, int) int { return 503 })
	w.trigger("a", to.url, func(t *config.Trigger) {
		t.Delivery.Attempts, t.Delivery.Concurrency, t.Delivery.Backoff.First = 3, 2, time.Millisecond
	})
	d := w.open()
	w.publish(30, 10)
	w.waitFor("all are dead letters", func() bool { return len(w.letters()) == 30 })
	for _, l := range w.letters() {
		if l.Tried != 3 {
			t.Errorf("a dead letter after %d attempts", l.Tried)
		}
	}
	if to.attempts() != 90 || d.Standing()[0].Waits == "" {
		t.Errorf("%d attempts; it waits: %q", to.attempts(), d.Standing()[0].Waits)
	}
}

// A probe whose record makes no item does not end the probes.
func TestAProbeWithoutAnItemIsReplaced(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, func(string, int) int { return 503 })
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Attempts, t.Delivery.Timeout = 1000, time.Hour })
	d := w.open()
	s := d.senderOf("a")
	s.mu.Lock()
	s.circuit.open = true
	s.mu.Unlock()
	pl := &pipeline{}
	p := &partition{}
	line := &triggerState{name: "a", open: true}
	if loads := pl.gatherOf(p, line, s, 0); len(loads) > 0 || !s.reserveProbe(pl) {
		t.Fatalf("a partition without records uses up the probe: %v", loads)
	}
	if s.reserveProbe(pl) {
		t.Fatal("two probes at once")
	}
	loadRequest{load: load{probe: true}, to: s}.free(false, 0)
	if !s.reserveProbe(pl) || s.reserved != 1 {
		t.Errorf("the next probe waits for %v, and %d rooms are reserved", time.Until(s.circuit.next), s.reserved)
	}
}

// While a circuit is open, a pause does not keep events beyond their expiry, because the log would then lose them.
func TestPausedEventsOfAnOpenCircuitExpire(t *testing.T) {
	t.Parallel()
	x := &quiet{p: lonePartition(time.Hour), now: 1_000_000}
	line := x.p.states["t"]
	line.paused, line.open = true, true
	x.take(10, 10)
	for range 3 {
		x.now += 100
		x.send()
		x.write(t)
	}
	d := &Dispatcher{}
	s := newSender(d, "t", &target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 8}}})
	s.circuit.open = true
	pl := &pipeline{d: d}
	if loads := pl.gatherOf(x.p, line, s, x.now); len(loads) > 0 {
		t.Fatalf("%d events are read before they expire", len(loads))
	}
	if loads := pl.gatherOf(x.p, line, s, x.now.add(31*time.Minute)); len(loads) != 10 || loads[0].probe {
		t.Errorf("%d of 10 events get their dead letter", len(loads))
	}
	if s.reserved != 10 || s.circuit.next != (time.Time{}) {
		t.Errorf("%d rooms are reserved, and a probe is due %v", s.reserved, s.circuit.next)
	}
}
