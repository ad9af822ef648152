package score

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev/broker"
)

// committer commits batches in the order in which they were computed.
func (s *session) committer() {
	for b := range s.computed {
		b.stamp = time.Now().UTC().AppendFormat(b.stamp[:0], time.RFC3339Nano)
		if err := s.hand(b); err != nil {
			s.end(err)
			return
		}
		s.bell.commits(-1)
	}
}

// hand sees a batch to its end, or to its answers.
func (s *session) hand(b *batch) (err error) {
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

// release gives the memory of a batch back, and that of deliveries that nobody
// else ends.
func (s *session) release(b *batch) {
	for _, d := range b.drops {
		d.Done()
	}
	for _, t := range b.ends {
		t.d.Done() // once more, where it has been committed
	}
	s.free <- b
}

// commit commits a batch in one transaction. What has been taken away since it
// was computed is left out: it comes again, here or elsewhere. If the transaction
// fails all of its partitions are read anew; if it could not even begin, none is,
// and the batch is tried again.
func (s *session) commit(b *batch) error {
	for {
		if !s.sift(b) {
			return nil
		}
		if err := s.announce(b); err != nil {
			return err
		}
		called, err := s.do(b, s.fill)
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

// succeeded takes in that a batch has been committed.
func (s *session) succeeded(b *batch) {
	s.aborts = 0
	s.committed.Store(b.seq)
	for i := range b.parts {
		if p := &b.parts[i]; p.live {
			p.tenure.offset = max(p.tenure.offset, p.next)
			p.tenure.passed(p.tenure.sent, p.whole)
		}
	}
	s.counted(b, time.Now())
}

// sift finds the parts of a batch that are still ours, and tells whether there
// are any.
func (s *session) sift(b *batch) bool {
	any := false
	for i := range b.parts {
		p := &b.parts[i]
		p.live = s.current(p)
		p.tenure.live, p.tenure.sent, p.tenure.last, p.tenure.back = p.live, 0, -1, p.tenure.back[:0]
		any = any || p.live
	}
	for i := range b.items {
		it := &b.items[i]
		switch t := it.turn.tenure; {
		case !t.live:
			it.verdict = lost
		case it.verdict == scored || it.verdict == passed:
			t.last = int32(i)
		}
	}
	for i := range b.swaps {
		b.swaps[i].lost = !b.swaps[i].tenure.live
	}
	return any
}

// current tells whether a part's tenure has not ended. A delivery knows it first;
// a tenure that has none knows it before another can take its place.
func (s *session) current(p *part) bool {
	return !s.tenures.ended(p.tenure) && (p.turn.d == nil || p.turn.d.Current())
}

// announce commits a note for partitions that have none before anything is sent
// for them. Without it a successor would not know from where to read back what
// was sent but never committed.
func (s *session) announce(b *batch) error {
	for {
		var first []*tenure
		for i := range b.parts {
			if t := b.parts[i].tenure; t.live && !t.noted {
				first = append(first, t)
			}
		}
		if len(first) == 0 {
			return nil
		}
		_, err := s.do(b, func(_ context.Context, tx *broker.Tx, b *batch) error {
			return s.notes(tx, b, func(t *tenure) bool { return !t.noted })
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
		s.sift(b)
	}
}

// do runs a transaction, and tells whether it got as far as to have anything.
func (s *session) do(b *batch, fill func(context.Context, *broker.Tx, *batch) error) (called bool, err error) {
	s.tenures.enter()
	defer s.tenures.leave()
	err = s.t.Do(s.life, func(tx *broker.Tx) error {
		called = true
		return fill(s.life, tx, b)
	})
	return called, err
}

// aborted counts a transaction that failed, and waits a little if it was not the
// first. An error that it returns is for good.
func (s *session) aborted(err error) error {
	if !errors.Is(err, broker.ErrAborted) || s.life.Err() != nil {
		return fmt.Errorf("commit what was scored: %w", err)
	}
	s.counts.aborted.Add(1)
	s.failing(err)
	s.log.Warn("a transaction was aborted, and its events are scored again", "group", Group(s.conf.Name), "reason", err)
	wait := time.NewTimer(min(50*time.Millisecond<<min(s.aborts, 6), 2*time.Second))
	defer wait.Stop()
	if s.aborts++; s.aborts == 1 {
		return nil
	}
	select {
	case <-wait.C:
	case <-s.life.Done():
	}
	return nil
}

// notes says, of each partition that is ours, what its next owner must know. All
// are said before any of it fails: a partition that the transaction has nothing of
// is not taken back with it, and its deliveries would end unscored with the batch.
func (s *session) notes(tx *broker.Tx, b *batch, which func(*tenure) bool) error {
	var err error
	for i := range b.parts {
		p := &b.parts[i]
		if !p.tenure.live || !which(p.tenure) {
			continue
		}
		tx.Note(s.conf.From, p.tenure.partition, p.tenure.note().text(b.facts))
		if !s.current(p) { // or the note would be that of another tenure
			err = errTakenAway
		}
	}
	return err
}

var errTakenAway = errors.New("a partition was taken away")
