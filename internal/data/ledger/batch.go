package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// batch is what is folded at once.
type batch struct {
	parts      map[int32]*part
	deliveries []*broker.Delivery
	facts      int
	bytes      int
}

// part is a batch's share of one partition.
type part struct {
	partition int32
	from      int64 // all before it has been folded
	next      int64
	facts     []tidemill.Fact
}

// laneFacts make it worth while to open another lane.
const (
	laneFacts = 1024
	mostLanes = 3
)

// deal deals a batch's partitions to lanes of about the same size.
func (b *batch) deal() []*batch {
	lanes := make([]*batch, max(1, min(b.facts/laneFacts, mostLanes, len(b.parts))))
	if len(lanes) == 1 {
		return []*batch{b}
	}
	for i := range lanes {
		lanes[i] = &batch{parts: map[int32]*part{}}
	}
	large := slices.SortedFunc(maps.Values(b.parts), func(a, b *part) int { return len(b.facts) - len(a.facts) })
	for _, p := range large {
		least := slices.MinFunc(lanes, func(a, b *batch) int { return a.facts - b.facts })
		least.parts[p.partition] = p
		least.facts += len(p.facts)
	}
	return lanes
}

// cut takes some facts, and of each partition that they are of the place behind
// them. It leaves out what has been folded.
func (b *batch) cut(atOnce int, folded func(int32) int64) []*part {
	var parts []*part
	for partition, p := range b.parts {
		from := folded(partition)
		p.from = max(p.from, from)
		for len(p.facts) > 0 && p.facts[0].Offset < from {
			p.facts = p.facts[1:]
		}
		if p.next <= from {
			delete(b.parts, partition)
			continue
		}
		if atOnce <= 0 && len(parts) > 0 {
			continue
		}
		some := &part{partition: partition, from: from, next: p.next, facts: p.facts}
		if n := max(atOnce, 1); len(p.facts) > n {
			some.facts, some.next = p.facts[:n], p.facts[n].Offset
		}
		atOnce -= len(some.facts)
		parts = append(parts, some)
	}
	slices.SortFunc(parts, func(a, b *part) int { return int(a.partition - b.partition) })
	return parts
}

// lacks reports whether facts are missing between what has been folded of some
// partitions and what the batch has of them.
func (b *batch) lacks(parts []*part, folded func(int32) int64) bool {
	return slices.ContainsFunc(parts, func(p *part) bool {
		of := b.parts[p.partition]
		return of != nil && folded(p.partition) < of.from
	})
}

// done gives the memory of what was read back.
func (b *batch) done() {
	for _, d := range b.deliveries {
		d.Done()
	}
}

// gather waits for facts, as long as the limit, and takes all that have come.
func (l *Ledger) gather(ctx context.Context, c *broker.Consumer, limit time.Duration) (*batch, error) {
	b, err := l.poll(ctx, c, limit)
	if err == nil {
		l.takeOwn(b)
	}
	return b, err
}

// poll waits for facts that are read, or for one of our own.
func (l *Ledger) poll(ctx context.Context, c *broker.Consumer, limit time.Duration) (*batch, error) {
	b := &batch{parts: map[int32]*part{}}
	wait, cancel := l.doubt.within(ctx, limit)
	if l.own.any() {
		cancel()
	}
	d, err := c.Poll(wait)
	cancel()
	for ; err == nil; d, err = c.Poll(wait) { // which waits no more
		l.take(b, d)
		if b.facts >= batchFacts || b.bytes >= batchBytes {
			return b, nil
		}
	}
	if ctx.Err() != nil {
		return b, context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return b, nil
	}
	return b, err
}

// take reads the facts of a delivery that are not applied yet.
func (l *Ledger) take(b *batch, d *broker.Delivery) {
	b.deliveries = append(b.deliveries, d)
	from := l.upTo(d.Partition)
	if d.Next() <= from {
		return
	}
	p := b.parts[d.Partition]
	if p == nil {
		p = &part{partition: d.Partition, from: from}
		b.parts[d.Partition] = p
	}
	p.next = d.Next()
	for i := range d.Events {
		e := &d.Events[i]
		if e.Offset < from {
			continue
		}
		f, kind := read(e, d.Partition)
		if kind == legible {
			p.facts = append(p.facts, f)
		} else if kind == illegible {
			l.skip(d, e)
		}
		b.facts++
		b.bytes += len(e.Data)
	}
}

// skip passes over a fact that cannot be read. The first is logged: there may be
// many, and they come again whenever Redis is filled in.
func (l *Ledger) skip(d *broker.Delivery, e *broker.Incoming) {
	l.metrics.illegible.Inc()
	l.torn.Do(func() {
		reason := e.Err
		if reason == nil {
			reason = errors.New("it does not name its recipe or its model, or its record's key is not that of what it names")
		}
		l.log.Warn("a fact is illegible and passed over, as others may be", "stream", d.Stream, "partition", d.Partition, "offset", e.Offset, "reason", reason)
	})
}
