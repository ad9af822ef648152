package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// fillPartition takes all the bytes that a partition can get, and returns their number.
func (w *window) fillPartition(t *testing.T, l *lane, partition int32) int64 {
	now, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		if _, err := w.take(now, l, partition, 1); err != nil {
			return l.track(partition).held
		}
	}
}

func TestAStreamMayHoldAsMuchAsIsFree(t *testing.T) {
	w := window{free: 100}
	fill := func(l *lane) int64 {
		for partition := int32(-1); w.fillPartition(t, l, partition) > 0; partition++ {
		}
		return l.held
	}
	a, b, c := w.open(), w.open(), w.open()
	if first, second, third := fill(a), fill(b), fill(c); first != 50 || second != 25 || third != 13 {
		t.Errorf("stalled streams hold %d, %d and %d of 100", first, second, third)
	}
	for _, k := range a.tracks {
		w.release(k, k.held)
	}
	if again := fill(b); again != 44 {
		t.Errorf("what is free again is for all: b holds %d", again)
	}
	if w.takenBytes() != 57 {
		t.Errorf("%v bytes", w.takenBytes())
	}
}

func TestAPartitionLeavesRoomForTheOthers(t *testing.T) {
	w := window{free: 100}
	l, other := w.open(), w.open()
	if first, second := w.fillPartition(t, l, 3), w.fillPartition(t, l, 0); first != 34 || second != 11 {
		t.Errorf("stalled partitions hold %d and %d of 100", first, second)
	}
	if n := w.fillPartition(t, other, -1); n != 19 {
		t.Errorf("another stream holds %d of the 55 that are free", n)
	}
}

func TestTurnsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := window{free: 20}
		l := w.open()
		k, err := w.take(t.Context(), l, 0, 20)
		if err != nil {
			t.Fatal(err)
		}
		turns := make(chan int, 3)
		for i := range 3 {
			go func() {
				if _, err := w.take(t.Context(), l, 0, 4); err != nil {
					t.Error(err)
				}
				turns <- i
			}()
			synctest.Wait()
		}
		w.release(k, 20)
		synctest.Wait()
		if n := len(turns); n != 2 || <-turns+<-turns != 0+1 {
			t.Fatalf("%d turns came", n)
		}
		w.release(k, 4)
		if <-turns != 2 || w.waiting != 0 {
			t.Error("the last turn")
		}
	})
}

func TestWhoWaitsTooLongLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := window{free: 1}, contextPool{while: time.Second}
		l := w.open()
		k, err := w.take(p.newContext(), l, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = w.take(p.newContext(), l, 0, 1)
		if took := time.Since(began); !errors.Is(err, errNoRoom) || took > time.Second || took < 800*time.Millisecond {
			t.Errorf("after %s: %v", took, err)
		}
		if w.release(k, 1); w.free != 1 || w.waiting != 0 || l.held != 0 || k.held != 0 {
			t.Errorf("%+v", &w)
		}
	})
}

func TestPatienceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := contextPool{while: time.Second}
		first := p.newContext()
		if p.newContext() != first {
			t.Error("two at the same moment have two contexts")
		}
		<-time.After(150 * time.Millisecond)
		if p.newContext() == first {
			t.Error("a later one has less time")
		}
		<-first.Done()
		if !errors.Is(context.Cause(first), errNoRoom) {
			t.Error(context.Cause(first))
		}
		<-time.After(time.Second)
	})
}

func TestRoom(t *testing.T) {
	l := Limits{UnderWay: 100, Caller: 40}
	o := memoryLimit{limits: &l, callers: map[string]int64{}}
	for _, c := range []struct {
		caller string
		n      int64
		status int
	}{{"a", 40, 0}, {"a", 1, 429}, {"b", 40, 0}, {"", 20, 0}, {"c", 1, 503}, {"a", 1, 503}} {
		p := o.take(c.caller, c.n)
		if got := statusOf(p); got != c.status {
			t.Errorf("%q takes %d: %d, want %d", c.caller, c.n, got, c.status)
		}
	}
	o.give("a", 40)
	o.give("", 20)
	if o.takenBytes() != 40 || statusOf(o.take("a", 40)) != 0 {
		t.Errorf("%v are taken", o.takenBytes())
	}
}
