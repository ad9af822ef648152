package outcomes

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
)

// recover brings the index up to the committed offsets, and begins to read there. The disk has the entries up to its
// manifest. The rest follows from the logs: first the answers, then the outcomes and dead letters on the log, and then the
// labels. The outcomes say which truth an answer has, and the dead letters which labels were too late.
func (s *session) recover(ctx context.Context) error {
	now := time.Now()
	if err := s.readCommitted(ctx, now); err != nil {
		return err
	}
	if err := s.warnOfFormer(ctx, now); err != nil {
		return err
	}
	if s.isContradicted() {
		s.Logger.Warn("outcomes: the answers on disk are ahead of Kafka's offsets; they are read again from the stream", "scorer", s.Config.Name)
		if err := s.index.reset(); err != nil {
			return err
		}
	}
	from, err := s.recoverFrom(ctx, now)
	if err != nil {
		return err
	}
	sealed := s.index.next
	s.join.replayed, s.join.expired = clone(s.labels.read), clone(s.labels.done)
	s.join.replaying = true
	if err := s.replay(ctx, s.answers, from.Answers); err != nil {
		return err
	}
	if err := s.replayOutcomes(ctx, from.Outcomes); err != nil {
		return err
	}
	if err := s.replayLetters(ctx, now); err != nil {
		return err
	}
	if err := s.replay(ctx, s.labels, from.Labels); err != nil {
		return err
	}
	s.join.replaying, s.join.n = false, counts{}
	if s.index.next > sealed { // the next start need not read all this again
		if err := s.index.seal(s.settings, s.places()); err != nil {
			return err
		}
	}
	if s.consumer, err = s.reader(ctx, []*input{s.answers, s.labels}, s.start); err != nil {
		return err
	}
	s.Logger.Info("outcomes: this process joins the answers of the scorer with their labels", "scorer", s.Config.Name, "events", s.index.count(), "after", time.Since(now).Round(time.Millisecond))
	return nil
}

// readCommitted reads the offsets of this scorer's last owner. A stream without offsets is new to the scorer: it has its first
// owner, or its config names another stream. Such a stream begins with the labels of the last wait, and with the answers that
// these may be for. Answers before that get no assumed truth, because their labels may be gone.
func (s *session) readCommitted(ctx context.Context, now time.Time) (err error) {
	read := func(stream string, begin time.Duration) (offsets, notes []int64, err error) {
		ends, err := s.Broker.Ends(ctx, stream)
		if err != nil {
			return nil, nil, err
		}
		found, err := s.Broker.Committed(ctx, Group(s.Config.Name), ends)
		if err != nil {
			return nil, nil, err
		}
		if !slices.ContainsFunc(found, func(p broker.Position) bool { return p.Offset >= 0 }) {
			offsets, err = s.offsets(ctx, stream, now.Add(-begin))
			if stream != tidemill.StreamOutcomes {
				s.Logger.Info("outcomes: a stream is read for the first time; events older than the wait are left out", "scorer", s.Config.Name, "stream", stream)
			}
			return offsets, clone(offsets), err
		}
		for i, p := range found {
			expired, _ := strconv.ParseInt(p.Note, 10, 64) // without a note nothing has expired
			if p.Offset > ends[i].Offset {
				s.Logger.Error("outcomes: the stream has lost its end; outcomes of its lost events may be missing", "scorer", s.Config.Name, "stream", stream, "partition", p.Partition, "from", ends[i].Offset, "to", p.Offset-1)
				p.Offset = ends[i].Offset
				if stream == s.labels.stream { // the last ones may be new, and to take an old one again changes nothing
					p.Offset = min(expired, p.Offset)
				}
			}
			// An added partition has no offset, and is read from its beginning.
			offsets, notes = append(offsets, max(p.Offset, 0)), append(notes, min(expired, max(p.Offset, 0)))
		}
		return offsets, notes, nil
	}
	wait := s.Config.Labels.Wait
	for _, in := range []*input{s.answers, s.labels} {
		if in.read, in.done, err = read(in.stream, wait); err != nil {
			return err
		}
		in.due = make([]int64, len(in.read))
	}
	s.written, _, err = read(tidemill.StreamOutcomes, 2*wait)
	return err
}

// warnOfFormer logs a warning for each stream that the config named before, if events of the last wait have not expired there.
func (s *session) warnOfFormer(ctx context.Context, now time.Time) error {
	all, err := s.Broker.CommittedAll(ctx, Group(s.Config.Name))
	if err != nil {
		return err
	}
	since := map[string][]int64{}
	for _, p := range all {
		if p.Stream == s.answers.stream || p.Stream == s.labels.stream || p.Stream == tidemill.StreamOutcomes {
			continue
		}
		young, known := since[p.Stream]
		if !known {
			if young, err = s.offsets(ctx, p.Stream, now.Add(-s.Config.Labels.Wait)); err != nil && !errors.Is(err, broker.ErrNoStream) {
				return err
			}
			since[p.Stream] = young
		}
		if expired, _ := strconv.ParseInt(p.Note, 10, 64); int(p.Partition) < len(young) && p.Offset > max(expired, young[p.Partition]) {
			s.Logger.Warn("outcomes: the config no longer names a stream; its waiting answers get no outcome, and its waiting labels get nothing", "scorer", s.Config.Name, "stream", p.Stream)
			since[p.Stream] = nil // one warning a stream
		}
	}
	return nil
}

// offsets returns the first offset since a time, for each partition.
func (s *session) offsets(ctx context.Context, stream string, since time.Time) (all []int64, err error) {
	found, err := s.Broker.Places(ctx, stream, broker.Since(since))
	for _, p := range found {
		all = append(all, p.Offset)
	}
	return all, err
}

// isContradicted reports whether the index is ahead of the committed offsets. Then the log was cut, or the offsets were
// reset.
func (s *session) isContradicted() bool {
	ahead := func(disk, kafka []int64) bool {
		for i, offset := range disk {
			if i >= len(kafka) || offset > kafka[i] {
				return true
			}
		}
		return false
	}
	p := &s.index.places
	return ahead(p.Answers, s.answers.read) || ahead(p.Labels, s.labels.read)
}

// recoverFrom returns where the logs are ahead of the index.
func (s *session) recoverFrom(ctx context.Context, now time.Time) (from places, err error) {
	if !s.index.isEmpty() {
		return s.index.places, nil
	}
	// Labels that have not expired are at most a wait old, or as old as this process was away. Their answers, and those
	// for which they were too late, are up to two waits older.
	oldest, err := s.oldest(ctx, now, s.answers, s.labels)
	if err != nil {
		return from, err
	}
	wait := s.Config.Labels.Wait
	if from.Answers, err = s.offsets(ctx, s.answers.stream, oldest.Add(-2*wait)); err != nil {
		return from, err
	}
	if from.Labels, err = s.offsets(ctx, s.labels.stream, oldest.Add(-wait)); err != nil {
		return from, err
	}
	from.Outcomes, err = s.offsets(ctx, tidemill.StreamOutcomes, oldest.Add(-2*wait))
	return from, err
}

// oldest returns the time of the oldest event of some streams that was read and has not expired.
func (s *session) oldest(ctx context.Context, now time.Time, of ...*input) (time.Time, error) {
	oldest := now
	for _, in := range of {
		for i, done := range in.done {
			if done >= in.read[i] {
				continue
			}
			_, err := s.Broker.Read(ctx, broker.Position{Stream: in.stream, Partition: int32(i), Offset: done}, 1, func(e *broker.Incoming) bool {
				if e.Time.Before(oldest) {
					oldest = e.Time
				}
				return false
			})
			if err != nil {
				return oldest, err
			}
		}
	}
	return oldest, nil
}

// reader reads streams from given offsets.
func (s *session) reader(ctx context.Context, all []*input, from func(broker.Position) (int64, bool)) (*broker.Consumer, error) {
	var streams []string
	for _, in := range all {
		streams = append(streams, in.stream)
	}
	return s.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: streams, Start: broker.Earliest(),
		Assigned: func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
			for i := range at {
				if offset, ok := from(at[i]); ok {
					at[i].Offset = offset
				}
			}
			return at, nil
		}})
}

// start returns the offset up to which a partition was read. Added partitions are not known.
func (s *session) start(p broker.Position) (int64, bool) {
	in := s.answers
	if p.Stream == s.labels.stream {
		in = s.labels
	}
	if int(p.Partition) >= len(in.read) {
		return 0, false
	}
	return in.read[p.Partition], true
}

// replay takes the events of a stream again, from the given offsets to those that were read.
func (s *session) replay(ctx context.Context, in *input, from []int64) error {
	left := 0
	for i, end := range in.read {
		if i < len(from) && from[i] < end {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	c, err := s.reader(ctx, []*input{in}, func(p broker.Position) (int64, bool) {
		if int(p.Partition) < len(from) {
			return max(p.Offset, from[p.Partition]), true
		}
		return 0, false
	})
	if err != nil {
		return err
	}
	err = s.replayTo(ctx, c, in)
	if closed := c.Close(context.WithoutCancel(ctx)); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("read stream %s again: %w", in.stream, err)
	}
	return nil
}

func (s *session) replayTo(ctx context.Context, c *broker.Consumer, in *input) error {
	for !replayed(c, in.read) {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		d, err := c.Poll(limited)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() == nil && limited.Err() != nil:
			continue // only markers came
		default:
			return err
		}
		for i := range d.Events {
			e := &d.Events[i]
			if e.Err == nil && e.Offset < in.read[d.Partition] && err == nil {
				err = in.take(&e.View, position{d.Partition, e.Offset}, e.Time.UnixMilli())
			}
		}
		d.Done()
		if err != nil {
			return err
		}
		if s.index.isFull() { // the places stay those before, because the rest is not read yet
			if err := s.index.seal(s.settings, s.index.places); err != nil {
				return err
			}
		}
	}
	return nil
}

func replayed(c *broker.Consumer, to []int64) bool {
	for _, p := range c.Positions() {
		if int(p.Partition) < len(to) && p.Offset < to[p.Partition] {
			return false
		}
	}
	return true
}

// replayOutcomes takes the outcomes that are on the log.
func (s *session) replayOutcomes(ctx context.Context, from []int64) error {
	starts, err := s.Broker.Places(ctx, tidemill.StreamOutcomes, broker.Earliest())
	if err != nil {
		return err
	}
	for i := range starts {
		if i < len(from) {
			starts[i].Offset = max(starts[i].Offset, from[i])
		}
	}
	var failed error
	ends, err := s.Broker.ReadBack(ctx, starts, func(e *broker.Incoming) {
		if failed != nil || e.Source != s.out.source() || e.Type != tidemill.TypeOutcome && e.Type != tidemill.TypeOutcomeCorrected {
			return
		}
		at := e.Position()
		torn := int(at.Partition) >= len(s.written) || at.Offset >= s.written[at.Partition]
		if failed = s.join.outcome(&e.View, torn); errors.Is(failed, errNoRevision) {
			s.Logger.Warn("outcomes: an outcome in the name of this scorer is unreadable; it is skipped", "scorer", s.Config.Name, "event", e.ID, "partition", at.Partition, "offset", at.Offset, "reason", failed)
			failed = nil
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("read the outcomes that are on the log: %w", err)
	}
	s.written = s.written[:0]
	for _, p := range ends {
		s.written = append(s.written, p.Offset)
	}
	return nil
}

// replayLetters takes the dead letters of labels that have not expired. They were written after these labels.
func (s *session) replayLetters(ctx context.Context, now time.Time) error {
	oldest, err := s.oldest(ctx, now, s.labels)
	if err != nil {
		return err
	}
	starts, err := s.Broker.Places(ctx, tidemill.StreamDeadLetters, broker.Since(oldest))
	if err != nil {
		return err
	}
	_, err = s.Broker.ReadBack(ctx, starts, func(e *broker.Incoming) {
		var d broker.DeadLetter
		if e.Source == s.out.source() && e.Type == tidemill.TypeEventDeadLettered && json.Unmarshal(e.Data, &d) == nil && d.Stream == s.labels.stream {
			s.join.lettered[position{d.Partition, d.Offset}] = true
		}
	})
	if err != nil {
		return fmt.Errorf("read the dead letters that are on the log: %w", err)
	}
	return nil
}
