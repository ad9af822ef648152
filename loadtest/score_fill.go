package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/fleet"
)

// inputType is the type of the events.
const inputType = "message"

// places records which event is at each partition and offset of the stream.
type places struct {
	mu     sync.Mutex
	at     [partitions][]int32 // event numbers
	failed error
}

// feeder makes events one after another.
type feeder struct {
	view   broker.View
	bodies []fleet.Body
	keys   *fleet.Keys
	number int
}

func newFeeder(f *fleet.Fleet) *feeder {
	return &feeder{bodies: f.Bodies(), keys: f.Keys(),
		view: broker.View{Source: "/shops/berlin/gateway", Type: inputType, Time: "2026-01-31T15:04:05.123456789Z", DataContentType: "application/json"}}
}

// next returns the next event and its number. The event is valid until the next call.
func (f *feeder) next() (*broker.View, int) {
	number := f.number
	f.number++
	f.view.ID = strconv.Itoa(number)
	f.view.Subject = fleet.Key(f.keys.Next())
	f.view.Data = f.bodies[number%len(f.bodies)].Data
	return &f.view, number
}

// fill writes events until there are n, and records their places.
func (w *scoreWorld) fill(ctx context.Context, n int) error {
	p, err := w.st.b.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	w.places = &places{}
	f := newFeeder(&w.fleet)
	for range n {
		v, number := f.next()
		p.Send(ctx, inStream, v, func(r broker.Receipt, err error) { w.places.note(r, number, err) })
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	return w.places.check()
}

func (p *places) note(r broker.Receipt, number int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || r.Offset < 0 {
		if p.failed == nil {
			p.failed = fmt.Errorf("event %d has no place on the stream: %w", number, err)
		}
		return
	}
	at := &p.at[r.Partition]
	if short := int(r.Offset) + 1 - len(*at); short > 0 {
		*at = append(*at, slices.Repeat([]int32{-1}, short)...)
	}
	(*at)[r.Offset] = int32(number)
}

// count returns the number of events.
func (p *places) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range p.at {
		n += len(all)
	}
	return n
}

// check returns an error unless every offset has its event.
func (p *places) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for partition, all := range p.at {
		if hole := slices.Index(all, -1); hole >= 0 && p.failed == nil {
			p.failed = fmt.Errorf("nothing is known of partition %d, offset %d", partition, hole)
		}
	}
	return p.failed
}

// find returns the number of the event at a place.
func (p *places) find(partition int, offset int64) (number int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if partition < 0 || partition >= partitions || offset < 0 || offset >= int64(len(p.at[partition])) {
		return 0, false
	}
	return int(p.at[partition][offset]), true
}
