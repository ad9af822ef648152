package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"tidemill.dev/broker"
)

func publishOrder(w *world) {
	for _, c := range []broker.Compression{broker.Uncompressed, broker.LZ4, broker.Zstd} {
		for _, linger := range []time.Duration{0, 2 * time.Millisecond} {
			stream := fmt.Sprintf("%s-%d", c, linger.Milliseconds())
			w.stream(stream, 3)
			p := w.producer(broker.ProducerOptions{Compression: c, Linger: linger})
			s := newSent()
			for n := range 300 {
				s.send(w.ctx(), p, stream, event(key(n%5), n))
			}
			s.wait(w)
			w.wantOnLog(stream, s)
		}
	}
}

func publishConcurrently(w *world) {
	w.stream("events", 6)
	p := w.producer(broker.ProducerOptions{})
	s := newSent()
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for n := range 150 {
				s.send(w.ctx(), p, "events", event(key(g), n))
			}
		})
	}
	wg.Wait()
	s.wait(w)
	w.wantOnLog("events", s)
}

func publishLarge(w *world) {
	w.stream("events", 2)
	for i, c := range []broker.Compression{broker.Uncompressed, broker.Zstd} {
		p := w.producer(broker.ProducerOptions{Compression: c})
		s := newSent()
		for n := range 6 {
			v := event(key(i), n)
			v.Data = bytes.Repeat([]byte{byte(n)}, 1_000_000)
			s.send(w.ctx(), p, "events", v)
			s.send(w.ctx(), p, "events", event(key(i), 100+n))
		}
		s.wg.Wait()
		for id, err := range s.errs {
			w.Errorf("%s: %v", id, err)
		}
	}
	large := 0
	for _, e := range w.log("events") {
		if e.size == 1_000_000 {
			large++
		}
	}
	if large != 12 {
		w.Errorf("%d large events are there, of 12", large)
	}
}

// What the producer lets through and the stream does not, and what the
// producer itself refuses: both fail alone.
func publishTooLarge(w *world) {
	w.streams(broker.StreamSpec{Name: "small", Partitions: 1, MaxMessageBytes: 20_000})
	for _, c := range []broker.Compression{broker.Uncompressed, broker.LZ4} {
		p := w.producer(broker.ProducerOptions{MaxEvent: 100_000, Compression: c, Linger: 5 * time.Millisecond})
		s := newSent()
		large := map[string]bool{}
		for n := range 40 {
			v := event(string(c), n)
			if n%10 == 3 {
				v.Data = noise(30_000)
			}
			if n%10 == 7 {
				v.Data = noise(200_000)
			}
			large[v.ID] = len(v.Data) > 1000
			s.send(w.ctx(), p, "small", v)
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
	for _, e := range w.log("small") {
		count[e.id]++
	}
	if len(count) != 64 {
		w.Errorf("%d events are there, 64 were small enough", len(count))
	}
}

// noise does not compress.
func noise(n int) []byte {
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

func publishNoStream(w *world) {
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.ctx(), "nowhere", event("a", 0))
	w.wantErr(err, broker.ErrNoStream)
	_, err = w.b.Consumer(w.ctx(), broker.ConsumerOptions{Streams: []string{"nowhere"}})
	w.wantErr(err, broker.ErrNoStream)
}

func publishTinyBuffer(w *world) {
	w.stream("events", 2)
	p := w.producer(broker.ProducerOptions{MaxBuffered: 300})
	s := newSent()
	for n := range 300 {
		s.send(w.ctx(), p, "events", event(key(n%3), n))
	}
	s.wait(w)
	w.wantOnLog("events", s)
}

func publishFlush(w *world) {
	w.stream("events", 3)
	p := w.producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	s := newSent()
	for n := range 200 {
		s.send(w.ctx(), p, "events", event(key(n%7), n))
	}
	w.must(p.Flush(w.ctx()))
	s.mu.Lock()
	if len(s.all) != 200 {
		w.Errorf("flushed, and %d of 200 have an answer", len(s.all))
	}
	s.mu.Unlock()
	w.must(p.Flush(w.ctx()))
}

func publishClose(w *world) {
	w.stream("events", 3)
	p, err := w.b.Producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	w.must(err)
	s := newSent()
	for n := range 1000 {
		s.send(w.ctx(), p, "events", event(key(n%7), n))
	}
	w.must(p.Close(w.ctx()))
	s.wait(w)
	_, err = p.Publish(w.ctx(), "events", event("late", 0))
	w.wantErr(err, broker.ErrClosed)
	w.wantOnLog("events", s)
}

// Closed without time, every event has an outcome, and it is true.
func publishCloseHurried(w *world) {
	w.stream("events", 3)
	p, err := w.b.Producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	w.must(err)
	s := newSent()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 500 {
				s.send(w.ctx(), p, "events", event(key(g), n))
			}
		})
	}
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	_ = p.Close(ctx) // may or may not have been in time
	wg.Wait()
	s.wg.Wait()
	if got := len(s.all) + len(s.errs); got != 2000 {
		w.Errorf("%d of 2000 events have an outcome", got)
	}
	w.wantOnLog("events", s)
}
