package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/platform"
)

const demoGroup = "demo"

// demoReader is the consumer that the demo's events arrive at.
type demoReader struct {
	consumer *broker.Consumer
	waiting  []arrival
}

// arrival is what the demo shows of an event.
type arrival struct {
	id, typ, subject string
	at               broker.Position
	when             time.Time
}

// openDemoReader returns once the group has given it every partition: the
// latencies it shows are those of events, not of joining a group.
func openDemoReader(ctx context.Context, p *platform.Platform, streams []string) (*demoReader, error) {
	missing := 0
	for _, name := range streams {
		s, _ := p.Config().Stream(name)
		missing += s.Partitions
	}
	var mu sync.Mutex
	joined := make(chan struct{})
	assigned := func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
		mu.Lock()
		defer mu.Unlock()
		if missing -= len(at); missing == 0 {
			close(joined)
		}
		return nil, nil
	}
	c, err := p.Consumer(ctx, broker.ConsumerOptions{Group: demoGroup, Streams: streams, Assigned: assigned})
	if err != nil {
		return nil, err
	}
	select {
	case <-joined:
		return &demoReader{consumer: c}, nil
	case <-ctx.Done():
		return nil, errors.New("the consumer group gave no partitions")
	}
}

// next waits for an event and says that it has been dealt with.
func (r *demoReader) next(ctx context.Context) (arrival, error) {
	for len(r.waiting) == 0 {
		d, err := r.consumer.Poll(ctx)
		if err != nil {
			return arrival{}, err
		}
		now := time.Now()
		for i := range d.Events {
			v := d.Events[i].Clone()
			at := broker.Position{Stream: d.Stream, Partition: d.Partition, Offset: d.Events[i].Offset}
			r.waiting = append(r.waiting, arrival{v.ID, v.Type, v.Subject, at, now})
		}
		d.Done()
	}
	first := r.waiting[0]
	r.waiting = r.waiting[1:]
	return first, nil
}
