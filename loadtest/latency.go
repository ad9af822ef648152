package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// measureLatencies measures the times that an event takes at a moderate rate. Publisher and tail
// are goroutines of one process, so that one clock measures when an event left and when it arrived.
// The broker has its own process.
type measureLatencies struct {
	tail, ack, hop sample
	lasted         time.Duration
}

func (r *runner) latency(ctx context.Context) (measureLatencies, error) {
	n := r.seconds * latencyRate
	l := measureLatencies{lasted: time.Duration(r.seconds) * time.Second}
	stream, err := r.streams.newStream(ctx)
	if err != nil {
		return l, err
	}
	if l.hop, err = hop(ctx, n); err != nil {
		return l, err
	}
	t, err := openTrack(ctx, r.streams.b, stream, n)
	if err != nil {
		return l, fmt.Errorf("measure latency: %w", err)
	}
	if err := t.run(ctx); err != nil {
		return l, fmt.Errorf("measure latency: %w", err)
	}
	l.tail, l.ack = t.came.sorted(), t.acked.sorted()
	return l, r.streams.remove(ctx, stream)
}

// latencyTrack is the publisher and the tail of one stream.
type latencyTrack struct {
	stream string
	p      *broker.Producer
	c      *broker.Consumer
	events []task.Event

	sent  *sendTimes
	came  sample
	acked sample
}

// openTrack reads from the stream's end, so the tail is ready before the first event.
func openTrack(ctx context.Context, b *broker.Broker, stream string, n int) (*latencyTrack, error) {
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		return nil, err
	}
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{stream}, Start: broker.Latest()})
	return &latencyTrack{stream: stream, p: p, c: c, events: task.Events(),
		sent: newStamps(n), came: make(sample, n), acked: make(sample, n)}, err
}

// run publishes all events and waits for their arrival.
func (t *latencyTrack) run(ctx context.Context) error {
	arrived := make(chan error, 1)
	go func() { arrived <- t.tail(ctx) }()
	v := broker.View{Extensions: make([]broker.Attribute, 2)}
	refused := make(chan error, 1)
	err := callAtRate(ctx, len(t.came), func(i int) error {
		fill(&v, &t.events[i%len(t.events)])
		v.ID = strconv.Itoa(i)
		t.sent.left(i)
		t.p.Send(ctx, t.stream, &v, func(_ broker.Receipt, err error) {
			t.acked[i] = t.sent.since(i)
			if err != nil {
				select {
				case refused <- err:
				default:
				}
			}
		})
		return nil
	})
	if err != nil {
		return err
	}
	if err := t.p.Close(ctx); err != nil {
		return err
	}
	select {
	case err := <-refused:
		return err
	case err := <-arrived:
		if err != nil {
			return err
		}
	}
	return t.c.Close(ctx)
}

// tail waits for each event once.
func (t *latencyTrack) tail(ctx context.Context) error {
	for left := len(t.came); left > 0; {
		d, err := t.c.Poll(ctx)
		if err != nil {
			return err
		}
		for i := range d.Events {
			at, err := strconv.Atoi(d.Events[i].ID)
			if err != nil || at < 0 || at >= len(t.came) {
				return fmt.Errorf("event %q is none of ours", d.Events[i].ID)
			}
			t.came[at] = t.sent.since(at)
		}
		left -= len(d.Events)
		d.Done()
	}
	return nil
}
