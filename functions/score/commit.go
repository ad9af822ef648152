package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/triggers/deadletters"
)

// committer commits batches in the order in which they were computed.
func (s *session) committer() {
	for b := range s.computed {
		b.stamp = time.Now().UTC().AppendFormat(b.stamp[:0], time.RFC3339Nano)
		if err := s.finishBatch(b); err != nil {
			s.end(err)
			return
		}
		s.wake.commits(-1)
	}
}

// finishBatch commits or sends a batch.
func (s *session) finishBatch(b *batch) (err error) {
	switch {
	case b.idle():
	case s.p != nil:
		return s.send(b)
	default:
		err = s.commit(b)
	}
	if err == nil {
		s.release(b)
	}
	return err
}

// release frees the memory of a batch and of deliveries that have no other owner.
func (s *session) release(b *batch) {
	for _, d := range b.foreign {
		d.Done()
	}
	for _, t := range b.ends {
		t.d.Done() // a second time, if it has been committed
	}
	s.free <- b
}

// commit commits a batch in one transaction. Parts whose assignment has ended since are
// left out: they come again, here or elsewhere. If the transaction fails, all of its
// partitions are read again. If the transaction could not begin, no partition is read again, and
// the batch is tried again.
func (s *session) commit(b *batch) error {
	for {
		if !s.dropLost(b) {
			return nil
		}
		s.checkOutput(b)
		if err := s.noteFirst(b); err != nil {
			return err
		}
		called, err := s.runTx(b, s.fillTx)
		if err == nil {
			s.succeeded(b)
			return nil
		}
		if err := s.aborted(err); err != nil {
			return err
		}
		if called {
			return nil
		}
	}
}

// checkOutput asks for the topic of an output that was created again. Until it is known, the notes have the id of the old
// one, and the next owner reads the new one from its beginning. So an error does not matter: the next batch asks again.
func (s *session) checkOutput(b *batch) {
	if !slices.ContainsFunc(b.parts, func(p batchPart) bool { return p.of.moved }) {
		return
	}
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	out, err := s.o.Broker.TopicID(ctx, s.conf.To)
	if err != nil {
		return
	}
	for i := range b.parts {
		if t := b.parts[i].of; t.moved {
			t.out, t.moved = out, false
		}
	}
}

// succeeded updates the state after a commit.
func (s *session) succeeded(b *batch) {
	s.aborts = 0
	s.committed.Store(b.seq)
	for i := range b.parts {
		if p := &b.parts[i]; p.live {
			p.of.offset = max(p.of.offset, p.next)
			p.of.passed(p.of.sent, p.whole)
		}
	}
	s.counted(b, time.Now())
}

// dropLost marks the parts of a batch that are no longer ours and reports whether any is left.
func (s *session) dropLost(b *batch) bool {
	any := false
	for i := range b.parts {
		p := &b.parts[i]
		p.live = s.current(p)
		p.of.live, p.of.sent, p.of.last, p.of.back = p.live, 0, -1, p.of.back[:0]
		any = any || p.live
	}
	for i := range b.items {
		it := &b.items[i]
		switch t := it.delivery.of; {
		case !t.live:
			it.verdict = lost
		case it.verdict == scored || it.verdict == passed:
			t.last = int32(i)
		}
	}
	for i := range b.swaps {
		b.swaps[i].lost = !b.swaps[i].assignment.live
	}
	return any
}

// current reports whether a part's assignment has not ended. A delivery learns that
// first. An assignment without one learns it before another can replace it.
func (s *session) current(p *batchPart) bool {
	return !s.assignments.hasEnded(p.of) && (p.from.d == nil || p.from.d.Current())
}

// noteFirst commits a note for partitions without one before anything is sent for them. Otherwise a
// successor would not know from where to read back outputs that were sent but never committed.
func (s *session) noteFirst(b *batch) error {
	for {
		var first []*assignment
		for i := range b.parts {
			if t := b.parts[i].of; t.live && !t.noted {
				first = append(first, t)
			}
		}
		if len(first) == 0 {
			return nil
		}
		_, err := s.runTx(b, func(_ context.Context, tx *broker.Tx, b *batch) error {
			return s.writeNotes(tx, b, func(t *assignment) bool { return !t.noted })
		})
		if err == nil {
			for _, t := range first {
				t.noted = true
			}
			return nil
		}
		if err := s.aborted(err); err != nil {
			return err
		}
		s.dropLost(b)
	}
}

// runTx runs a transaction and reports whether its function was called.
func (s *session) runTx(b *batch, fill func(context.Context, *broker.Tx, *batch) error) (called bool, err error) {
	s.assignments.enter()
	defer s.assignments.leave()
	err = s.t.Do(s.life, func(tx *broker.Tx) error {
		called = true
		return fill(s.life, tx, b)
	})
	return called, err
}

// aborted counts a failed transaction, and waits a little if it was not the first. An
// error that it returns is permanent.
func (s *session) aborted(err error) error {
	if !errors.Is(err, broker.ErrAborted) || s.life.Err() != nil {
		return fmt.Errorf("commit the scores: %w", err)
	}
	s.counts.aborted.Add(1)
	s.failing(err)
	s.log.Warn("scorer: a transaction was aborted; its events are scored again", "group", Group(s.conf.Name), "reason", err)
	if s.aborts++; s.aborts > 1 {
		_ = retry.Sleep(s.life, retry.Backoff{First: 100 * time.Millisecond, Cap: 2 * time.Second}.After(s.aborts-1))
	}
	return nil
}

// writeNotes writes a note for each of our partitions: all that the next owner of the partition
// must know. It writes all notes before it returns an error: a partition without a part in the
// transaction would not be taken back with it, and its deliveries would end unscored with the
// batch.
func (s *session) writeNotes(tx *broker.Tx, b *batch, which func(*assignment) bool) error {
	var err error
	for i := range b.parts {
		p := &b.parts[i]
		if !p.of.live || !which(p.of) {
			continue
		}
		tx.Note(s.conf.From, p.of.partition, p.of.offsetNote().text(b.facts))
		if !s.current(p) { // the note would be that of another assignment
			err = errTakenAway
		}
	}
	return err
}

var errTakenAway = errors.New("a partition was taken away")

// output is a transaction or a producer.
type output interface {
	outbox
	Send(ctx context.Context, stream string, v *broker.View)
}

// fillTx fills a transaction with a batch. The deliveries come first, because after that
// a failure takes all of them back. Then it sends the outputs. The notes are written
// again at the end, when it is known which parked events have come back.
func (s *session) fillTx(ctx context.Context, tx *broker.Tx, b *batch) error {
	all := func(*assignment) bool { return true }
	if err := s.writeNotes(tx, b, all); err != nil {
		return err
	}
	for _, t := range b.ends {
		if t.of.live {
			tx.Done(t.d)
		}
	}
	if err := s.sendResults(ctx, tx, b); err != nil {
		return err
	}
	return s.writeNotes(tx, b, all)
}

// sendResults sends the results of a batch.
func (s *session) sendResults(ctx context.Context, to output, b *batch) error {
	if err := s.putLate(ctx, to, b); err != nil {
		return err
	}
	if err := b.park(ctx, to); err != nil {
		return err
	}
	for i := range b.items {
		it := &b.items[i]
		if err := s.putItem(ctx, to, b, int32(i), it); err != nil {
			return err
		}
		if it.held != nil && it.verdict != waiting && it.verdict != lost {
			t := it.delivery.of
			t.back = append(t.back, it.held)
		}
	}
	for i := range b.parts {
		if t := b.parts[i].of; b.parts[i].live {
			if err := t.held.returned(ctx, to, s.source, t.back); err != nil {
				return err
			}
		}
	}
	return s.publishSwaps(b, func(v *broker.View) { to.Send(ctx, tidemill.StreamProgress, v) })
}

func (s *session) putItem(ctx context.Context, to output, b *batch, i int32, it *item) error {
	t := it.delivery.of
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

// putDead writes a dead letter once the event's delivery ends. A new owner reads outputs back, but
// not dead letters. If a dead letter were on the log before the group's offset passed its event, it
// would be written again, or the event would even be scored because its model has come meanwhile.
// An event that was parked gets its dead letter at once.
func (s *session) putDead(ctx context.Context, to output, it *item) error {
	if it.delivery.d != nil && !it.delivery.ends {
		it.delivery.letters = append(it.delivery.letters, *it) // the delivery keeps the item's memory
		return nil
	}
	v, err := s.letter(it)
	if err == nil {
		to.Send(ctx, tidemill.StreamDeadLetters, &v)
	}
	return err
}

// putLate writes the dead letters of deliveries that end with the batch.
func (s *session) putLate(ctx context.Context, to output, b *batch) error {
	for _, t := range b.ends {
		t.ends = true
		for i := range t.letters {
			if !t.of.live {
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

// receipt returns a function that notes the offset of a partition's last output; all
// others have lower offsets. Without transactions nothing is read back.
func (s *session) receipt(t *assignment, i int32) func(broker.Receipt) {
	if i != t.last || s.p != nil {
		return nil
	}
	return t.noteSent
}

// publishSwaps publishes which versions have begun to score.
func (s *session) publishSwaps(b *batch, send func(*broker.View)) error {
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

// letter returns the dead letter of an event that cannot be scored. Its id derives from
// the event and its place, so a repeated one has the same id.
func (s *session) letter(it *item) (broker.View, error) {
	place := broker.Position{Stream: s.conf.From, Partition: it.delivery.of.partition, Offset: it.offset}
	if it.held != nil && it.held.err != nil {
		return s.missingDeadLetter(place, it.offset, it.reason)
	}
	return deadletters.New(s.o.Names, place, it.v, deadletters.Details{Scorer: s.conf.Name, Group: Group(s.conf.Name), Reason: it.reason.Error()}, time.Now())
}

// missingDeadLetter returns the dead letter of events that were parked and can no longer be read. It names their
// offsets on the input, or on the parked stream if those on the input are not known.
func (s *session) missingDeadLetter(from broker.Position, last int64, reason error) (broker.View, error) {
	data, err := json.Marshal(deadletters.Letter{Scorer: s.conf.Name, DeadLetter: broker.DeadLetter{Stream: from.Stream, Partition: from.Partition,
		Offset: from.Offset, Last: last, Group: Group(s.conf.Name), Reason: reason.Error()}})
	if err != nil {
		return broker.View{}, fmt.Errorf("write a dead letter: %w", err)
	}
	return broker.View{ID: tidemill.ID("dead-letter", Group(s.conf.Name), from.Stream, strconv.Itoa(int(from.Partition)), strconv.FormatInt(from.Offset, 10)),
		Source: s.source, Type: tidemill.TypeEventDeadLettered, Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json",
		DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrScorer, Value: s.conf.Name}}}, nil
}

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
