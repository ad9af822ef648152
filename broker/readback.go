package broker

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev/broker/internal/wire"
)

// ReadBack hands the committed events of some partitions to fn, in each
// partition's order, from the given places up to where the log ended when it
// was called. It returns where it stopped, from where the next call can go on.
//
// What was open then it waits for. Kafka tells a partition of a transaction's end
// when it gets round to it, after the group's offsets perhaps: a reader of what is
// committed just now would miss events whose inputs have been passed already.
// So it must not be called inside a transaction that has sent to these partitions.
//
// It is for whoever must know what its own group has already produced before
// it goes on producing: ConsumerOptions.Assigned is the place to call it. fn
// must not keep the event.
func (b *Broker) ReadBack(ctx context.Context, from []Position, fn func(*Incoming)) ([]Position, error) {
	if len(from) == 0 {
		return nil, nil
	}
	places, ends, err := b.stretch(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("read back %d partitions: %w", len(from), err)
	}
	c := b.newConsumer(ConsumerOptions{})
	defer func() {
		c.stop(ErrClosed)
		c.running.Wait()
	}()
	if err := c.take(ctx, places); err != nil {
		return nil, err
	}
	for !c.reached(ends) {
		if err := c.readSome(ctx, ends, fn); err != nil {
			return nil, fmt.Errorf("read back %d partitions: %w", len(from), err)
		}
	}
	stopped := slices.Clone(from)
	for i, p := range stopped {
		stopped[i].Offset = ends[wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}]
	}
	return stopped, nil
}

// stretch is where to read from and to. What lies below the log's start is gone
// and cannot be read back.
func (b *Broker) stretch(ctx context.Context, from []Position) (places map[wire.TopicPartition]origin, ends map[wire.TopicPartition]int64, err error) {
	places = map[wire.TopicPartition]origin{}
	var first, last []wire.OffsetQuery
	for _, p := range from {
		tp := wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
		places[tp] = origin{offset: p.Offset}
		first = append(first, wire.OffsetQuery{TopicPartition: tp, Time: wire.Earliest})
		last = append(last, wire.OffsetQuery{TopicPartition: tp, Time: wire.Latest})
	}
	starts, err := b.offsetsAt(ctx, first, true)
	if err != nil {
		return nil, nil, err
	}
	for tp, start := range starts {
		places[tp] = origin{offset: max(places[tp].offset, start)}
	}
	ends, err = b.offsetsAt(ctx, last, false)
	for tp, end := range ends {
		ends[tp] = max(end, places[tp].offset)
	}
	return places, ends, err
}

// readSome hands over the next delivery's events that lie before the ends.
func (c *Consumer) readSome(ctx context.Context, ends map[wire.TopicPartition]int64, fn func(*Incoming)) error {
	d, passed, arrived, err := c.next()
	for _, p := range passed {
		c.handed(p)
		p.release()
	}
	switch {
	case err != nil:
		return err
	case d == nil && len(passed) > 0:
		return nil
	case d == nil:
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.handed(d)
	defer d.Done()
	for i := range d.Events {
		if e := &d.Events[i]; e.Offset < ends[d.part.tp] {
			if e.Err != nil {
				return fmt.Errorf("stream %s, partition %d, offset %d: %w", d.Stream, d.Partition, e.Offset, e.Err)
			}
			fn(e)
		}
	}
	return nil
}

// reached tells whether every partition has been read up to its end.
func (c *Consumer) reached(ends map[wire.TopicPartition]int64) bool {
	all := true
	c.each(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		all = all && p.mark.read >= ends[p.tp]
	})
	return all
}
