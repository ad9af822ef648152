package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// catchUp checks whether all facts have been folded in that were on the log when this
// session began. If so, it sets the field ready in Redis.
func (l *Ledger) catchUp(ctx context.Context, c *broker.Consumer) (ready bool, err error) {
	_, ends := l.progress.distance()
	if err := l.passMarkers(ctx, c, ends); err != nil {
		return false, err
	}
	least, _ := l.progress.known() // it has not caught up yet
	args := []any{l.prefix, least.fill}
	for partition, end := range ends {
		if l.progress.reached(partition) < end {
			return false, nil
		}
		args = append(args, partition, end)
	}
	ready, err = scriptReady.Run(ctx, l.client, []string{l.key("at")}, args...).Bool()
	switch {
	case err != nil:
		return false, fmt.Errorf("record in Redis that it has caught up: %w", err)
	case !ready:
		return false, errForgotten
	}
	return true, nil
}

// passMarkers advances the offsets past records that are not facts. If the last records of
// a partition are markers of transactions, the consumer reads them but delivers nothing.
func (l *Ledger) passMarkers(ctx context.Context, c *broker.Consumer, ends map[int32]int64) error {
	b := &batch{parts: map[int32]*batchPart{}}
	for _, at := range c.Positions() {
		if folded := l.upTo(at.Partition); folded < ends[at.Partition] && folded < at.Offset {
			b.parts[at.Partition] = &batchPart{partition: at.Partition, from: folded, next: at.Offset}
		}
	}
	return l.apply(ctx, b)
}

// check returns errForgotten if Redis has lost facts. Nearly always it has not, which plain commands show at a
// fraction of a script's cost in the laptop's Redis. Only the script can mark Redis as incomplete.
func (l *Ledger) check(ctx context.Context) error {
	least, _ := l.progress.known() // it fails too while the error of an earlier session is not over
	var at *glance
	_, err := l.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		at = glanceAt(ctx, pipe, l.prefix)
		return nil
	})
	whole := err == nil && at.isCurrent(least)
	if err == nil && !whole {
		whole, err = scriptCheck.Run(ctx, l.client, []string{l.key("at")}, l.prefix, least.fill, least.sum).Bool()
	}
	switch {
	case err != nil:
		return fmt.Errorf("ask redis how far it is: %w", err)
	case !whole:
		return errForgotten
	}
	return nil
}

// batch is a set of facts that are folded together.
type batch struct {
	parts      map[int32]*batchPart
	deliveries []*broker.Delivery
	facts      int
	bytes      int
}

// batchPart is a batch's share of one partition.
type batchPart struct {
	partition int32
	from      int64 // offset up to which all facts have been folded
	next      int64
	facts     []fold.Fact
}

// A batch gets one lane for each laneFacts facts, and at most mostLanes.
const (
	laneFacts = 1024
	mostLanes = 3
)

// deal divides a batch's partitions among lanes of about the same size.
func (b *batch) deal() []*batch {
	lanes := make([]*batch, max(1, min(b.facts/laneFacts, mostLanes, len(b.parts))))
	if len(lanes) == 1 {
		return []*batch{b}
	}
	for i := range lanes {
		lanes[i] = &batch{parts: map[int32]*batchPart{}}
	}
	large := slices.SortedFunc(maps.Values(b.parts), func(a, b *batchPart) int { return len(b.facts) - len(a.facts) })
	for _, p := range large {
		least := slices.MinFunc(lanes, func(a, b *batch) int { return a.facts - b.facts })
		least.parts[p.partition] = p
		least.facts += len(p.facts)
	}
	return lanes
}

// cut returns some of the facts, with the next offset of each of their partitions. It leaves
// out facts that have been folded.
func (b *batch) cut(atOnce int, folded func(int32) int64) []*batchPart {
	var parts []*batchPart
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
		some := &batchPart{partition: partition, from: from, next: p.next, facts: p.facts}
		if n := max(atOnce, 1); len(p.facts) > n {
			some.facts, some.next = p.facts[:n], p.facts[n].Offset
		}
		atOnce -= len(some.facts)
		parts = append(parts, some)
	}
	slices.SortFunc(parts, func(a, b *batchPart) int { return int(a.partition - b.partition) })
	return parts
}

// hasGap reports whether the batch misses facts that come directly after the folded facts of
// some partition.
func (b *batch) hasGap(parts []*batchPart, folded func(int32) int64) bool {
	return slices.ContainsFunc(parts, func(p *batchPart) bool {
		of := b.parts[p.partition]
		return of != nil && folded(p.partition) < of.from
	})
}

// release releases the memory of the deliveries.
func (b *batch) release() {
	for _, d := range b.deliveries {
		d.Done()
	}
}

// gather waits for facts, up to the limit, and returns all that have arrived.
func (l *Ledger) gather(ctx context.Context, c *broker.Consumer, limit time.Duration) (*batch, error) {
	b, err := l.poll(ctx, c, limit)
	if err == nil {
		l.takeOwn(b)
	}
	return b, err
}

// poll waits for facts from the consumer, or for an own fact.
func (l *Ledger) poll(ctx context.Context, c *broker.Consumer, limit time.Duration) (*batch, error) {
	b := &batch{parts: map[int32]*batchPart{}}
	wait, cancel := l.recheck.withTimeout(ctx, limit)
	if l.ownFacts.any() {
		cancel()
	}
	d, err := c.Poll(wait)
	cancel()
	for ; err == nil; d, err = c.Poll(wait) { // wait is cancelled, so this does not wait
		if err := l.addDelivery(b, d); err != nil {
			return b, err
		}
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

// addDelivery adds the facts of a delivery to a batch, without those that are applied already.
func (l *Ledger) addDelivery(b *batch, d *broker.Delivery) error {
	b.deliveries = append(b.deliveries, d)
	from := l.upTo(d.Partition)
	l.memory.note(d)
	if err := l.checkOld(d, from); err != nil || d.Next() <= from {
		return err
	}
	p := b.parts[d.Partition]
	if p == nil {
		p = &batchPart{partition: d.Partition, from: from}
		b.parts[d.Partition] = p
	}
	p.next = d.Next()
	for i := range d.Events {
		e := &d.Events[i]
		if e.Offset < from {
			continue
		}
		f, kind := read(e, d.Partition)
		switch {
		case kind == legible && broker.PartitionOf(e.Key, l.partitions) != d.Partition:
			return misplacedError(f, l.partitions, broker.PartitionOf(e.Key, l.partitions))
		case kind == legible:
			p.facts = append(p.facts, f)
		case kind == illegible:
			l.skip(d, e)
		}
		b.facts++
		b.bytes += len(e.Data)
	}
	return nil
}

// checkOld checks the part of a delivery that has been folded. It returns an error if the log differs,
// or if facts are missing.
func (l *Ledger) checkOld(d *broker.Delivery, from int64) error {
	for i := range d.Events {
		e := &d.Events[i]
		switch {
		case errors.Is(e.Err, broker.ErrCut):
			return fmt.Errorf("%w: partition %d: %w", ErrCut, d.Partition, e.Err)
		case errors.Is(e.Err, broker.ErrDeleted):
			return fmt.Errorf("%w: partition %d: %w", errGone, d.Partition, e.Err)
		case e.Offset >= from:
			return nil
		}
		if err := l.memory.readBack(e, d.Partition); err != nil {
			return err
		}
	}
	return nil
}

// skip counts a fact that cannot be read and is not folded. Only the first such fact is logged,
// because many may exist, and all of them are read again when Redis is filled again.
func (l *Ledger) skip(d *broker.Delivery, e *broker.Incoming) {
	l.metrics.illegible.Inc()
	l.skipLogged.Do(func() {
		reason := e.Err
		if reason == nil {
			reason = errors.New("it names no recipe and no model, or its record key does not match the name")
		}
		l.log.Warn("ledger: a fact cannot be read; skipping it and others like it", "stream", d.Stream, "partition", d.Partition, "offset", e.Offset, "reason", reason)
	})
}

// mostRows and mostBytes limit the unwritten changes of a partition: the rows that one
// script writes, and the memory.
const (
	mostRows  = 16 << 10
	mostBytes = 16 << 20
)

// unwritten holds the changes that a range of facts of one partition makes to makings and
// models, until Redis has them. A ledger that is far behind writes only from time to time:
// then only the last state of a making is written, and no runs that it has forgotten since.
type unwritten struct {
	partition  int32
	from, next int64
	makings    map[string]*folding
	models     map[string]*modelFolding
	facts      int
	bytes      int
	last       *lastFact // nil if the range has none
}

// fold folds facts, which must be in the order of their offsets.
func (u *unwritten) fold(p *batchPart) {
	for i := range p.facts {
		f := &p.facts[i]
		if f.Model != "" {
			u.models[f.Model].apply(*f)
		} else {
			u.makings[tidemill.RunKey(f.Recipe, f.Key)].apply(*f)
		}
		u.bytes += len(f.Data)
	}
	if n := len(p.facts); n > 0 {
		last := lastOf(&p.facts[n-1])
		u.last = &last
	}
	u.facts += len(p.facts)
	u.next = p.next
}

// rows returns about how many rows are to be written.
func (u *unwritten) rows() int {
	n := len(u.makings) + len(u.models)
	for _, f := range u.makings {
		n += len(f.ended)
	}
	for _, f := range u.models {
		n += len(f.registered) + len(f.judged)
	}
	return n
}

// isDue reports whether the changes are to be written now. Near the end of the log they always are.
func (u *unwritten) isDue(end int64, far bool, rows int) bool {
	return !far || u.next >= end || u.bytes >= mostBytes || u.rows() >= rows
}

// changes returns the changes to be written.
func (u *unwritten) changes() (*changes, error) {
	c := &changes{partition: u.partition, from: u.from, next: u.next, last: u.last,
		states: make(map[place][]byte, len(u.makings)+len(u.models)), records: map[string][]string{}}
	for _, f := range u.makings {
		if err := c.add(f); err != nil {
			return nil, fmt.Errorf("write the making of %s: %w", f.member, err)
		}
	}
	for _, f := range u.models {
		if err := c.addModel(f); err != nil {
			return nil, fmt.Errorf("write model %s: %w", f.model.Name, err)
		}
	}
	c.stampEntries()
	return c, nil
}
