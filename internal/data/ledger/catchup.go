package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// applied asks Redis how far each partition is.
func (l *Ledger) applied(ctx context.Context) (map[int32]int64, error) {
	fields, err := l.client.HGetAll(ctx, l.key("at")).Result()
	if err != nil {
		return nil, fmt.Errorf("ask redis how far it is: %w", err)
	}
	return placesIn(fields)
}

// placesIn reads how far each partition is.
func placesIn(fields map[string]string) (map[int32]int64, error) {
	all := map[int32]int64{}
	for name, value := range fields {
		partition, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			continue // sum and ready
		}
		if all[int32(partition)], err = strconv.ParseInt(value, 10, 64); err != nil {
			return nil, fmt.Errorf("read how far redis is: %w", err)
		}
	}
	return all, nil
}

// catchUp looks whether all has been folded in that was on the log when this
// began, and says so in Redis if it is.
func (l *Ledger) catchUp(ctx context.Context, c *broker.Consumer) (ready bool, err error) {
	_, ends := l.progress.distance()
	if err := l.passMarkers(ctx, c, ends); err != nil {
		return false, err
	}
	args := []any{l.prefix}
	for partition, end := range ends {
		if l.progress.reached(partition) < end {
			return false, nil
		}
		args = append(args, partition, end)
	}
	ready, err = scriptReady.Run(ctx, l.client, []string{l.key("at")}, args...).Bool()
	switch {
	case err != nil:
		return false, fmt.Errorf("tell redis that it is caught up: %w", err)
	case !ready:
		return false, errForgotten
	}
	return true, nil
}

// passMarkers applies what is read and holds no fact: the markers of
// transactions bring no delivery when they are the last on the log.
func (l *Ledger) passMarkers(ctx context.Context, c *broker.Consumer, ends map[int32]int64) error {
	b := &batch{parts: map[int32]*part{}}
	for _, at := range c.Positions() {
		if folded := l.upTo(at.Partition); folded < ends[at.Partition] && folded < at.Offset {
			b.parts[at.Partition] = &part{partition: at.Partition, from: folded, next: at.Offset}
		}
	}
	return l.apply(ctx, b)
}

// check asks whether Redis still has what it had.
func (l *Ledger) check(ctx context.Context) error {
	sum, _ := l.progress.known()
	fields, err := l.client.HMGet(ctx, l.key("at"), "sum", "ready").Result()
	if err != nil {
		return fmt.Errorf("ask redis how far it is: %w", err)
	}
	if !holds(fields, sum) {
		return errForgotten
	}
	return nil
}

// holds reports whether Redis is caught up and has all that is known of. The
// fields are sum and ready.
func holds(fields []any, known int64) bool {
	text, _ := fields[0].(string)
	sum, _ := strconv.ParseInt(text, 10, 64)
	return fields[1] != nil && sum >= known
}

// forget takes all away that Redis holds of facts that the log does not have.
func (l *Ledger) forget(ctx context.Context, ends map[int32]int64) error {
	args := []any{l.prefix}
	for partition, end := range ends {
		args = append(args, partition, end)
	}
	if err := scriptForget.Run(ctx, l.client, []string{l.key("at")}, args...).Err(); err != nil {
		return fmt.Errorf("take the facts of a former stream out of redis: %w", err)
	}
	return nil
}

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
	facts     []fold.Fact
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

// mostRows and mostBytes bound what is kept unwritten of a partition: what one
// script writes, and the memory.
const (
	mostRows  = 16 << 10
	mostBytes = 16 << 20
)

// unwritten is what the facts of a stretch of one partition make of its makings
// and models, for as long as Redis does not have it. Whoever is far behind writes
// only now and then: of the many facts of a making, and of the many runs that it
// has forgotten since, nothing is written but what is left in the end.
type unwritten struct {
	partition  int32
	from, next int64
	makings    map[string]*folding
	models     map[string]*lineage
	facts      int
	bytes      int
}

// fold folds the facts in, which come in their order.
func (u *unwritten) fold(p *part) {
	for i := range p.facts {
		f := &p.facts[i]
		if f.Model != "" {
			u.models[f.Model].apply(*f)
		} else {
			u.makings[tidemill.RunKey(f.Recipe, f.Key)].apply(*f)
		}
		u.bytes += len(f.Data)
	}
	u.facts += len(p.facts)
	u.next = p.next
}

// rows is how much there is to write, about.
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

// due reports whether it is to be written now: near the end of the log that is
// always so.
func (u *unwritten) due(end int64, far bool, rows int) bool {
	return !far || u.next >= end || u.bytes >= mostBytes || u.rows() >= rows
}

// changes are what has to be written.
func (u *unwritten) changes() (*changes, error) {
	c := &changes{partition: u.partition, from: u.from, next: u.next,
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
