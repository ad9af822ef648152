package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// abort gives up what the transaction has done. The next one opens the
// transactional id anew, which makes Kafka abort this one; it happens at once,
// so that readers are not held up.
func (t *Transactor) abort(ctx context.Context, x *Tx, cause error) error {
	t.p.tx.poison(cause)
	t.opened = false
	if errors.Is(cause, kafka.UnknownMemberId) {
		t.c.member.startOver() // the group has said it here first
	}
	if took := time.Since(x.began); !x.began.IsZero() && took > t.c.b.transactionTimeout {
		cause = fmt.Errorf("it took %s, and Kafka ends a transaction after %s; put less into one: %w", took.Round(time.Millisecond), t.c.b.transactionTimeout, cause)
	}
	err := fmt.Errorf("%w: %w", ErrAborted, cause)
	// A caller whose time is up has still to be rid of the transaction, or its
	// events would be nobody's; a consumer that closes need not be.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.c.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(t.c.ctx, cancel)()
	if t.p.tx.id != "" {
		if open := t.begin(ctx); open != nil {
			err = errors.Join(err, open)
		}
	}
	t.takeBack(ctx, x)
	return err
}

// takeBack makes the consumer read on from where the group is, which after an
// outcome in doubt may be before or behind the transaction. What the consumer
// has lost or taken back meanwhile is no longer the transaction's.
func (t *Transactor) takeBack(ctx context.Context, x *Tx) {
	parts := map[wire.TopicPartition]*inPartition{}
	for _, d := range x.done {
		if d.part.stands(d.epoch) {
			parts[d.part.tp] = d.part
		}
	}
	for _, m := range x.marks {
		if m.home.stands(m.epoch) {
			parts[m.home.tp] = m.home
		}
	}
	for _, n := range x.notes {
		if n.p.stands(n.epoch) {
			parts[n.p.tp] = n.p
		}
	}
	if len(parts) > 0 {
		t.rewind(ctx, parts)
	}
	for _, d := range x.done {
		d.Done()
	}
}

// rewind reads partitions from where their group is. Where Kafka does not say
// in time they are given up and the group is joined anew, which asks until it
// knows: nothing may be read past what was taken back.
func (t *Transactor) rewind(ctx context.Context, parts map[wire.TopicPartition]*inPartition) {
	places, err := t.standing(ctx, parts)
	if err == nil {
		err = t.c.readAnew(ctx, parts, places)
	}
	if err != nil {
		t.c.b.log.Warn("partitions are given up after an aborted transaction", "group", t.c.member.group, "partitions", len(parts), "reason", err)
		t.c.giveUp(parts)
		t.c.member.startOver()
	}
}

// readAnew reads partitions from the given places, or from where the hook wants
// them to be read.
func (c *Consumer) readAnew(ctx context.Context, parts map[wire.TopicPartition]*inPartition, known map[wire.TopicPartition]origin) error {
	c.hooks.Lock()
	defer c.hooks.Unlock()
	asked := map[wire.TopicPartition]origin{}
	for tp, p := range parts {
		if p.remains() {
			asked[tp] = known[tp]
		}
	}
	if err := c.askAssigned(ctx, asked); err != nil {
		return err
	}
	for tp, p := range parts {
		from, ok := asked[tp]
		if !ok {
			from = known[tp] // nothing will be read of it, and no more be committed than is known
		}
		p.rewind(from.offset, known[tp])
	}
	return nil
}

// standing is where the group is, from where partitions are read on.
func (t *Transactor) standing(ctx context.Context, parts map[wire.TopicPartition]*inPartition) (map[wire.TopicPartition]origin, error) {
	known, err := t.c.b.committedOffsets(ctx, t.c.member.group, slices.Collect(maps.Keys(parts)))
	if err != nil {
		return nil, err
	}
	places := make(map[wire.TopicPartition]origin, len(parts))
	for tp, p := range parts {
		places[tp] = origin{offset: p.beginning()}
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[tp] = origin{o.Offset, o.Metadata}
		}
	}
	return places, nil
}

// beginning is where the partition is read from while its group has committed
// nothing.
func (p *inPartition) beginning() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.committed
}
