package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

const (
	unknownNode int32 = -1
	longPoll          = 5 * time.Second
	shortPoll         = 10 * time.Millisecond  // wait while a partition is left out of the request, so that it can be in the next request soon
	errorPause        = 500 * time.Millisecond // pause of a partition whose records cannot be decoded
)

// errAbandoned is the cause of a long poll that ended because a partition was missing in it.
var errAbandoned = errors.New("the fetch lacks a partition that can be read now")

// fetcher reads all partitions that one server leads, many in one request.
type fetcher struct {
	c    *Consumer
	node int32
	wake chan struct{}

	mu      sync.Mutex
	parts   []*inPartition
	abandon context.CancelCauseFunc // ends the long poll under way; nil if there is none

	requests requestContext

	frame   wire.Frame
	memory  []byte // memory for the next answer
	asked   []fetchAsk
	next    int // index in asked of the next partition in the answer
	spare   []fetchAsk
	backlog int                 // number of partitions in asked that are behind
	last    wire.TopicPartition // last partition that had records in the answer, before one without room in it
	brought bool                // whether the answer has records so far
	full    bool                // whether a partition had no room in it
	rests   time.Time           // end of the pause after a small answer; used by runTrips only
}

// fetchAsk is the state of a partition at the time of a request. If the partition's series has
// changed when the answer arrives, the answer is dropped.
type fetchAsk struct {
	p        *inPartition
	position int64
	epoch    uint64
	series   uint64
	ended    []span
	behind   bool // whether its last answer did not reach the end of the log
}

// nudge tells the fetcher that there may be more to fetch.
func (f *fetcher) nudge() {
	f.abandonPoll()
	f.wakeUp()
}

func (f *fetcher) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// abandonPoll ends the long poll under way if it lacks a partition that can be read now: a new one,
// or one that was paused or read again. This costs the connection, because Kafka answers in order.
func (f *fetcher) abandonPoll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.abandon != nil && slices.ContainsFunc(f.parts, f.lacks) {
		f.abandon(errAbandoned)
		f.abandon = nil
	}
}

// lacks reports whether a partition can be read now and the last request does not have it.
func (f *fetcher) lacks(p *inPartition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.leader != f.node || p.paused || p.draining || time.Now().Before(p.notBefore) {
		return false
	}
	return p.asked.p != p || !p.isExpected(p.asked)
}

// wakeFetcher tells the fetcher of a partition that there may be more to fetch.
func (c *Consumer) wakeFetcher(p *inPartition) {
	p.mu.Lock()
	node := p.leader
	p.mu.Unlock()
	c.mu.Lock()
	f := c.fetchers[node]
	c.mu.Unlock()
	if f != nil {
		f.nudge()
	}
}

func (c *Consumer) nudgeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.fetchers {
		f.nudge()
	}
}

func (f *fetcher) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for f.c.ctx.Err() == nil {
		f.waitPause(timer)
		all, wait := f.choosePartitions(time.Now())
		if len(f.asked) > 0 {
			f.fetch(all)
			continue
		}
		timer.Reset(wait)
		select {
		case <-f.wake:
		case <-timer.C:
		case <-f.c.ctx.Done():
		}
	}
}

// waitPause waits until the pause after a small answer is over.
func (f *fetcher) waitPause(timer *time.Timer) {
	left := time.Until(f.rests)
	if left <= 0 {
		return
	}
	timer.Reset(left)
	select {
	case <-timer.C:
	case <-f.c.ctx.Done():
	}
}

// smallAnswer is the size below which an answer probably reached the end of the log.
const smallAnswer = 64 << 10

// restUntil returns the end of the pause after an answer of this size.
func restUntil(now time.Time, rest time.Duration, brought bool, bytes int) time.Time {
	if !brought || bytes >= smallAnswer {
		return time.Time{}
	}
	return now.Add(rest)
}

// choosePartitions fills asked with the partitions to fetch now. It reports whether these are all
// partitions, and returns the time until another may be due.
func (f *fetcher) choosePartitions(now time.Time) (all bool, wait time.Duration) {
	f.asked, f.backlog, all, wait = f.asked[:0], 0, true, time.Hour
	full := !f.c.mayFetch()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts = slices.DeleteFunc(f.parts, func(p *inPartition) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.gone || p.leader != f.node {
			return true
		}
		switch left := p.notBefore.Sub(now); {
		case left > 0:
			wait = min(wait, left)
			all = false
		case full || p.paused || p.draining || p.queued > 1:
			all = false
		case p.hasLife() && !p.heard.IsZero() && now.Sub(p.heard) > trusted:
			p.leader, p.doubted = unknownNode, true
			f.c.wakeRouter()
			return true
		default:
			p.asked = fetchAsk{p: p, position: p.position, epoch: p.epoch, series: p.series, ended: p.ended, behind: p.position < p.end}
			if p.asked.behind {
				f.backlog++
			}
			f.asked = append(f.asked, p.asked)
		}
		return false
	})
	f.rotate()
	return all, wait
}

// trusted is how long a consumer believes that a stream is still the same, if no request shows it. A
// partition that is paused is in no request. A stream that was deleted and created again in that time
// may have grown beyond the position.
const trusted = time.Second

// rotate changes the order of the request, which then begins after the last partition that had
// records in the answer. A server fills its answer in the order of the request. Partitions without
// room in the last answer must come first in the next one. Otherwise they would never be read.
// Partitions after them do not count, because a smaller batch may still have had room.
func (f *fetcher) rotate() {
	i := slices.IndexFunc(f.asked, func(a fetchAsk) bool { return comparePartitions(a.p.tp, f.last) > 0 })
	if i <= 0 {
		return
	}
	f.spare = append(append(f.spare[:0], f.asked[i:]...), f.asked[:i]...)
	f.asked, f.spare = f.spare, f.asked
}

func (f *fetcher) fetch(all bool) {
	wait := longPoll
	if !all {
		wait = shortPoll
	}
	f.encode(wait)
	if f.memory == nil {
		f.memory = f.c.buffers.Get().(*fetchBuffer).bytes
	}
	answer, err := f.request(wait)
	f.c.counts.fetches.Add(1)
	f.c.counts.fetchedBytes.Add(uint64(len(answer)))
	if err != nil {
		f.memory = nil
		if !errors.Is(err, errAbandoned) {
			f.handleFailure(err)
		}
		return
	}
	buffer := f.keepAnswer(answer)
	code, err := wire.ReadFetched(buffer.bytes, func(part *wire.Fetched) { f.handleAnswer(part, buffer) })
	f.rests = restUntil(time.Now(), f.c.opt.Rest, f.brought, len(answer))
	if err == nil && code != 0 {
		err = kafka.Error(code)
	}
	buffer.drop()
	if err != nil {
		f.handleFailure(err)
	}
}

// request sends the encoded request and waits for the answer. A long poll can be abandoned.
func (f *fetcher) request(wait time.Duration) ([]byte, error) {
	ctx := f.requests.atLeast(max(f.c.b.requestTimeout, f.c.b.requestTimeout/2+wait))
	if wait == longPoll {
		f.setAbandon(f.requests.cancel)
		defer f.setAbandon(nil)
		f.abandonPoll() // the partitions may have changed since they were chosen
	}
	return f.c.b.call(ctx, f.node, &f.frame, f.memory)
}

func (f *fetcher) setAbandon(abandon context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.abandon = abandon
}

// keepAnswer keeps an answer for its deliveries. A large answer keeps the memory that it was read
// into. A small answer is copied, because a slow handler of one event would otherwise hold
// megabytes.
func (f *fetcher) keepAnswer(answer []byte) *fetchBuffer {
	f.next, f.brought, f.full = 0, false, false
	buffer := &fetchBuffer{c: f.c, bytes: answer, pooled: true}
	f.memory = nil
	if len(answer) < cap(answer)/4 {
		buffer.bytes, buffer.pooled, f.memory = slices.Clone(answer), false, answer
	}
	buffer.users.Store(1)
	f.c.room.take(buffer.size())
	return buffer
}

func (f *fetcher) encode(wait time.Duration) {
	topics := 0
	for i, a := range f.asked {
		if i == 0 || f.asked[i-1].p.tp.Topic != a.p.tp.Topic {
			topics++
		}
	}
	f.frame.BeginFetch(wire.FetchHead{Client: f.c.b.names.Install(), MaxWaitMillis: int32(wait.Milliseconds()),
		MinBytes: 1, MaxBytes: nodeFetch, Topics: topics})
	for i, a := range f.asked {
		if i == 0 || f.asked[i-1].p.tp.Topic != a.p.tp.Topic {
			n := 1
			for i+n < len(f.asked) && f.asked[i+n].p.tp.Topic == a.p.tp.Topic {
				n++
			}
			f.frame.Topic(a.p.tp.Topic, n)
		}
		f.frame.From(a.p.tp.Partition, kafkaOffset(a.position), f.limit(a))
	}
	f.frame.EndFetch()
}

// limit returns how many bytes of a partition the answer may have. The partitions of a backlog share
// a whole answer, because a larger one costs Kafka and the reader less for each event.
func (f *fetcher) limit(a fetchAsk) int32 {
	if !a.behind {
		return partitionFetch
	}
	return max(partitionFetch, nodeFetch/int32(f.backlog))
}

// handleFailure delays every partition of a failed request and looks for their leaders again.
func (f *fetcher) handleFailure(err error) {
	if f.c.ctx.Err() != nil {
		return
	}
	if !isTransient(err) {
		f.c.failReading(fmt.Errorf("fetch: %w", err))
	}
	for _, a := range f.asked {
		f.putOff(a.p, err)
	}
	f.c.wakeRouter()
}

func (f *fetcher) putOff(p *inPartition, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader = unknownNode
	p.putOff(reason)
}

// partitionRequest returns the request for a partition. Answers have the order of the request.
func (f *fetcher) partitionRequest(part *wire.Fetched) (fetchAsk, bool) {
	for range f.asked {
		a := f.asked[f.next]
		f.next = (f.next + 1) % len(f.asked)
		if a.p.tp.Partition == part.Partition && a.p.tp.Topic == part.Topic {
			return a, true
		}
	}
	return fetchAsk{}, false
}

// handleAnswer handles one partition of an answer.
func (f *fetcher) handleAnswer(part *wire.Fetched, buffer *fetchBuffer) {
	a, ok := f.partitionRequest(part)
	if !ok {
		return
	}
	a.intoLife(part)
	f.noteRoom(a, part)
	switch code := kafka.Error(part.Error); {
	case code == 0:
		a.p.mu.Lock()
		a.p.retries, a.p.end, a.p.heard = backoff{}, part.StableMark, time.Now()
		a.p.mu.Unlock()
		f.c.receive(a, part, buffer)
	case code == kafka.OffsetOutOfRange:
		of := a // a would be allocated for each answer if the closure had it
		f.c.running.Go(func() { f.c.outOfRange(of) })
	case passingCode(code), code == kafka.Unknown:
		// A server that stops, or whose disk fails, answers "unknown error". Reading again does no
		// harm; if the error lasts, the log says so.
		f.putOff(a.p, code)
		f.c.wakeRouter()
	default:
		f.c.failReading(fmt.Errorf("read stream %s, partition %d: %w", a.p.stream, part.Partition, refusedRead(code)))
	}
}

// noteRoom notes which partitions had room in the answer. The first one always has.
func (f *fetcher) noteRoom(a fetchAsk, part *wire.Fetched) {
	switch brings := len(part.Records) > 0; {
	case brings && !f.full:
		f.last, f.brought = a.p.tp, true
	case !brings:
		f.full = f.full || f.brought && part.Error == 0 && part.StableMark > a.position
	}
}

// intoLife turns Kafka's offsets in an answer into those of the partition's life.
func (a *fetchAsk) intoLife(part *wire.Fetched) {
	base := LifeOf(a.position)
	if base == 0 {
		return
	}
	part.HighMark, part.StableMark = part.HighMark+base, part.StableMark+base
	for i := range part.Aborted {
		part.Aborted[i].First += base
	}
}

func refusedRead(code kafka.Error) error {
	if code == kafka.TopicAuthorizationFailed {
		return fmt.Errorf("this user may not read the topic; grant it read: %w", code)
	}
	return code
}

// outOfRange handles a position that the log does not have. If it is below the start of the log,
// retention has deleted events, and a dead letter names the lost offsets. If it is beyond the end,
// an unclean election has cut the log, and reading continues at the end. Or the stream was deleted and
// created again, and reading continues at its beginning.
func (c *Consumer) outOfRange(a fetchAsk) {
	a.p.mu.Lock()
	a.p.putOff(kafka.OffsetOutOfRange)
	knowsTopic, hasLife, tries := a.p.life.topic != "", a.p.hasLife(), a.p.retries.failures
	a.p.mu.Unlock()
	start, end, err := c.b.logEnds(c.ctx, a.p.tp)
	if err == nil && hasLife {
		err = c.checkLife(c.ctx, a.p, &knownLives{b: c.b}) // moves the position if it begins another life
	}
	if err != nil {
		if !isTransient(err) && c.ctx.Err() == nil {
			c.failReading(fmt.Errorf("find the ends of stream %s, partition %d: %w", a.p.stream, a.p.tp.Partition, err))
		}
		return // asked again after the backoff
	}
	base := LifeOf(a.position)
	start, end = start+base, end+base
	switch {
	case a.position < start:
		c.skipGap(a, a.position, start, lostError(ErrDeleted, "offsets %d to %d were deleted before they were read: the stream's retention is shorter than this reader's delay", a.position, start-1))
	case a.position > end && (!knowsTopic || tries < triesBeforeWarning) && (kafkaOffset(end) == 0 || c.isNewLog(a.p, kafkaOffset(start))):
		if !knowsTopic { // otherwise the servers may not know the new topic yet, and are asked again
			c.skipToNewLog(a, kafkaOffset(start))
		}
	case a.position > end:
		c.skipGap(a, end, end, lostError(ErrCut, "the log ends at %d, before offset %d that was reached: a server without all events became its leader", end, a.position))
	}
}

var (
	// ErrDeleted is the Err of an event for offsets that were deleted before they were read.
	ErrDeleted = errors.New("events were deleted before they were read")

	// ErrCut is the Err of an event if the log ends before the offset that the consumer had
	// reached. Reading continues at that end. If the stream was deleted and created again, reading continues
	// at its beginning; a member of a group then writes a dead letter instead.
	ErrCut = errors.New("the log was cut")
)

// gapError is the reason of a gap. Its kind is ErrDeleted or ErrCut.
type gapError struct {
	kind error
	text string
}

func lostError(kind error, format string, args ...any) error {
	return &gapError{kind, fmt.Sprintf(format, args...)}
}

func (e *gapError) Error() string { return e.text }
func (e *gapError) Unwrap() error { return e.kind }

// skipGap moves a partition past offsets that were deleted, and writes a dead letter that names
// them.
func (c *Consumer) skipGap(a fetchAsk, from, to int64, reason error) bool {
	skipped := c.skipTo(a, from, to, reason)
	if skipped {
		c.counts.lost.Add(uint64(max(to, a.position) - from))
		c.b.log.Error("consumer: events were deleted before they were read; they are lost", "stream", a.p.stream, "partition", a.p.tp.Partition, "from", from, "to", to, "reason", reason)
	}
	return skipped
}

func (c *Consumer) skipTo(a fetchAsk, from, to int64, reason error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if !a.p.isExpected(a) {
		return false
	}
	if to < a.position { // offsets go back, so the open events belong to a log that no longer exists
		a.p.restart(to)
		a.p.ended = nil
		a.p.committed = to - 1 // the group's offset must not stay beyond the offset from which we now read
		a.epoch, a.series = a.p.epoch, a.p.series
	}
	a.p.notBefore = time.Time{}
	d := c.newDelivery(a, nil, to)
	d.letters = append(d.letters, deadLetter{stream: a.p.stream, partition: a.p.tp.Partition, offset: from, last: max(from, a.position-1, to-1), mark: to - 1, reason: reason, gap: true})
	if c.letters == nil {
		d.Events = append(d.Events[:0], Incoming{Offset: min(from, to-1), Err: reason})
		d.letters = d.letters[:0]
	}
	c.enqueue(d)
	return true
}
