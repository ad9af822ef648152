package deliver

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// foreign publishes an event as another program may write it.
func (w *install) foreign(v broker.View) {
	w.Helper()
	p, err := w.b.Producer(broker.ProducerOptions{AsRead: true, MaxEvent: 16 << 20, Compression: broker.Zstd})
	w.must(err)
	defer func() { _ = p.Close(context.Background()) }()
	_, err = p.Publish(w.ctx, tidemill.StreamEvents, &v)
	w.must(err)
}

// Events that our producers could not have written are parked and dead-lettered like all
// others, and delay no other event.
func TestSloppyEventsAreParkedAndBuried(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	bad, well := newSink(t, func(string, int) int { return 500 }), newSink(t, nil)
	w.trigger("bad", bad.url, func(t *config.Trigger) { t.Delivery.Attempts, t.Delivery.Backoff.First = 2, 400*time.Millisecond })
	w.trigger("well", well.url, nil)
	w.open()
	w.foreign(broker.View{ID: "time", Source: "/x", Type: "order", Time: "2026-99-99T99:99:99Z"})
	w.foreign(broker.View{ID: "control", Source: "the old shop", Type: "order", Subject: "a\nb", Key: []byte("k")})
	w.publish(10, 3)
	w.waitFor("the healthy one has all", func() bool { return well.count() == 12 })
	w.waitFor("the other's are buried", func() bool { return len(w.letters()) == 12 && w.committed() })
	if n := well.attempts(); n != 12 {
		t.Errorf("%d attempts for 12 events", n)
	}
}

// An event that is too large to be parked becomes a dead letter at once, also if its trigger waits for
// its rate. An event with as many headers as allowed can be parked.
func TestEventsThatCannotBeParked(t *testing.T) {
	w := newInstall(t, 1)
	bad := newSink(t, func(string, int) int { return 500 })
	w.trigger("bad", bad.url, func(t *config.Trigger) { t.Delivery.Backoff.First, t.Delivery.Rate = time.Hour, 0.0001 })
	d := w.open()
	w.publish(1, 1)
	w.waitFor("the rate is used up", func() bool { return bad.attempts() == 1 })
	many := make([]broker.Header, 248)
	for n := range many {
		many[n] = broker.Header{Key: "h" + strings.Repeat("x", n)}
	}
	w.foreign(broker.View{ID: "large", Source: "/x", Type: "order", Data: make([]byte, 10<<20), Key: []byte("k0")})
	w.foreign(broker.View{ID: "headers", Source: "/x", Type: "order", Foreign: many, Key: []byte("k1")})
	w.publish(10, 3)
	w.waitFor("the large one is buried", func() bool { return len(w.letters()) == 1 })
	w.waitFor("the rest is parked", func() bool { return parkedOf(d, "bad") == 12 && w.committed() })
	for _, l := range w.letters() {
		if l.Trigger != "bad" || !strings.Contains(l.Reason, "cannot be parked") {
			t.Errorf("buried for %s: %s", l.Trigger, l.Reason)
		}
	}
}

// An event that cannot be parked waits in memory if its dead letter cannot be written yet, because it is not known whether its
// key is forgotten. Otherwise its partition would never go on.
func TestAnEventThatCannotBeParkedIsPutOff(t *testing.T) {
	t.Parallel()
	b := defaultBounds()
	b.event = 100
	p, ended, now := newPartition("s", 0, b, 0), 0, millis(1_700_000_000_000)
	newRebuiltState(p, &triggerSettings{triggers: map[string]*config.Trigger{"a": {Name: "a"}}, paused: func(string) bool { return false },
		plan: &plan{triggers: []string{"a"}, match: func(_ *broker.View, dst []int) []int { return append(dst, 0) }}}).finish(0, 0, now)
	p.open(now)
	p.commit(p.plan(newAllowance(), now, false), 0, 1, now)
	p.acceptBatch(&sourceBatch{next: 1, end: func(int) { ended++ }, events: []broker.Incoming{{View: broker.View{ID: "large", Data: make([]byte, 1000)}}}}, now)
	for tries := range 2 {
		out := p.handOut()
		if len(out) != 1 || !p.start(out[0], now) {
			t.Fatalf("%d items are sent after %d tries", len(out), tries)
		}
		if tries > 0 {
			p.reportEnd(out[0], now)
			continue
		}
		p.postponed(out[0], lookAgain, now)
		now = now.add(lookAgain)
		p.wake(now)
	}
	if ended != 1 || len(p.window) > 0 {
		t.Errorf("%d events have ended, and the window has %d batches", ended, len(p.window))
	}
}

// No transaction is due for an event that cannot be parked and whose dead letter is put off, nor for the events after it.
// Otherwise there would be one every few milliseconds until the dead letter is written.
func TestAnEventThatIsPutOffNeedsNoTransaction(t *testing.T) {
	t.Parallel()
	p, now, end := lonePartition(config.Forever), millis(1_700_000_000_000), int64(0)
	p.bounds.event, p.bounds.window = 1000, 2
	transact := func(batches int) {
		t.Helper()
		if due := p.deadline(now); due > now {
			t.Fatalf("the next transaction is due in %d ms", due-now)
		}
		w := p.plan(newAllowance(), now, false)
		if w == nil || len(w.batches) != batches {
			t.Fatalf("it writes %+v, want %d batches", w, batches)
		}
		begunAt := end
		for n := range w.parks {
			w.parks[n].at = end + int64(n) + 1
		}
		end += int64(len(w.parks)) + 1
		p.commit(w, begunAt, end, now)
	}
	transact(0) // writes where the trigger begins
	for offset, size := range []int{1, 2000, 1, 1} {
		p.acceptBatch(&sourceBatch{next: int64(offset) + 1, end: func(int) {},
			events: []broker.Incoming{{Offset: int64(offset), View: broker.View{ID: "x", Data: make([]byte, size)}}}}, now)
	}
	large := p.handOut()[1]
	if !p.start(large, now) {
		t.Fatal("the large event does not get its dead letter")
	}
	p.postponed(large, lookAgain, now)
	again := large.due
	now = now.add(p.bounds.patience)
	transact(1)
	if due := p.deadline(now); due != again || !p.crowded() {
		t.Errorf("the next transaction is due in %d ms, want %d; %d events are in memory", due-now, again-now, p.events)
	}
	now = again
	p.wake(now)
	if out := p.handOut(); len(out) != 1 || !p.start(out[0], now) {
		t.Fatalf("%d items are sent again", len(out))
	}
	p.reportEnd(large, now)
	transact(2)
}

// A dead letter that is too large for the stream is written without its event. A dead
// letter shows the subscriber without its secrets.
func TestALetterThatIsTooLarge(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	_, err := w.b.EnsureStreams(w.ctx, []broker.StreamSpec{{Name: tidemill.StreamDeadLetters, Partitions: 6, MaxMessageBytes: 20_000}}, broker.EnsureOptions{})
	w.must(err)
	bad := newSink(t, func(string, int) int { return 400 })
	w.trigger("bad", bad.url+"/?token=hush", nil)
	w.open()
	noise := make([]byte, 100_000)
	for n := range noise {
		noise[n] = byte(rand.Uint32())
	}
	w.foreign(broker.View{ID: "large", Source: "/x", Type: "order", Data: noise})
	w.foreign(broker.View{ID: "small", Source: "/x", Type: "order", Data: []byte("x")})
	w.waitFor("both are buried", func() bool { return len(w.letters()) == 2 && w.committed() })
	for _, l := range w.letters() {
		if l.Trigger != "bad" && !strings.HasPrefix(l.Reason, "trigger bad: ") { // one without its event names the trigger in the text
			t.Errorf("trigger %q, reason %q", l.Trigger, l.Reason)
		}
	}
	for _, v := range w.views() {
		if to, _ := v.Attribute("knativeerrordest"); strings.Contains(to, "hush") {
			t.Errorf("a letter shows %s", to)
		}
	}
}

// views returns the dead letters as events.
func (w *install) views() (all []broker.View) {
	w.Helper()
	for p := range int32(6) {
		_, err := w.b.ReadBack(w.ctx, []broker.Position{{Stream: tidemill.StreamDeadLetters, Partition: p}}, func(in *broker.Incoming) { all = append(all, in.Clone()) })
		w.must(err)
	}
	return all
}

// Kafka's size limit may be lower than our config says: an event above it delays no other event.
func TestWhatKafkaDoesNotTakeIsBuried(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	bad := newSink(t, func(string, int) int { return 500 })
	w.trigger("bad", bad.url, func(t *config.Trigger) { t.Delivery.Backoff.First = time.Hour })
	d := w.open()
	noise := make([]byte, 100_000)
	for n := range noise {
		noise[n] = byte(rand.Uint32())
	}
	w.foreign(broker.View{ID: "large", Source: "/x", Type: "order", Data: bytes.Repeat(noise, 15)}) // Zstd detects the repetition, LZ4 does not
	w.publish(10, 3)
	w.waitFor("one is buried", func() bool { return len(w.views()) == 1 })
	w.waitFor("the rest is parked", func() bool { return parkedOf(d, "bad") == 10 && w.committed() })
}

// An event of another publisher on a parked log is not an item, and does not keep the
// dispatcher from reading the items.
func TestAStrangersEventOnTheParkedLog(t *testing.T) {
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	v := broker.View{ID: "1", Source: "/x", Type: "order"}
	_, err := w.p.Publish(w.ctx, tidemill.Parked(tidemill.StreamEvents), &v)
	w.must(err)
	w.open()
	w.publish(5, 5)
	w.waitFor("all have come", func() bool { return to.count() == 5 })
}
