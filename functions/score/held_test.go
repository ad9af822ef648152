package score

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// parkNow parks events in one transaction.
func (k *parkedKafka) parkNow(h *heldIndex, key string, offsets ...int64) {
	k.Helper()
	var d draft
	for _, o := range offsets {
		v := broker.View{ID: fmt.Sprint(o), Source: "/test", Type: "message", Subject: key, Data: []byte("x")}
		k.must(h.parkEvent(k.ctx, &d, key, &v, o))
	}
	d.write(k, true)
	h.committed(0)
}

// parkEvent parks an event of a key.
func (h *heldIndex) parkEvent(ctx context.Context, to outbox, key string, v *broker.View, offset int64) error {
	return h.park(ctx, to, h.hold(key, h.modelOf(key), v, offset, 0), v)
}

// openAll opens all models.
func (h *heldIndex) openAll() {
	for name, ok := h.nextModel(); ok; name, ok = h.nextModel() {
		h.unlock(name)
	}
}

func (k *parkedKafka) takeAll(h *heldIndex) (all []*heldEvent) {
	k.Helper()
	h.openAll()
	all, err := h.takeOpen(k.ctx, 1<<20, 1<<30)
	k.must(err)
	return all
}

// Without transactions, two owners may park the same event.
func TestAnEventThatWasParkedTwiceWaitsOnce(t *testing.T) {
	k := newParkedKafka(t, 2)
	for partition, returns := range []bool{false, true} {
		first := openHeld(k.b, parkedStream, int32(partition), heldOptions{})
		second := openHeld(k.b, parkedStream, int32(partition), heldOptions{})
		mark := first.returnMark()
		k.parkNow(first, "a", 1, 2)
		k.parkNow(second, "a", 1, 2, 3)
		if returns { // two events of the second owner, which also ends the first owner's copies
			var d draft
			k.must(second.returned(k.ctx, &d, "/scorer", k.takeAll(second)[:2]))
			d.write(k, true)
			mark.serial = second.returnMark().serial
		}
		h := openHeld(k.b, parkedStream, int32(partition), heldOptions{})
		k.must(h.rebuild(k.ctx, mark, 10))
		h.endRebuild()
		var got []int64
		for _, e := range k.takeAll(h) {
			got = append(got, e.offset)
		}
		want := "[1 2 3]"
		if returns {
			want = "[3]"
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v wait, want %s", got, want)
		}
	}
}

// A parked event that may not be published is inside another event. The next owner still knows which event it is.
func TestAnOddEventIsKnownAfterATakeover(t *testing.T) {
	k := newParkedKafka(t, 1)
	h := openHeld(k.b, parkedStream, 0, heldOptions{})
	mark := h.returnMark()
	var d draft
	v := broker.View{ID: "1", Source: "a b", Type: "message", Subject: "a", Data: []byte("x")}
	k.must(h.parkEvent(k.ctx, &d, "a", &v, 7))
	d.write(k, true)
	next := openHeld(k.b, parkedStream, 0, heldOptions{})
	k.must(next.rebuild(k.ctx, mark, 7))
	next.endRebuild()
	if !next.seen(&v, 7) {
		t.Error("the next owner does not know the event that waits")
	}
	next = openHeld(k.b, parkedStream, 0, heldOptions{})
	k.must(next.rebuild(k.ctx, mark, 7))
	next.scored(7, identity(v.Source, v.ID))
	next.endRebuild()
	if n := next.count(); n != 0 {
		t.Errorf("%d events wait that have an output", n)
	}
}

// An event that the stream no longer has is reported as gone, and the next ones are returned.
func TestWhatIsGoneIsSaid(t *testing.T) {
	k := newParkedKafka(t, 1)
	h := openHeld(k.b, parkedStream, 0, heldOptions{Kept: 1, Read: 1})
	k.parkNow(h, "a", 1)
	ends, err := k.b.Ends(k.ctx, parkedStream)
	k.must(err)
	k.must(k.b.DeleteBelow(k.ctx, ends))
	k.parkNow(h, "a", 2)
	all := k.takeAll(h)
	if len(all) != 2 || !errors.Is(all[0].err, errHeldGone) || all[0].offset != 1 || all[1].err != nil || all[1].view.ID != "2" || h.isWaiting("a", "a") {
		t.Errorf("took %+v", all)
	}
}

func TestHeadersAreReadAsTheyAreWritten(t *testing.T) {
	want := heldHeader{offset: 1 << 40, logged: 1700000000000, copy: 3, key: "bot-é"}
	if got, err := readHeldHeader(want.encode()); err != nil || got != want {
		t.Errorf("read %+v: %v", got, err)
	}
	for _, b := range [][]byte{nil, {}, {2, 0, 1, 1}, {1}, {1, 0}, {1, 0, 0xff}, {1, 0, 1, 0xff}} {
		if _, err := readHeldHeader(b); !errors.Is(err, parked.ErrHeader) {
			t.Errorf("header %v: %v", b, err)
		}
	}
}

// numbered assigns offsets at once, as a log does.
type numbered struct{ next int64 }

// SendTo implements outbox.
func (n *numbered) SendTo(_ context.Context, _ string, _ int32, _ *broker.View, done func(broker.Receipt)) {
	n.next++
	done(broker.Receipt{Offset: n.next})
}

// returnAll takes and returns all events, without contents.
func returnAll(t *testing.T, h *heldIndex, to *numbered) {
	t.Helper()
	h.openAll()
	for {
		var batch []*heldEvent
		for len(batch) < 8192 {
			e, k, r := h.nextOpen()
			if k == nil {
				break
			}
			if e == nil {
				e = &heldEvent{at: r.Order}
			}
			h.pop(k, e)
			batch = append(batch, e)
		}
		if len(batch) == 0 {
			return
		}
		if err := h.returned(t.Context(), to, "/scorer", batch); err != nil {
			t.Fatal(err)
		}
		h.committed(0)
	}
}

// Events are not parked again after newer ones of their model, or if they are too many for one transaction. The latter is logged.
func TestSomeEventsAreNotParkedAgain(t *testing.T) {
	v := broker.View{ID: "1", Source: "/x", Type: "t"}
	due := parked.Renewal{Least: 1, Share: 1}
	var to numbered
	h := openHeld(nil, parkedStream, 0, heldOptions{Renew: due})
	if err := h.parkEvent(t.Context(), &to, "a", &v, 0); err != nil {
		t.Fatal(err)
	}
	newer := h.hold("a", "a", &v, 1, 0)
	h.end = 10
	if again, err := h.renew(t.Context()); len(again) > 0 || err != nil {
		t.Errorf("before a newer one is parked: %d events, %v", len(again), err)
	}
	h.placed(newer, 10)
	if again, err := h.renew(t.Context()); len(again) != 2 || again[0].old.offset != 0 || again[1].old.offset != 1 || err != nil {
		t.Errorf("after a newer one was parked: %v, %v", again, err)
	}

	var log bytes.Buffer
	h = openHeld(nil, parkedStream, 0, heldOptions{Kept: 1, Renew: due, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for i := range int64(parked.RenewRecords + 1) {
		if err := h.parkEvent(t.Context(), &to, "a", &v, i); err != nil {
			t.Fatal(err)
		}
	}
	h.end *= 2
	for range 2 {
		if again, err := h.renew(t.Context()); len(again) > 0 || err != nil {
			t.Errorf("of too many: %d events, %v", len(again), err)
		}
	}
	if n := strings.Count(log.String(), "model=a events=4097 "); n != 1 {
		t.Errorf("it was logged %d times: %s", n, log.String())
	}
}

// Waiting events need little memory, so there may be millions: also if each has its own key.
func TestMemoryOfWhatIsHeld(t *testing.T) {
	const events = 200_000
	for _, c := range []struct {
		model string
		keys  int
		most  float64
	}{{"m/{key}", 1, 4}, {"m/{key}", 1000, 8}, {"m", events, 14}} {
		v := broker.View{ID: "1", Source: "/x", Type: "t"}
		measure := func(what string, fill func(*heldIndex)) {
			before := inUse()
			h := openHeld(nil, parkedStream, 0, heldOptions{Kept: 1, Model: c.model})
			h.passed = events
			fill(h)
			each := (inUse() - before) / events
			t.Logf("%s, %d keys, model %s: %.1f bytes each", what, c.keys, c.model, each)
			if each > c.most || h.count() != events || h.isWaiting("other", h.modelOf("other")) && c.keys < events {
				t.Errorf("%s, %d keys, model %s: %d events take %.1f bytes each, want at most %.0f", what, c.keys, c.model, h.count(), each, c.most)
			}
		}
		measure("parked", func(h *heldIndex) {
			var to numbered
			for i := range int64(events) {
				if err := h.parkEvent(t.Context(), &to, fmt.Sprint("k", i%int64(c.keys)), &v, i); err != nil {
					t.Fatal(err)
				}
			}
		})
		measure("rebuilt", func(h *heldIndex) {
			h.fold = newHeldFold(h)
			for i := range int64(events) {
				x := heldHeader{offset: i, key: fmt.Sprint("k", i%int64(c.keys))}
				if err := h.fold.item(&broker.Incoming{View: broker.View{ID: fmt.Sprint(i), Source: "/x"}, Offset: i}, x.encode()); err != nil {
					t.Fatal(err)
				}
			}
			h.endRebuild()
		})
	}
}

// A key with many events comes to an end only if those that are about to be parked can be taken, too.
func TestEventsAreTakenBeforeTheyAreParked(t *testing.T) {
	k := newParkedKafka(t, 1)
	h := openHeld(k.b, parkedStream, 0, heldOptions{})
	var d draft
	park := func(offset int64) {
		v := broker.View{ID: fmt.Sprint(offset), Source: "/test", Type: "message"}
		k.must(h.parkEvent(k.ctx, &d, "a", &v, offset))
	}
	take := func(want string) []*heldEvent {
		t.Helper()
		all := k.takeAll(h)
		got := ""
		for _, e := range all {
			got += fmt.Sprint(e.offset)
		}
		if got != want || h.count() > 0 || h.isWaiting("a", "a") {
			t.Fatalf("took %q, want %q; %d wait", got, want, h.count())
		}
		return all
	}
	park(1)
	park(2)
	park(3)
	first := take("123")
	h.putBack(first[1:])
	park(4)
	h.putBack(take("234"))
	h.openAll()
	if e, m, _ := h.nextOpen(); e != nil { // its offset becomes known meanwhile
		d.write(k, true)
		h.pop(m, e)
		h.putBack([]*heldEvent{e})
	}
	rest := take("234")
	k.must(h.returned(k.ctx, &d, "/scorer", append(first[:1:1], rest...)))
	if h.committed(9); h.needed.Len() != 0 || h.unparked != 0 || h.keeping != 0 || h.kept.Size() != 0 {
		t.Errorf("%d offsets are needed, %d are not known, and %d bytes are left", h.needed.Len(), h.unparked, h.keeping+h.kept.Size())
	}
}

func inUse() float64 {
	runtime.GC()
	runtime.GC() // the second one empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
