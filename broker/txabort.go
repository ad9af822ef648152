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
	if took := time.Since(x.began); !x.began.IsZero() && took > transactionTimeout {
		cause = fmt.Errorf("it took %s, and Kafka ends a transaction after %s; put less into one: %w", took.Round(time.Millisecond), transactionTimeout, cause)
	}
	err := fmt.Errorf("%w: %w", ErrAborted, cause)
	// A caller whose time is up has still to be rid of the transaction, or its
	// events would be nobody's; a consumer that closes need not be.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTimeout)
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
		if d.part.holds(d) {
			parts[d.part.tp] = d.part
		}
	}
	if len(parts) > 0 {
		t.rewind(ctx, parts)
	}
	for _, d := range x.done {
		d.Done()
	}
}

func (p *inPartition) holds(d *Delivery) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.epoch == d.epoch
}

// rewind reads partitions from where their group is. Where Kafka does not say
// in time they are given up and the group is joined anew, which asks until it
// knows: nothing may be read past what was taken back.
func (t *Transactor) rewind(ctx context.Context, parts map[wire.TopicPartition]*inPartition) {
	places, err := t.standing(ctx, parts)
	known := maps.Clone(places)
	if err == nil {
		err = t.c.askAssigned(ctx, places)
	}
	if err != nil {
		t.c.b.log.Warn("partitions are given up after an aborted transaction", "group", t.c.member.group, "partitions", len(parts), "reason", err)
		t.c.drop(func(p *inPartition) bool { return parts[p.tp] == p })
		t.c.member.startOver()
		return
	}
	for tp, p := range parts {
		p.rewind(places[tp].offset, known[tp].offset)
	}
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
			places[tp] = origin{offset: o.Offset}
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
