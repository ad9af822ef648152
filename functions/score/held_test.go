package score

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
		h.park(k.ctx, &d, h.hold(key, &v, o, 0), key, &v, 0)
	}
	d.write(k, true)
	h.committed(0)
}

func (k *parkedKafka) takeAll(h *heldIndex) (all []*heldEvent) {
	k.Helper()
	for key, ok := h.nextModelKey(); ok; key, ok = h.nextModelKey() {
		h.unlock(key)
	}
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
	k.must(h.park(k.ctx, &d, h.hold("a", &v, 7, 0), "a", &v, 0))
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
	h.log.entryAt(0).at = -2 // there is no such offset: the log begins after it
	k.parkNow(h, "a", 2)
	all := k.takeAll(h)
	if len(all) != 2 || !errors.Is(all[0].err, errHeldGone) || all[0].key != "a" || all[0].offset != 1 || all[1].err != nil || all[1].view.ID != "2" {
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
	for key, ok := h.nextModelKey(); ok; key, ok = h.nextModelKey() {
		h.unlock(key)
	}
	for {
		var batch []*heldEvent
		for len(batch) < 8192 {
			e, _, k := h.nextOpen()
			if k == nil {
				break
			}
			if e == nil {
				e = &heldEvent{seq: k.head}
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

func inUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
