package score

import (
	"context"
	"time"

	"tidemill.dev/broker"
)

// send is commit without transactions: the deliveries of a batch end when all its outputs are
// acknowledged. Several batches may be on their way at once, except those with events that are
// parked or come back, because the index must not run ahead of the log.
func (s *session) send(b *batch) error {
	s.dropLost(b)
	alone := b.parks()
	if alone {
		if err := s.p.Flush(s.life); err != nil {
			return err
		}
	}
	b.left.Store(1)
	err := s.sendResults(s.life, plain{s.p, b}, b)
	b.told(broker.Receipt{}, err)
	if alone && err == nil {
		err = s.p.Flush(s.life)
	}
	return err
}

// parks reports whether events of the batch are parked or come back.
func (b *batch) parks() bool {
	for i := range b.items {
		if it := &b.items[i]; it.held != nil || it.verdict == postponed {
			return true
		}
	}
	return false
}

// plain is a producer as an output. Each event is acknowledged by itself.
type plain struct {
	p *broker.Producer
	b *batch
}

// Send sends an event that the batch waits for.
func (o plain) Send(ctx context.Context, stream string, v *broker.View) {
	o.b.left.Add(1)
	o.p.Send(ctx, stream, v, o.b.told)
}

// SendTo sends an event to a partition of the caller's choice.
func (o plain) SendTo(ctx context.Context, stream string, partition int32, v *broker.View, done func(broker.Receipt)) {
	o.b.left.Add(1)
	if done == nil {
		o.p.SendTo(ctx, stream, partition, v, o.b.told)
		return
	}
	o.p.SendTo(ctx, stream, partition, v, func(r broker.Receipt, err error) {
		if err == nil {
			done(r)
		}
		o.b.told(r, err)
	})
}

// newBatch returns a batch that counts the acknowledgements of its outputs.
func (s *session) newBatch() *batch {
	b := &batch{arenas: make([][]byte, len(s.workers))}
	b.told = func(_ broker.Receipt, err error) {
		if err != nil {
			b.failed.Store(true)
			s.end(err)
		}
		if b.left.Add(-1) == 0 && !b.failed.Load() {
			s.acknowledged(b)
		}
	}
	return b
}

// acknowledged ends a batch when all its outputs are acknowledged. Batches end in any
// order; the group's offset passes them in theirs.
func (s *session) acknowledged(b *batch) {
	s.noteAlone(b)
	s.counted(b, time.Now())
	s.release(b)
}

// noteAlone sets the note for the next commits. An older batch that ends after a newer
// one sets none, because a note must not go back.
func (s *session) noteAlone(b *batch) {
	s.noting.Lock()
	defer s.noting.Unlock()
	for i := range b.parts {
		p := &b.parts[i]
		if t := p.of; p.live && t.notedBatch < b.seq {
			t.notedBatch = b.seq
			t.offset = max(t.offset, p.next)
			t.held.committed(t.offset)
			// The note of a partition that is gone is not needed.
			_ = s.c.Note(s.conf.From, t.partition, t.offsetNote().text(b.facts))
		}
	}
}
