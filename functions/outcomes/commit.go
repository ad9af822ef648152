package outcomes

import (
	"context"
	"errors"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
)

// marks are the offsets that the group has, by partition. The offset of a stream that is read is how far it was read, and
// its note is how far it has expired. That of the outcomes is where outcomes of a torn transaction may begin.
type marks map[partition]mark

type partition struct {
	stream string
	number int32
}

type mark struct{ offset, expired int64 }

// commit writes the outputs and the offsets in one transaction.
func (s *session) commit(ctx context.Context, now bool) error {
	s.moveRead()
	if s.out.size() == 0 && !now && time.Since(s.committed) < markEvery {
		return nil
	}
	if err := s.passOthers(ctx); err != nil {
		return err
	}
	all, full := s.now(), time.Since(s.markedAll) >= markAll
	changed := marks{}
	for p, m := range all {
		if old, ok := s.marked[p]; full || !ok || old != m {
			changed[p] = m
		}
	}
	if s.out.size() == 0 && len(changed) == 0 {
		return nil
	}
	if err := s.transact(ctx, changed); err != nil {
		return err
	}
	s.marked, s.committed = all, time.Now()
	if full {
		s.markedAll = s.committed
	}
	s.metrics.add(s)
	if s.join.crowded && time.Since(s.told) >= tellEvery {
		s.join.crowded, s.told = false, time.Now()
		further := "get none, because labels match without a field and missing is not set"
		if s.join.missing != "" || s.join.match.of.Field != "" {
			further = "get their outcome when their wait is over"
		}
		s.Logger.Warn("outcomes: more than 100 answers or waiting labels have the same match value; further answers "+further+", and further labels are dead letters", "scorer", s.Config.Name)
	}
	s.out.clear()
	if err := s.crash("committed"); err != nil {
		return err
	}
	return s.tidy()
}

// passOthers moves the offsets of the outcomes past those of other scorers, which would count as the lag of this group. No
// transaction of ours is open, so all our outcomes before the ends are committed.
func (s *session) passOthers(ctx context.Context) error {
	if time.Since(s.passed) < passEvery {
		return nil
	}
	ends, err := s.Broker.Ends(ctx, tidemill.StreamOutcomes)
	if err != nil {
		return err
	}
	s.passed = time.Now()
	for _, p := range ends {
		if int(p.Partition) < len(s.written) {
			s.written[p.Partition] = max(s.written[p.Partition], p.Offset)
		}
	}
	return nil
}

// now returns the offsets to mark.
func (s *session) now() marks {
	m := marks{}
	for _, in := range []*input{s.answers, s.labels} {
		for i := range in.read {
			m[partition{in.stream, int32(i)}] = mark{in.read[i], in.done[i]}
		}
	}
	for i, offset := range s.written {
		m[partition{tidemill.StreamOutcomes, int32(i)}] = mark{offset, 0}
	}
	return m
}

// transact runs the transaction, again after an abort. An unclear outcome ends the session, because only the log knows it.
func (s *session) transact(ctx context.Context, changed marks) error {
	backoff := retry.Backoff{First: 50 * time.Millisecond, Cap: 5 * time.Second, Jitter: 0.5}
	for {
		if err := s.crash("before"); err != nil {
			return err
		}
		after := map[int32]int64{}
		err := s.x.Do(ctx, func(tx *broker.ExclusiveTx) error { return s.fill(ctx, tx, changed, after) })
		if err == nil {
			for partition, offset := range after {
				s.written[partition] = max(s.written[partition], offset)
			}
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, broker.ErrSuperseded) || errors.Is(err, broker.ErrInDoubt) || errors.Is(err, errCrash) {
			return err
		}
		pause := backoff.Next()
		s.Logger.Warn("outcomes: a transaction failed; retrying", "scorer", s.Config.Name, "reason", err, "after", pause)
		if retry.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// errCrash is the error of tests that end a session within a transaction.
var errCrash = errors.New("the test ends the session")

func (s *session) fill(ctx context.Context, tx *broker.ExclusiveTx, changed marks, after map[int32]int64) error {
	for i := range s.out.outcomes {
		v := &s.out.outcomes[i]
		partition := broker.PartitionOf(v.Key, len(s.written))
		tx.SendTo(ctx, tidemill.StreamOutcomes, partition, v, func(r broker.Receipt) {
			after[partition] = max(after[partition], r.Offset+1)
		})
	}
	for i := range s.out.letters {
		tx.Send(ctx, tidemill.StreamDeadLetters, &s.out.letters[i])
	}
	if err := s.crash("within"); err != nil {
		return err
	}
	for p, m := range changed {
		tx.Mark(group(s.Config.Name), broker.Position{Stream: p.stream, Partition: p.number, Offset: m.offset, Note: strconv.FormatInt(m.expired, 10)})
	}
	return nil
}

// tidy writes a full table to disk and drops what is too old. It is called after a commit, when the table holds the
// logs up to the committed offsets.
func (s *session) tidy() error {
	if !s.index.isFull() {
		return nil
	}
	if err := s.index.seal(s.settings, s.places()); err != nil {
		return err
	}
	if err := s.crash("sealed"); err != nil {
		return err
	}
	return s.index.drop(s.forgets(), s.settings)
}

// forgets returns a time. Entries whose members are all older are dropped.
func (s *session) forgets() int64 { return s.oldestWaiting() - keepFor*s.join.wait }

// places returns the offsets up to which the index has the logs.
func (s *session) places() places {
	return places{clone(s.answers.read), clone(s.labels.read), clone(s.written)}
}

// keepFor is how many times the wait of the labels the index keeps an entry: a label may come a wait after its answer,
// and must be recognised as known until it expires itself, a wait later.
const keepFor = 2
