package outcomes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/broker"
)

func clone(x []int64) []int64 { return slices.Clone(x) }

// expire takes the events again whose wait is over. An answer has expired when all labels have been read that reached
// the log in time, and a label likewise. So nothing expires because this process was away or slow, or because the
// transaction of a scorer was.
func (s *session) expire(ctx context.Context, now time.Time) error {
	s.moveRead()
	if s.target == nil && s.isDue(now.UnixMilli()) {
		t := &target{at: now.UnixMilli()}
		var err error
		if t.answers, err = s.Broker.OpenEnds(ctx, s.answers.stream); err != nil {
			return err
		}
		if t.labels, err = s.Broker.OpenEnds(ctx, s.labels.stream); err != nil {
			return err
		}
		s.target = t
	}
	if s.target != nil && s.answers.reached(s.target.answers) && s.labels.reached(s.target.labels) {
		s.expired, s.target = s.target.at, nil
	}
	for _, in := range []*input{s.answers, s.labels} {
		for partition := range in.read {
			if err := s.expirePartition(ctx, in, int32(partition), now.UnixMilli()); err != nil {
				return err
			}
		}
	}
	return nil
}

// isDue reports whether an event may expire now.
func (s *session) isDue(ms int64) bool {
	for _, in := range []*input{s.answers, s.labels} {
		for i := range in.read {
			if in.done[i] < in.read[i] && in.due[i] < ms {
				return true
			}
		}
	}
	return false
}

// oldestWaiting returns a time before which everything has expired.
func (s *session) oldestWaiting() int64 {
	oldest := s.expired
	for _, in := range []*input{s.answers, s.labels} {
		for i := range in.read {
			if in.done[i] < in.read[i] {
				oldest = min(oldest, in.due[i]-s.join.wait)
			}
		}
	}
	return oldest
}

// reached reports whether the stream has been read up to its ends.
func (in *input) reached(ends []broker.Position) bool {
	for _, p := range ends {
		if int(p.Partition) >= len(in.read) || in.read[p.Partition] < p.Offset {
			return false
		}
	}
	return true
}

// bytes of a read of the log. The first read is small, because mostly only a few events have expired.
const firstRead, largestRead = 64 << 10, 1 << 20

// expirePartition takes the expired events of one partition again, which are next to each other on the log. A record whose time is
// more than a wait ahead belongs to no record of the present. It expires at once, because it would stop the partition.
func (s *session) expirePartition(ctx context.Context, in *input, partition int32, now int64) error {
	in.done[partition] = min(in.done[partition], in.read[partition]) // the stream may have been made again
	for bytes := firstRead; in.done[partition] < in.read[partition] && in.due[partition] < s.expired && !s.out.isFull(); bytes = min(2*bytes, largestRead) {
		from := in.done[partition]
		young, first := false, int64(-1)
		var failed error
		next, err := s.Broker.Read(ctx, broker.Position{Stream: in.stream, Partition: partition, Offset: from}, bytes, func(e *broker.Incoming) bool {
			if first < 0 {
				first = e.Offset
			}
			ms := e.Time.UnixMilli()
			if young = ms+s.join.wait >= s.expired && ms <= now+s.join.wait || e.Offset >= in.read[partition]; young {
				in.due[partition] = ms + s.join.wait
				in.done[partition] = e.Offset
				return false
			}
			if e.Err == nil {
				failed = in.expire(&e.View, position{partition, e.Offset}, ms)
			}
			in.done[partition] = e.Offset + 1
			return failed == nil && !s.out.isFull()
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			return fmt.Errorf("look for expired events: %w", err)
		}
		if first > from || first < 0 { // without an event, all that is left may be deleted
			if err := s.checkCut(ctx, in, partition, from); err != nil {
				return err
			}
		}
		if young || s.out.isFull() {
			return nil
		}
		in.done[partition] = max(in.done[partition], min(next, in.read[partition]))
		if next <= from {
			return nil
		}
	}
	return nil
}

// checkCut writes a dead letter if events were deleted before their wait was over. A gap may also be that of markers.
func (s *session) checkCut(ctx context.Context, in *input, partition int32, from int64) error {
	starts, err := s.Broker.Places(ctx, in.stream, broker.Earliest())
	if err != nil {
		return err
	}
	for _, p := range starts {
		if p.Partition != partition || p.Offset <= from {
			continue
		}
		reason := fmt.Sprintf("offsets %d to %d were deleted before the wait of %s was over: the stream's retention is shorter than `wait` of the scorer's labels. What expired there has neither an outcome nor a dead letter",
			from, p.Offset-1, showWait(s.join.wait))
		s.Logger.Error("outcomes: events were deleted before their wait was over", "scorer", s.Config.Name, "stream", in.stream, "partition", partition, "from", from, "to", p.Offset-1)
		return s.out.lost(in.stream, partition, from, p.Offset-1, nil, reason)
	}
	return nil
}
