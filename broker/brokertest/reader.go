package brokertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// tally counts what a group's members have been given, by id.
type tally struct {
	mu    sync.Mutex
	count map[string]int
	news  chan struct{}
}

func newTally() *tally { return &tally{count: map[string]int{}, news: make(chan struct{})} }

func (y *tally) add(id string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.count[id]++
	close(y.news)
	y.news = make(chan struct{})
}

// wait waits until n different events have come.
func (y *tally) wait(w *world, n int) {
	w.Helper()
	for ctx := w.ctx(); ; {
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

// once checks that none has come twice.
func (y *tally) once(w *world) {
	w.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	for id, n := range y.count {
		if n != 1 {
			w.Errorf("%s has come %d times", id, n)
		}
	}
}

// reader is one member that ends each event as soon as it has been counted.
type reader struct {
	w    *world
	c    *broker.Consumer
	b    *broker.Broker
	y    *tally
	gone chan struct{}

	mu      sync.Mutex
	longest map[int32]time.Duration // between a partition's deliveries
	last    map[int32]time.Time
}

func (w *world) reader(group, stream string, y *tally) *reader {
	w.Helper()
	r := &reader{w: w, b: w.open(), y: y, gone: make(chan struct{}), longest: map[int32]time.Duration{}, last: map[int32]time.Time{}}
	var err error
	r.c, err = r.b.Consumer(w.ctx(), broker.ConsumerOptions{Group: group, Streams: []string{stream}, SessionTimeout: max(w.srv.Session, 3*time.Second)})
	w.must(err)
	w.Cleanup(func() { <-r.gone })
	go r.run()
	return r
}

func (r *reader) run() {
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

func (r *reader) note(partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.last[partition]; ok {
		r.longest[partition] = max(r.longest[partition], now.Sub(last))
	}
	r.last[partition] = now
}

// reads is how many partitions the member has been given events of.
func (r *reader) reads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.last)
}

// leave closes the member in order.
func (r *reader) leave() {
	r.w.Helper()
	t0 := time.Now()
	r.w.must(r.c.Close(r.w.ctx()))
	<-r.gone
	r.w.Logf("left within %s", time.Since(t0).Round(time.Millisecond))
}
