package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/scenario"
)

// inputType is the type of the events.
const inputType = "message"

// offsetEvents records which event is at each partition and offset of the stream.
type offsetEvents struct {
	mu     sync.Mutex
	at     [partitions][]int32 // event numbers
	failed error
}

// eventFeeder makes events one after another.
type eventFeeder struct {
	view   broker.View
	bodies []fleet.Body
	keys   *fleet.Keys
	number int
	spread bool // events of one key are on all partitions
}

func (w *scoreBench) newFeeder() *eventFeeder {
	f := &w.fleet
	return &eventFeeder{bodies: f.Bodies(), keys: f.Keys(), spread: w.Measure == scenario.Peers,
		view: broker.View{Source: "/shops/berlin/gateway", Type: inputType, Time: "2026-01-31T15:04:05.123456789Z", DataContentType: "application/json"}}
}

// nextEvent returns the next event and its number. The event is valid until the next call.
func (f *eventFeeder) nextEvent() (*broker.View, int) {
	number := f.number
	f.number++
	f.view.ID = strconv.Itoa(number)
	f.view.Subject = fleet.Key(f.keys.Next())
	f.view.Data = f.bodies[number%len(f.bodies)].Data
	if f.spread {
		f.view.Key = append(f.view.Key[:0], f.view.ID...)
	}
	return &f.view, number
}

// fillStream writes events until there are n, and records the place of each event.
func (w *scoreBench) fillStream(ctx context.Context, n int) error {
	p, err := w.st.b.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	w.places = &offsetEvents{}
	f := w.newFeeder()
	for range n {
		v, number := f.nextEvent()
		p.Send(ctx, inStream, v, func(r broker.Receipt, err error) { w.places.note(r, number, err) })
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	return w.places.check()
}

func (p *offsetEvents) note(r broker.Receipt, number int, err error) {
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
func (p *offsetEvents) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range p.at {
		n += len(all)
	}
	return n
}

// check returns an error unless every offset has its event.
func (p *offsetEvents) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for partition, all := range p.at {
		if hole := slices.Index(all, -1); hole >= 0 && p.failed == nil {
			p.failed = fmt.Errorf("nothing is known of partition %d, offset %d", partition, hole)
		}
	}
	return p.failed
}

// eventAt returns the number of the event at a place.
func (p *offsetEvents) eventAt(partition int, offset int64) (number int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if partition < 0 || partition >= partitions || offset < 0 || offset >= int64(len(p.at[partition])) {
		return 0, false
	}
	return int(p.at[partition][offset]), true
}
