package dedupe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker/retry"
)

// The pauses between tries while Redis is away. The first pause is doubled after each failure, up
// to the last pause.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// runTrips makes the trips, one after the other.
func (m *Memory) runTrips() {
	defer close(m.ended)
	for m.waitForWork() {
		stops := m.gatherWork()
		m.left = time.Now()
		if err := m.runTrip(stops); err != nil {
			m.sendHome(stops, err)
			continue
		}
		m.releaseWaiters(stops)
	}
	m.countLost()
}

// waitForWork waits until there is work or, while Redis is away, until the next try. It returns
// false after Memory was closed and nothing is left to do.
func (m *Memory) waitForWork() bool {
	m.mu.Lock()
	away := m.away
	m.mu.Unlock()
	if away {
		return m.waitRetry()
	}
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		// Other goroutines run first, and may add questions or marks, so that a trip carries more
		// under load. Without load this call does not wait.
		runtime.Gosched()
		now := time.Now()
		rest := m.left.Add(m.stale / 2).Sub(now)
		m.mu.Lock()
		work, closed := len(m.busy) > 0, m.closed
		ready := work && (m.urgent || rest <= 0)
		m.asleep = !ready && !closed
		m.mu.Unlock()
		if ready || closed {
			return work
		}
		if work {
			t.Reset(rest)
		}
		m.sleep(t)
	}
}

// sleep waits for new work or for the timer. Afterwards the channel wake is empty.
func (m *Memory) sleep(t *time.Timer) {
	select {
	case <-m.wake:
		return
	case <-m.closing:
	case <-t.C:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asleep {
		<-m.wake
	}
	m.asleep = false
}

// waitRetry waits until the next try of Redis. Close ends the wait for one last try; after that
// waitRetry returns false.
func (m *Memory) waitRetry() bool {
	select {
	case <-m.closing:
		return false
	default:
	}
	_ = retry.Wait(context.Background(), m.closing, retry.Backoff{First: firstPause, Cap: lastPause}.After(m.failures))
	return true
}

// releaseWaiters lets the callers that waited for the trip continue. A ping alone does not reset
// the pauses, because the work may still fail.
func (m *Memory) releaseWaiters(stops []streamWork) {
	m.mu.Lock()
	for _, s := range stops {
		s.shelf.marks.reuseSlice(s.marks)
		s.shelf.recalled = s.shelf.recalled && !s.recalled
		if s.unread {
			m.scheduleTrip(s.shelf, true)
			continue
		}
		s.shelf.fresh = m.left
	}
	was := m.away
	m.away = false
	m.mu.Unlock()
	releaseTrip(stops)
	if len(stops) > 0 {
		m.failures = 0
	}
	if was {
		m.metrics.away.Set(0)
		m.log.Info("dedupe: Redis is back; events of other gateways are recognised again")
	}
}

// sendHome opens the circuit. Callers that wait for this trip or the next one continue with the
// present knowledge, and the marks stay for another try. Redis may lose entries while it is away,
// so all entries are read again.
func (m *Memory) sendHome(stops []streamWork, err error) {
	m.failures++
	m.mu.Lock()
	dropped, unchecked := 0, 0
	for _, s := range stops {
		dropped += s.shelf.marks.restore(s.marks)
		m.scheduleTrip(s.shelf, false)
	}
	for _, s := range m.shelves {
		s.after, s.fresh = "0", time.Time{}
		unchecked += s.releaseCallers()
	}
	m.urgent = false
	was := m.away
	m.away = true
	m.mu.Unlock()
	unchecked += releaseTrip(stops)
	m.metrics.dropped.Add(float64(dropped))
	m.metrics.unchecked.Add(float64(unchecked))
	if !was {
		m.metrics.away.Set(1)
		m.log.Warn("dedupe: Redis is down; repeats of events of other gateways are stored again", "reason", err)
	}
}

// releaseTrip lets the callers of a trip continue. releaseTrip does not hold the lock, because the
// callers need the lock next.
func releaseTrip(stops []streamWork) (questions int) {
	for _, s := range stops {
		if s.page != nil {
			questions += s.page.waiting
			close(s.page.done)
		}
	}
	return questions
}

// countLost counts the marks that a closed Memory could not write.
func (m *Memory) countLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := 0
	for _, s := range m.busy {
		left += len(s.marks.waiting)
		m.metrics.unchecked.Add(float64(s.releaseCallers()))
	}
	if left > 0 {
		m.metrics.dropped.Add(float64(left))
		m.log.Warn(fmt.Sprintf("Redis is down: other gateways will not recognise repeats of %d events", left))
	}
}

// The limits of marks in a trip and of entries in an answer, for each stream. They limit the
// duration of a trip, and so the wait of the next callers.
const (
	tripMarks   = 4096
	tripEntries = 512
)

// The fields of an entry.
const (
	fieldBy     = "by"
	fieldMarks  = "marks"
	fieldForget = "forget" // time up to which all marks are forgotten
)

// streamWork is the work of a trip for one stream.
type streamWork struct {
	shelf *streamMemory
	page  *waitGroup // nil if no caller waits
	marks []mark
	since int64 // time of the oldest mark that Redis must keep
	upTo  int64 // time up to which no mark counts
	keep  time.Duration

	recalled bool // whether these are the last marks of a recall

	written bool // whether the marks are written
	unread  bool // whether unread entries are left because time was up
}

// gatherWork takes the waiting work of each stream. A stream with too many marks for one trip is
// part of the next trip too.
func (m *Memory) gatherWork() []streamWork {
	m.mu.Lock()
	defer m.mu.Unlock()
	stops := make([]streamWork, 0, len(m.busy))
	listed := m.busy
	m.busy, m.urgent = nil, false
	for _, s := range listed {
		at := streamWork{shelf: s, page: s.page, marks: s.marks.takeMarks(tripMarks), keep: s.window, upTo: s.known.forgotten}
		at.since = time.Now().Add(-s.window).UnixMilli()
		if !s.fresh.IsZero() { // before the first full read, the age of the oldest mark is not known
			at.since = max(at.since, s.known.oldestTime())
		}
		at.recalled = s.recalled && len(s.marks.waiting) == 0
		s.page, s.listed = nil, false
		stops = append(stops, at)
		if len(s.marks.waiting) > 0 {
			m.scheduleTrip(s, true)
		}
	}
	return stops
}

// runTrip makes the exchanges of a trip, or a ping if there is no work. The first read of a stream
// may be long. It takes several exchanges, for at most half of the patience; the next trip reads
// the rest.
func (m *Memory) runTrip(stops []streamWork) error {
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

// exchange makes one exchange, and reports whether there is more to read.
func (m *Memory) exchange(ctx context.Context, stops []streamWork) (more bool, err error) {
	pipe := m.client.Pipeline()
	answers := make([]*redis.XStreamSliceCmd, len(stops))
	for i := range stops {
		answers[i] = stops[i].addCommands(ctx, pipe, m.self)
	}
	done, _ := pipe.Exec(ctx)
	for _, c := range done {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) { // redis.Nil is an answer without entries
			return false, err
		}
	}
	for i := range stops {
		stops[i].written = true
		stops[i].unread = m.storeReply(stops[i].shelf, answers[i].Val())
		more = more || stops[i].unread
	}
	return more, nil
}

// addCommands adds the commands for one stream: write the marks, then read the marks of other
// gateways.
func (s *streamWork) addCommands(ctx context.Context, pipe redis.Pipeliner, self string) *redis.XStreamSliceCmd {
	if len(s.marks) > 0 && !s.written {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: s.shelf.key, MinID: strconv.FormatInt(s.since, 10),
			Values: []any{fieldBy, self, fieldMarks, encode(s.marks), fieldForget, s.upTo}})
		pipe.PExpire(ctx, s.shelf.key, s.keep)
	}
	if s.recalled && !s.written {
		pipe.Unlink(ctx, recallKey(s.shelf.key))
	}
	return pipe.XRead(ctx, &redis.XReadArgs{Streams: []string{s.shelf.key, s.shelf.after}, Count: tripEntries, Block: -1})
}

// storeReply stores the marks of other gateways, and reports whether there may be more marks.
func (m *Memory) storeReply(s *streamMemory, answer []redis.XStream) (more bool) {
	for _, a := range answer {
		for i := range a.Messages {
			m.learn(s, &a.Messages[i])
		}
		more = len(a.Messages) == tripEntries
	}
	return more
}

func (m *Memory) learn(s *streamMemory, entry *redis.XMessage) {
	s.after = entry.ID
	text, _ := entry.Values[fieldMarks].(string)
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.known.forgotten = max(s.known.forgotten, forgetTime(entry))
	if entry.Values[fieldBy] == m.self {
		return
	}
	decodeMarks(text, func(made mark) { s.known.addOther(made, now, s.window, m.limit) })
}
