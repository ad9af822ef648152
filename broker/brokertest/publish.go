package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev/broker"
)

func publishOrder(w *testWorld) {
	for _, c := range []broker.Compression{broker.Uncompressed, broker.LZ4, broker.Zstd} {
		for _, linger := range []time.Duration{0, 2 * time.Millisecond} {
			stream := fmt.Sprintf("%s-%d", c, linger.Milliseconds())
			w.stream(stream, 3)
			p := w.producer(broker.ProducerOptions{Compression: c, Linger: linger})
			s := newSent()
			for n := range 300 {
				s.send(w.testContext(), p, stream, testEvent(key(n%5), n))
			}
			s.wait(w)
			w.wantOnLog(stream, s)
		}
	}
}

func publishConcurrently(w *testWorld) {
	w.stream("events", 6)
	p := w.producer(broker.ProducerOptions{})
	s := newSent()
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for n := range 150 {
				s.send(w.testContext(), p, "events", testEvent(key(g), n))
			}
		})
	}
	wg.Wait()
	s.wait(w)
	w.wantOnLog("events", s)
}

func publishLarge(w *testWorld) {
	w.stream("events", 2)
	for i, c := range []broker.Compression{broker.Uncompressed, broker.Zstd} {
		p := w.producer(broker.ProducerOptions{Compression: c})
		s := newSent()
		for n := range 6 {
			v := testEvent(key(i), n)
			v.Data = bytes.Repeat([]byte{byte(n)}, 1_000_000)
			s.send(w.testContext(), p, "events", v)
			s.send(w.testContext(), p, "events", testEvent(key(i), 100+n))
		}
		s.wg.Wait()
		for id, err := range s.errs {
			w.Errorf("%s: %v", id, err)
		}
	}
	large := 0
	for _, e := range w.committedLog("events") {
		if e.size == 1_000_000 {
			large++
		}
	}
	if large != 12 {
		w.Errorf("%d large events are there, of 12", large)
	}
}

// An event that is too large for the stream or for the producer fails without affecting other
// events.
func publishTooLarge(w *testWorld) {
	w.streams(broker.StreamSpec{Name: "small", Partitions: 1, MaxMessageBytes: 20_000})
	for _, c := range []broker.Compression{broker.Uncompressed, broker.LZ4} {
		p := w.producer(broker.ProducerOptions{MaxEvent: 100_000, Compression: c, Linger: 5 * time.Millisecond})
		s := newSent()
		large := map[string]bool{}
		for n := range 40 {
			v := testEvent(string(c), n)
			if n%10 == 3 {
				v.Data = randomBytes(30_000)
			}
			if n%10 == 7 {
				v.Data = randomBytes(200_000)
			}
			large[v.ID] = len(v.Data) > 1000
			s.send(w.testContext(), p, "small", v)
		}
		s.wg.Wait()
		for id := range large {
			err := s.errs[id]
			if large[id] {
				w.wantErr(err, broker.ErrTooLarge)
			} else if err != nil {
				w.Errorf("%s is small: %v", id, err)
			}
		}
	}
	count := map[string]int{}
	for _, e := range w.committedLog("small") {
		count[e.id]++
	}
	if len(count) != 64 {
		w.Errorf("%d events are there, 64 were small enough", len(count))
	}
}

// randomBytes returns bytes that do not compress.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

func publishNoStream(w *testWorld) {
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.testContext(), "nowhere", testEvent("a", 0))
	w.wantErr(err, broker.ErrNoStream)
	_, err = w.b.Consumer(w.testContext(), broker.ConsumerOptions{Streams: []string{"nowhere"}})
	w.wantErr(err, broker.ErrNoStream)
}

func publishTinyBuffer(w *testWorld) {
	w.stream("events", 2)
	p := w.producer(broker.ProducerOptions{MaxBuffered: 300})
	s := newSent()
	for n := range 300 {
		s.send(w.testContext(), p, "events", testEvent(key(n%3), n))
	}
	s.wait(w)
	w.wantOnLog("events", s)
}

func publishFlush(w *testWorld) {
	w.stream("events", 3)
	p := w.producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	s := newSent()
	for n := range 200 {
		s.send(w.testContext(), p, "events", testEvent(key(n%7), n))
	}
	w.must(p.Flush(w.testContext()))
	s.mu.Lock()
	if len(s.all) != 200 {
		w.Errorf("flushed, and %d of 200 have an answer", len(s.all))
	}
	s.mu.Unlock()
	w.must(p.Flush(w.testContext()))
}

func publishClose(w *testWorld) {
	w.stream("events", 3)
	p, err := w.b.Producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	w.must(err)
	s := newSent()
	for n := range 1000 {
		s.send(w.testContext(), p, "events", testEvent(key(n%7), n))
	}
	w.must(p.Close(w.testContext()))
	s.wait(w)
	_, err = p.Publish(w.testContext(), "events", testEvent("late", 0))
	w.wantErr(err, broker.ErrClosed)
	w.wantOnLog("events", s)
}

// If Close has no time left, every event still gets an outcome, and the outcome is true.
func publishCloseHurried(w *testWorld) {
	w.stream("events", 3)
	p, err := w.b.Producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	w.must(err)
	s := newSent()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 500 {
				s.send(w.testContext(), p, "events", testEvent(key(g), n))
			}
		})
	}
	ctx, cancel := context.WithCancel(w.testContext())
	cancel()
	_ = p.Close(ctx) // may or may not have been in time
	wg.Wait()
	s.wg.Wait()
	if got := len(s.all) + len(s.errs); got != 2000 {
		w.Errorf("%d of 2000 events have an outcome", got)
	}
	w.wantOnLog("events", s)
}

// readAll reads a partition to its end, in portions of maxBytes, and returns the events seen.
func (w *testWorld) readAll(stream string, from int64, maxBytes int) (seen []string, next int64) {
	w.Helper()
	for {
		next, err := w.b.Read(w.testContext(), broker.Position{Stream: stream, Offset: from}, maxBytes, func(e *broker.Incoming) bool {
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

// A log can be read from any offset in portions of any size. Aborted transactions are
// skipped, an undecodable record comes with its error, and deleted records are skipped.
func readAnywhere(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.newTransactor("g", "in")
	nothing := func() {}
	w.publish("out", 1, 20)
	w.wantErr(w.sendInTransaction(t, "out", "aborted", 5, nothing, errNo), errNo)
	w.must(w.sendInTransaction(t, "out", "kept", 3, nothing, nil))
	w.writeRaw("out", 0, []byte("no event"))
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
	next, err := w.b.Read(w.testContext(), broker.Position{Stream: "out", Offset: 4}, 1<<20, func(e *broker.Incoming) bool { return e.Offset < 6 })
	if w.must(err); next != 7 {
		w.Errorf("told to stop at 6, the next read goes on at %d", next)
	}
	w.deleteBelow("out", 0, 10)
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

func readNowhere(w *testWorld, p broker.Position) error {
	_, err := w.b.Read(w.testContext(), p, 1<<20, func(*broker.Incoming) bool { return true })
	return err
}

// Read does not return events of an open transaction and does not wait for its end. ReadBack waits
// for its end.
func readOpen(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.newTransactor("g", "in")
	w.publish("out", 1, 2)
	back := make(chan int64, 1)
	w.must(w.sendInTransaction(t, "out", "late", 2, func() {
		if seen, next := w.readAll("out", 0, 1<<20); len(seen) != 2 || next != 2 {
			w.Errorf("a transaction is open, and %v is seen up to %d", seen, next)
		}
		go func() {
			n := int64(0)
			_, err := w.reopen().ReadBack(w.testContext(), []broker.Position{{Stream: "out"}}, func(*broker.Incoming) { n++ })
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

// deliveryCount counts the deliveries to a group's members by event id.
type deliveryCount struct {
	mu    sync.Mutex
	count map[string]int
	news  chan struct{}
}

func newTally() *deliveryCount {
	return &deliveryCount{count: map[string]int{}, news: make(chan struct{})}
}

func (y *deliveryCount) add(id string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.count[id]++
	close(y.news)
	y.news = make(chan struct{})
}

// waitFor waits until n different events have come.
func (y *deliveryCount) waitFor(w *testWorld, n int) {
	w.Helper()
	for ctx := w.testContext(); ; {
		y.mu.Lock()
		have, news := len(y.count), y.news
		y.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
			w.Fatalf("%d events have come, of %d", have, n)
		}
	}
}

// checkNoRepeats checks that no event has come twice.
func (y *deliveryCount) checkNoRepeats(w *testWorld) {
	w.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	for id, n := range y.count {
		if n != 1 {
			w.Errorf("%s has come %d times", id, n)
		}
	}
}

// testReader is one member that ends each event right after it is counted.
type testReader struct {
	w    *testWorld
	c    *broker.Consumer
	b    *broker.Broker
	y    *deliveryCount
	gone chan struct{}

	mu      sync.Mutex
	longest map[int32]time.Duration // longest time between a partition's deliveries
	last    map[int32]time.Time
}

func (w *testWorld) reader(group, stream string, y *deliveryCount) *testReader {
	w.Helper()
	r := &testReader{w: w, b: w.reopen(), y: y, gone: make(chan struct{}), longest: map[int32]time.Duration{}, last: map[int32]time.Time{}}
	var err error
	r.c, err = r.b.Consumer(w.testContext(), broker.ConsumerOptions{Group: group, Streams: []string{stream}, SessionTimeout: max(w.srv.Session, 3*time.Second)})
	w.must(err)
	w.Cleanup(func() { <-r.gone })
	go r.run()
	return r
}

func (r *testReader) run() {
	defer close(r.gone)
	for {
		d, err := r.c.Poll(r.w.Context())
		if err != nil {
			if !errors.Is(err, broker.ErrClosed) && !errors.Is(err, context.Canceled) {
				r.w.Errorf("poll: %v", err)
			}
			return
		}
		r.note(d.Partition)
		for i := range d.Events {
			r.y.add(string([]byte(d.Events[i].ID)))
		}
		d.Done()
	}
}

func (r *testReader) note(partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.last[partition]; ok {
		r.longest[partition] = max(r.longest[partition], now.Sub(last))
	}
	r.last[partition] = now
}

// partitionsRead returns the number of partitions from which the member has received events.
func (r *testReader) partitionsRead() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.last)
}

// leave closes the member in the normal way.
func (r *testReader) leave() {
	r.w.Helper()
	t0 := time.Now()
	r.w.must(r.c.Close(r.w.testContext()))
	<-r.gone
	r.w.Logf("left within %s", time.Since(t0).Round(time.Millisecond))
}

// Records below a position are deleted, and those from the position on stay.
func deletedBelow(w *testWorld) {
	w.stream("in", 2)
	w.publish("in", 4, 40)
	ends, err := w.b.Ends(w.Context(), "in")
	w.must(err)
	below := []broker.Position{{Stream: "in", Partition: 0, Offset: ends[0].Offset / 2}, {Stream: "in", Partition: 1, Offset: ends[1].Offset}}
	for range 2 { // a second time it changes nothing
		w.must(w.b.DeleteBelow(w.Context(), below))
		starts, err := w.b.Places(w.Context(), "in", broker.Earliest())
		w.must(err)
		for _, at := range starts {
			if at.Offset != below[at.Partition].Offset {
				w.Fatalf("partition %d begins at %d, want %d", at.Partition, at.Offset, below[at.Partition].Offset)
			}
		}
	}
	if err := w.b.DeleteBelow(w.Context(), []broker.Position{{Stream: "in", Partition: 0, Offset: ends[0].Offset + 1}}); err == nil {
		w.Fatal("records that do not exist were deleted")
	}
}
