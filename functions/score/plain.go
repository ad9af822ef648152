package score

import (
	"context"
	"time"

	"tidemill.dev/broker"
)

// send is commit without transactions: what a batch ends ends when all that it
// sends has been acknowledged. Several batches are on their way at once, but for
// those with something that is parked or comes back: what is known of that must
// not run ahead of the log.
func (s *session) send(b *batch) error {
	s.sift(b)
	alone := b.parks()
	if alone {
		if err := s.p.Flush(s.life); err != nil {
			return err
		}
	}
	b.left.Store(1)
	err := s.put(s.life, plain{s.p, b}, b)
	b.told(broker.Receipt{}, err)
	if alone && err == nil {
		err = s.p.Flush(s.life)
	}
	return err
}

// parks tells whether anything is parked or comes back.
func (b *batch) parks() bool {
	for i := range b.items {
		if it := &b.items[i]; it.held != nil || it.verdict == parked {
			return true
		}
	}
	return false
}

// plain is a producer as a sink: each output is answered by itself.
type plain struct {
	p *broker.Producer
	b *batch
}

// Send sends an event that its batch waits for.
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

// newBatch is one whose outputs' answers are counted.
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

// acknowledged ends a batch whose outputs all have their answers. Batches end in
// any order; the group's offset moves past them in theirs.
func (s *session) acknowledged(b *batch) {
	s.noteAlone(b)
	s.counted(b, time.Now())
	s.release(b)
}

// noteAlone lets the next commits say what a successor must know. An older batch
// that ends behind a newer one says nothing: what is said must not go back.
func (s *session) noteAlone(b *batch) {
	s.noting.Lock()
	defer s.noting.Unlock()
	for i := range b.parts {
		p := &b.parts[i]
		if t := p.tenure; p.live && t.said < b.seq {
			t.said = b.seq
			t.offset = max(t.offset, p.next)
			t.held.committed(t.offset)
			// A partition that is gone takes with it what could be said of it.
			_ = s.c.Note(s.conf.From, t.partition, t.note().text(b.facts))
		}
	}
}
