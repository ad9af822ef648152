package repeats

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// A trip takes so many marks of a stream, and an answer so many entries. They
// bound how long a trip lasts, and with it how long the next one's callers wait.
const (
	tripMarks   = 4096
	tripEntries = 512
)

// The fields of an entry.
const (
	fieldBy     = "by"
	fieldMarks  = "marks"
	fieldForget = "forget" // all that was marked up to then
)

// stop is what a trip does for one stream.
type stop struct {
	shelf *shelf
	page  *page // nil where nobody waits
	marks []mark
	since int64 // nothing older need be kept
	upTo  int64 // nothing up to then counts
	keep  time.Duration

	written bool // the marks are
	unread  bool // there is more to read than there was time for
}

// gather takes what waits, of each stream. One that has more goes on the next
// trip too.
func (m *Memory) gather() []stop {
	m.mu.Lock()
	defer m.mu.Unlock()
	stops := make([]stop, 0, len(m.busy))
	listed := m.busy
	m.busy, m.urgent = nil, false
	for _, s := range listed {
		at := stop{shelf: s, page: s.page, marks: s.marks.take(tripMarks), keep: s.window, upTo: s.known.forgotten}
		at.since = time.Now().Add(-s.window).UnixMilli()
		if !s.fresh.IsZero() { // who has not read all that there is cannot say what is old
			at.since = max(at.since, s.known.since())
		}
		s.page, s.listed = nil, false
		stops = append(stops, at)
		if len(s.marks.waiting) > 0 {
			m.list(s, true)
		}
	}
	return stops
}

// travel makes the round trip, with a ping if there is nothing to do. What is
// read for the first time may be long, and is read in further trips, until
// those who wait must not wait any longer.
func (m *Memory) travel(stops []stop) error {
	ctx, cancel := context.WithTimeout(m.ctx, m.patience)
	defer cancel()
	if len(stops) == 0 {
		return m.client.Ping(ctx).Err()
	}
	for more := true; more && time.Since(m.left) < m.patience/2; {
		var err error
		if more, err = m.exchange(ctx, stops); err != nil {
			return err
		}
	}
	m.metrics.trips.Observe(time.Since(m.left).Seconds())
	return nil
}

// exchange tells whether there is more to read.
func (m *Memory) exchange(ctx context.Context, stops []stop) (more bool, err error) {
	pipe := m.client.Pipeline()
	answers := make([]*redis.XStreamSliceCmd, len(stops))
	for i := range stops {
		answers[i] = stops[i].pack(ctx, pipe, m.self)
	}
	done, _ := pipe.Exec(ctx)
	for _, c := range done {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) { // which is an answer without entries
			return false, err
		}
	}
	for i := range stops {
		stops[i].written = true
		stops[i].unread = m.unpack(stops[i].shelf, answers[i].Val())
		more = more || stops[i].unread
	}
	return more, nil
}

// pack puts the marks before the question what others have marked.
func (s *stop) pack(ctx context.Context, pipe redis.Pipeliner, self string) *redis.XStreamSliceCmd {
	if len(s.marks) > 0 && !s.written {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: s.shelf.key, MinID: strconv.FormatInt(s.since, 10),
			Values: []any{fieldBy, self, fieldMarks, encode(s.marks), fieldForget, s.upTo}})
		pipe.PExpire(ctx, s.shelf.key, s.keep)
	}
	return pipe.XRead(ctx, &redis.XReadArgs{Streams: []string{s.shelf.key, s.shelf.after}, Count: tripEntries, Block: -1})
}

// unpack takes in what others have marked, and tells whether there may be more.
func (m *Memory) unpack(s *shelf, answer []redis.XStream) (more bool) {
	for _, a := range answer {
		for i := range a.Messages {
			m.learn(s, &a.Messages[i])
		}
		more = len(a.Messages) == tripEntries
	}
	return more
}

func (m *Memory) learn(s *shelf, entry *redis.XMessage) {
	s.after = entry.ID
	text, _ := entry.Values[fieldMarks].(string)
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.known.forgotten = max(s.known.forgotten, forgets(entry))
	if entry.Values[fieldBy] == m.self {
		return
	}
	decode(text, func(made mark) { s.known.learn(made, now, s.window, m.limit) })
}
