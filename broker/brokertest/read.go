package brokertest

import (
	"fmt"

	"tidemill.dev/broker"
)

// readAll reads a partition to its end, some bytes at a time, and says what it
// has seen.
func (w *world) readAll(stream string, from int64, maxBytes int) (seen []string, next int64) {
	w.Helper()
	for {
		next, err := w.b.Read(w.ctx(), broker.Position{Stream: stream, Offset: from}, maxBytes, func(e *broker.Incoming) bool {
			if e.Err != nil {
				seen = append(seen, fmt.Sprintf("%d:?", e.Offset))
			} else {
				seen = append(seen, fmt.Sprintf("%d:%s", e.Offset, e.ID))
			}
			return true
		})
		w.must(err)
		if next == from {
			return seen, next
		}
		from = next
	}
}

// A log is read from anywhere, in any portions: aborted transactions are passed
// over, what is no event comes with its error, and what is gone is gone.
func readAnywhere(w *world) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.transactor("g", "in")
	nothing := func() {}
	w.publish("out", 1, 20)
	w.wantErr(w.within(t, "out", "aborted", 5, nothing, errNo), errNo)
	w.must(w.within(t, "out", "kept", 3, nothing, nil))
	w.raw("out", 0, []byte("no event"))
	w.publish("out", 1, 2)
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("%d:%s/%d", i, key(0), i))
	}
	for i := range 3 {
		want = append(want, fmt.Sprintf("%d:kept/%d", 26+i, i))
	}
	want = append(want, "30:?", "31:"+key(0)+"/0", "32:"+key(0)+"/1")
	for from := range int64(34) {
		expect := want
		for len(expect) > 0 {
			var offset int64
			fmt.Sscan(expect[0], &offset)
			if offset >= from {
				break
			}
			expect = expect[1:]
		}
		for _, maxBytes := range []int{1, 300, 1 << 20} {
			if seen, next := w.readAll("out", from, maxBytes); fmt.Sprint(seen) != fmt.Sprint(expect) || next != 33 {
				w.Fatalf("from %d, %d bytes at a time: stopped at %d and saw\n%v, want\n%v", from, maxBytes, next, seen, expect)
			}
		}
	}
	next, err := w.b.Read(w.ctx(), broker.Position{Stream: "out", Offset: 4}, 1<<20, func(e *broker.Incoming) bool { return e.Offset < 6 })
	if w.must(err); next != 7 {
		w.Errorf("told to stop at 6, the next read goes on at %d", next)
	}
	w.trim("out", 0, 10)
	if seen, _ := w.readAll("out", 3, 1<<20); fmt.Sprint(seen) != fmt.Sprint(want[10:]) {
		w.Errorf("from below the start: %v", seen)
	}
	w.wantErr(readNowhere(w, broker.Position{Stream: "nowhere"}), broker.ErrNoStream)
	for _, p := range []broker.Position{{Stream: "out", Partition: 7}, {Stream: "out", Offset: 99}} {
		if readNowhere(w, p) == nil {
			w.Errorf("%+v can be read", p)
		}
	}
}

func readNowhere(w *world, p broker.Position) error {
	_, err := w.b.Read(w.ctx(), p, 1<<20, func(*broker.Incoming) bool { return true })
	return err
}

// What is in an open transaction is not there yet, and reading does not wait for
// it; reading back does.
func readOpen(w *world) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.transactor("g", "in")
	w.publish("out", 1, 2)
	back := make(chan int64, 1)
	w.must(w.within(t, "out", "late", 2, func() {
		if seen, next := w.readAll("out", 0, 1<<20); len(seen) != 2 || next != 2 {
			w.Errorf("a transaction is open, and %v is seen up to %d", seen, next)
		}
		go func() {
			n := int64(0)
			_, err := w.open().ReadBack(w.ctx(), []broker.Position{{Stream: "out"}}, func(*broker.Incoming) { n++ })
			if err != nil {
				w.Error(err)
			}
			back <- n
		}()
	}, nil))
	if n := <-back; n != 4 {
		w.Errorf("%d events are read back", n)
	}
}
