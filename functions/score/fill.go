package score

import (
	"context"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// sink is what outputs go to: a transaction, or a producer.
type sink interface {
	outbox
	Send(ctx context.Context, stream string, v *broker.View)
}

// fill gives a transaction a batch: first all that it ends, because what fails
// behind that is taken back whole, and then what it sends. The notes are given
// again at the end, when it is clear what has come back.
func (s *session) fill(ctx context.Context, tx *broker.Tx, b *batch) error {
	all := func(*tenure) bool { return true }
	if err := s.notes(tx, b, all); err != nil {
		return err
	}
	for _, t := range b.ends {
		if t.tenure.live {
			tx.Done(t.d)
		}
	}
	if err := s.put(ctx, tx, b); err != nil {
		return err
	}
	return s.notes(tx, b, all)
}

// put sends what follows from a batch.
func (s *session) put(ctx context.Context, to sink, b *batch) error {
	if err := s.putLate(ctx, to, b); err != nil {
		return err
	}
	b.park(ctx, to)
	for i := range b.items {
		it := &b.items[i]
		if err := s.putItem(ctx, to, b, int32(i), it); err != nil {
			return err
		}
		if it.held != nil && it.verdict != waiting && it.verdict != lost {
			t := it.turn.tenure
			t.back = append(t.back, it.held)
		}
	}
	for i := range b.parts {
		if t := b.parts[i].tenure; b.parts[i].live {
			if err := t.held.returned(ctx, to, s.source, t.back); err != nil {
				return err
			}
		}
	}
	return s.tell(b, func(v *broker.View) { to.Send(ctx, tidemill.StreamProgress, v) })
}

func (s *session) putItem(ctx context.Context, to sink, b *batch, i int32, it *item) error {
	t := it.turn.tenure
	switch it.verdict {
	case scored:
		to.SendTo(ctx, s.conf.To, t.to, s.out.scored(b, it), s.receipt(t, i))
	case passed:
		to.SendTo(ctx, s.conf.To, t.to, s.out.passed(it), s.receipt(t, i))
	case dead:
		return s.putDead(ctx, to, it)
	}
	return nil
}

// putDead gives an event up, once its delivery ends. Outputs are read back by who
// takes a partition over, letters are not: one that stood there while the group's
// offset had yet to pass its event would be written again, or, worse, its event
// would be scored, since its model has come meanwhile. What was held comes back
// with its letter at once.
func (s *session) putDead(ctx context.Context, to sink, it *item) error {
	if it.turn.d != nil && !it.turn.ends {
		it.turn.letters = append(it.turn.letters, *it) // which its delivery keeps the memory of
		return nil
	}
	v, err := s.letter(it)
	if err == nil {
		to.Send(ctx, tidemill.StreamDeadLetters, &v)
	}
	return err
}

// putLate writes the letters of the deliveries that end with the batch.
func (s *session) putLate(ctx context.Context, to sink, b *batch) error {
	for _, t := range b.ends {
		t.ends = true
		for i := range t.letters {
			if !t.tenure.live {
				break
			}
			if err := s.putDead(ctx, to, &t.letters[i]); err != nil {
				return err
			}
		}
		t.letters = nil
	}
	return nil
}

// receipt asks where the last output of a partition lies; the others lie before
// it. Without transactions nothing is read back.
func (s *session) receipt(t *tenure, i int32) func(broker.Receipt) {
	if i != t.last || s.p != nil {
		return nil
	}
	return func(r broker.Receipt) { t.sent = r.Offset + 1 }
}

// tell says which versions have begun to score.
func (s *session) tell(b *batch, send func(*broker.View)) error {
	now := time.Now()
	for i := range b.swaps {
		if w := &b.swaps[i]; !w.lost {
			v, err := w.event(s.o.Names, s.conf.Name, s.conf.From, now)
			if err != nil {
				return err
			}
			send(&v)
		}
	}
	return nil
}
