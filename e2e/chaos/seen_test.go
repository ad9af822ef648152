package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"tidemill.dev/broker"
)

// outputsSeen reads from the output stream which inputs have their output. It is needed because the
// embedded broker, if killed while a transaction ends, can make outputs visible without moving the
// offsets. It reads each output once, however often partitions come and go.
type outputsSeen struct {
	c *child
	b *broker.Broker

	mu   sync.Mutex
	read map[int32]int64 // position up to which each partition of out has been read
	next map[int32]int64 // offset after the last input with an output, by partition of in
}

func newSeen(c *child, b *broker.Broker) *outputsSeen {
	return &outputsSeen{c: c, b: b, read: map[int32]int64{}, next: map[int32]int64{}}
}

// skip moves partitions over the inputs that have their output already.
func (s *outputsSeen) skip(ctx context.Context, all []broker.Position) ([]broker.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var from []broker.Position
	for _, p := range all {
		from = append(from, broker.Position{Stream: streamOut, Partition: p.Partition, Offset: s.read[p.Partition]})
	}
	var bad error
	stopped, err := s.b.ReadBack(ctx, from, func(e *broker.Incoming) {
		partition, offset, err := inputOf(e)
		if err != nil {
			bad = err
			return
		}
		s.next[partition] = max(s.next[partition], offset+1)
	})
	if err := errors.Join(err, bad); err != nil {
		return nil, fmt.Errorf("read the copies back: %w", err)
	}
	for _, p := range stopped {
		s.read[p.Partition] = p.Offset
	}
	return s.moved(all), nil
}

// moved notes each skip. Most skips do not come from torn transactions: a processor that its group
// has removed may not know that yet, and then sees the copies of its successor. Such a processor
// cannot commit further work.
func (s *outputsSeen) moved(all []broker.Position) []broker.Position {
	for i, p := range all {
		s.c.j.note("take", p.Partition, p.Offset)
		if next := s.next[p.Partition]; next > p.Offset {
			s.c.j.note("skip", p.Partition, p.Offset, next)
			all[i].Offset = next
		}
	}
	return all
}

func inputOf(e *broker.Incoming) (partition int32, offset int64, err error) {
	a, _ := e.Attribute(extPartition)
	b, _ := e.Attribute(extOffset)
	p, err := strconv.ParseInt(a, 10, 32)
	if err == nil {
		offset, err = strconv.ParseInt(b, 10, 64)
	}
	return int32(p), offset, err
}
