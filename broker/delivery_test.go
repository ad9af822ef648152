package broker

import (
	"errors"
	"math/rand/v2"
	"testing"
)

func TestWatermark(t *testing.T) {
	type step struct {
		do string // add, end, skip or begin
		n  int64
	}
	cases := []struct {
		name  string
		steps []step
		next  int64
		open  int
	}{
		{"nothing read", nil, 10, 0},
		{"an open event holds", []step{{"add", 10}}, 10, 1},
		{"it ends", []step{{"add", 10}, {"end", 0}}, 11, 0},
		{"out of order", []step{{"add", 10}, {"add", 11}, {"end", 1}}, 10, 2},
		{"and caught up", []step{{"add", 10}, {"add", 11}, {"end", 1}, {"end", 0}}, 12, 0},
		{"ended twice is once", []step{{"add", 10}, {"add", 11}, {"end", 0}, {"end", 0}}, 11, 1},
		{"a marker behind the last event", []step{{"add", 10}, {"skip", 12}, {"end", 0}}, 12, 0},
		{"a marker behind an open event waits", []step{{"add", 10}, {"skip", 12}}, 10, 1},
		{"only markers", []step{{"skip", 15}}, 15, 0},
		{"holes between offsets", []step{{"add", 10}, {"add", 90}, {"end", 0}}, 11, 1},
		{"begun anew, a late end is for nobody", []step{{"add", 10}, {"begin", 5}, {"end", 0}}, 5, 0},
		{"a number that was never given", []step{{"add", 10}, {"end", 7}}, 10, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var w watermark
			w.begin(10)
			for _, s := range c.steps {
				switch s.do {
				case "add":
					w.add(s.n)
				case "end":
					w.endEvent(uint64(s.n))
				case "skip":
					w.skipTo(s.n)
				case "begin":
					w.begin(s.n)
				}
			}
			if w.next != c.next || w.openCount() != c.open {
				t.Errorf("next %d, open %d; want %d, %d", w.next, w.openCount(), c.next, c.open)
			}
		})
	}
}

// naiveMark is a simple and slow version of the watermark.
type naiveMark struct {
	offsets []int64
	ended   []bool
	from    int // number below which events belong to an earlier begin
	begun   int64
	read    int64
}

func (n *naiveMark) next() int64 {
	next := n.begun
	for i := n.from; i < len(n.offsets); i++ {
		if !n.ended[i] {
			return next
		}
		next = n.offsets[i] + 1
	}
	n.begun, n.from = n.read, len(n.offsets) // no event is open
	return n.begun
}

// In any interleaving, the watermark agrees with the naive model and never moves back.
func TestWatermarkAgainstNaiveModel(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var w watermark
		w.begin(0)
		n := &naiveMark{}
		for step := range 600 {
			before := w.next
			switch k := rnd.IntN(100); {
			case k < 45:
				offset := n.read + int64(rnd.IntN(3))
				if got := w.add(offset); got != uint64(len(n.offsets)) {
					t.Fatalf("seed %d: number %d, want %d", seed, got, len(n.offsets))
				}
				n.offsets, n.ended = append(n.offsets, offset), append(n.ended, false)
				n.read = offset + 1
			case k < 90 && len(n.offsets) > 0:
				i := max(0, len(n.offsets)-1-rnd.IntN(1+rnd.IntN(100)))
				news := i >= n.from && !n.ended[i]
				n.ended[i] = true
				if got := w.endEvent(uint64(i)); got != news {
					t.Fatalf("seed %d: end(%d) is %v, want %v", seed, i, got, news)
				}
			case k < 99:
				n.read += int64(rnd.IntN(3))
				w.skipTo(n.read)
			default:
				n.from, n.begun = len(n.offsets), n.read-int64(rnd.IntN(2))
				n.read = n.begun
				w.begin(n.begun)
				before = w.next
			}
			if w.next != n.next() || w.next < before {
				t.Fatalf("seed %d, step %d: next is %d after %d, want %d", seed, step, w.next, before, n.next())
			}
		}
	}
}

// After a failed transaction its delivery is not current any more, and its events come again.
func TestCurrent(t *testing.T) {
	_, b, x, d := openTransaction(t)
	if !d.Current() {
		t.Error("what Poll has just returned is not current")
	}
	failed := errors.New("no")
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(d); return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if d.Current() {
		t.Error("what was taken back is still current")
	}
	again, err := x.c.Poll(t.Context())
	if err != nil || !again.Current() {
		t.Errorf("it came again as current: %v, %v", err == nil && again.Current(), err)
	}
	again.Done()
	if n := x.c.Stats().Assigned; n != 1 {
		t.Errorf("%d partitions are assigned", n)
	}
	none, err := b.Committed(t.Context(), "never-was", []Position{{Stream: "events"}})
	if err != nil || none[0].Offset != -1 {
		t.Errorf("a group that never was has come to %v, %v", none, err)
	}
}
