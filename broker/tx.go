package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// Tx is one open transaction. It is valid while the function that Do was given
// runs.
type Tx struct {
	outputs
	t     *Transactor
	began time.Time
	done  []*Delivery
	marks []txMark
	notes map[wire.TopicPartition]txNote
}

// Done makes a delivery part of the transaction: all its events end with it.
// Deliveries of one partition are given in the order in which Poll returned
// them, and none is left out whose events have not all ended; those that have
// may be left out. Once given, a delivery is the transaction's, which ends it
// whatever the outcome.
func (x *Tx) Done(d *Delivery) { x.done = append(x.done, d) }

// Mark commits a place for the consumer's group inside the transaction: one in
// the parked companion of a stream that is read, which the group itself need
// not read. It belongs to the companion's home, the partition of the same number
// of the stream itself. If the home is not this consumer's, or ceases to be
// before the offsets are committed, the transaction fails; and if it fails, the
// home is taken back as that of a delivery is. The last of several marks of one
// place counts.
func (x *Tx) Mark(p Position) {
	m, err := x.t.c.mark(p)
	if err != nil {
		x.p.tx.poison(fmt.Errorf("mark %s/%d: %w", p.Stream, p.Partition, err))
		return
	}
	x.marks = append(slices.DeleteFunc(x.marks, func(o txMark) bool { return o.at == m.at }), m)
}

// Mine tells whether a place can be marked now: whether its home is read here. It
// may not be yet while Assigned is being asked, and not any more before Gone is
// called.
func (x *Tx) Mine(p Position) bool {
	_, err := x.t.c.mark(p)
	return err == nil
}

// txMark is a place that a transaction commits without having read it.
type txMark struct {
	at     wire.TopicPartition
	offset int64
	home   *inPartition
	epoch  uint64
}

func (c *Consumer) mark(p Position) (txMark, error) {
	stream, parked := tidemill.CutParked(p.Stream)
	if !parked || slices.Contains(c.opt.Streams, p.Stream) {
		return txMark{}, errors.New("only a place in a parked companion can be marked, and only if the group does not read it; end deliveries instead")
	}
	c.mu.Lock()
	home := c.parts[wire.TopicPartition{Topic: c.b.names.Topic(stream), Partition: p.Partition}]
	c.mu.Unlock()
	if home == nil {
		return txMark{}, errTakenAway
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.gone {
		return txMark{}, errTakenAway
	}
	at := wire.TopicPartition{Topic: c.b.names.Topic(p.Stream), Partition: p.Partition}
	return txMark{at: at, offset: p.Offset, home: home, epoch: home.epoch}, nil
}

// outputs are what a transaction sends.
type outputs struct {
	p    *Producer
	sent []*output
	told func(Receipt, error) // p.sound
}

// output is an event whose sender wants to know where it came to lie.
type output struct {
	at   Receipt
	done func(Receipt)
}

// Send publishes an event as part of the transaction. Its bytes are copied. An
// event that cannot be sent makes the transaction fail.
func (x *outputs) Send(ctx context.Context, stream string, v *View) {
	x.p.Send(ctx, stream, v, x.told)
}

// SendTo is Send to a partition of the caller's choice. done, which may be nil,
// is called with where the event lies: once the transaction is committed, before
// Do returns and by its goroutine, in the order of the calls. If the transaction
// fails it is not called.
func (x *outputs) SendTo(ctx context.Context, stream string, partition int32, v *View, done func(Receipt)) {
	if done == nil {
		x.p.SendTo(ctx, stream, partition, v, x.told)
		return
	}
	o := &output{done: done}
	x.sent = append(x.sent, o)
	x.p.SendTo(ctx, stream, partition, v, func(r Receipt, err error) {
		if o.at = r; err == nil && r.Offset < 0 {
			err = fmt.Errorf("stream %s, partition %d: Kafka does not say where an event lies", r.Stream, r.Partition)
		}
		x.told(r, err)
	})
}

// outputsOf makes them. The one function serves all events: a method's value is
// made anew each time it is named.
func outputsOf(p *Producer) outputs { return outputs{p: p, told: p.sound} }

// sound makes the transaction fail for an event that was not sent.
func (p *Producer) sound(_ Receipt, err error) {
	if err != nil {
		p.tx.poison(err)
	}
}

// tell says where the events lie. The flush that came before it has made sure
// that all answers are in.
func (x *outputs) tell() {
	for _, o := range x.sent {
		o.done(o.at)
	}
}

// offsetsByTopic gathers offsets as Kafka wants them, one of a partition.
type offsetsByTopic map[string][]kafka.TxnOffsetCommit

func (o offsetsByTopic) add(tp wire.TopicPartition, offset int64, metadata string) {
	others := slices.DeleteFunc(o[tp.Topic], func(c kafka.TxnOffsetCommit) bool { return c.Partition == int(tp.Partition) })
	o[tp.Topic] = append(others, kafka.TxnOffsetCommit{Partition: int(tp.Partition), Offset: offset, Metadata: metadata})
}
