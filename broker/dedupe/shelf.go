package dedupe

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// shelf is one stream: what is known of it, and what waits for the next trip.
// All of it is under the lock of Memory, but for what is run's alone.
type shelf struct {
	stream  string
	key     string
	repeats prometheus.Counter

	known  known
	window time.Duration // the latest that anyone named
	fresh  time.Time     // when the last trip began that brought what others marked

	listed bool
	marks  queue
	page   *page // of those who wait for the next trip; nil is nobody

	after string // the last entry that was read; of run alone
}

// page is those who wait for one trip. Nothing changes after done is closed.
type page struct {
	done    chan struct{}
	waiting int
	failed  bool // the trip did
}

// wait puts somebody on the page of the next trip.
func (s *shelf) wait() *page {
	if s.page == nil {
		s.page = &page{done: make(chan struct{})}
	}
	s.page.waiting++
	return s.page
}

// dismiss lets everyone go who waits, with what is known already.
func (s *shelf) dismiss() (questions int) {
	p := s.page
	if p == nil {
		return 0
	}
	s.page, p.failed = nil, true
	close(p.done)
	return p.waiting
}

// known is what a gateway remembers of one stream. New marks go to the young
// generation. When that has half of the limit, or is older than the window, it
// takes the place of the old one, which is forgotten whole: that is cheap where
// taking out single ids is not, and two lookups find any. Since the time stands
// beside each digest, the window is exact and is the asker's own.
type known struct {
	young, old generation
	forgotten  int64 // no mark up to then counts
}

type generation struct {
	marks  map[digest]int64 // when each was made
	born   int64
	oldest int64 // of the marks
}

// seen says whether the event was marked within the window.
func (k *known) seen(d digest, now time.Time, window time.Duration) bool {
	at, here := k.young.marks[d]
	if !here {
		at, here = k.old.marks[d]
	}
	return here && at > k.forgotten && now.UnixMilli()-at < window.Milliseconds()
}

// add takes a mark in that was made now, and so is the latest of its event.
func (k *known) add(m mark, now time.Time, window time.Duration, limit int) {
	k.turn(now.UnixMilli(), window.Milliseconds(), limit)
	k.young.marks[m.digest] = m.at
	k.young.oldest = min(m.at, k.young.oldest)
}

// learn takes in what another has marked. Of two marks of an event the later
// one counts.
func (k *known) learn(m mark, now time.Time, window time.Duration, limit int) {
	if at, here := k.young.marks[m.digest]; !here || at < m.at {
		k.add(m, now, window, limit)
	}
}

// turn makes the young generation the old one if it is full, or so old that all
// that is in the old one has outlived its window. A new map grows a little at a
// time; one with room for all, or one that is cleared, would hold everybody up.
func (k *known) turn(now, window int64, limit int) {
	if y := &k.young; y.marks == nil || len(y.marks) >= max(1, limit/2) || now-y.born >= window {
		k.old = *y
		*y = generation{marks: map[digest]int64{}, born: now, oldest: now}
	}
}

// since is when the oldest mark was made that is remembered.
func (k *known) since() int64 {
	if k.old.marks != nil {
		return min(k.old.oldest, k.young.oldest)
	}
	return k.young.oldest
}

// maxWaiting is how many marks of a stream wait for Redis: 1.5 MiB.
const maxWaiting = 1 << 16

// maxSpare is the room that is kept for the next marks; what an outage took
// beyond it is given back.
const maxSpare = 4096

// queue holds marks in the order they were made. Two slices take turns, so that
// none is made anew: one fills while a trip carries the other.
type queue struct {
	waiting, spare []mark
}

// add appends a mark. A full queue forgets its oldest quarter, because what is
// repeated is mostly young; it tells how many those were.
func (q *queue) add(m mark) (dropped int) {
	if len(q.waiting) >= maxWaiting {
		dropped = maxWaiting / 4
		q.waiting = slices.Delete(q.waiting, 0, dropped)
	}
	q.waiting = append(q.waiting, m)
	return dropped
}

// take hands out the oldest marks, until they are given to done or restore.
func (q *queue) take(most int) []mark {
	if len(q.waiting) <= most {
		taken := q.waiting
		q.waiting, q.spare = q.spare, nil
		return taken
	}
	taken := append(q.spare, q.waiting[:most]...)
	q.waiting, q.spare = slices.Delete(q.waiting, 0, most), nil
	return taken
}

// done gives back the room of marks that are in Redis.
func (q *queue) done(taken []mark) {
	if cap(taken) <= maxSpare {
		q.spare = taken[:0]
	}
}

// restore puts marks back before those that came later, and tells how many
// did not fit.
func (q *queue) restore(taken []mark) (dropped int) {
	all := append(taken, q.waiting...)
	if dropped = len(all) - maxWaiting; dropped > 0 {
		all = slices.Delete(all, 0, dropped)
	}
	q.waiting = all
	return max(dropped, 0)
}

// Question is about one event. The zero Question is about one that was never
// here.
type Question struct {
	memory *Memory
	shelf  *shelf
	page   *page // of the trip to wait for; nil where the answer is known
	digest digest
	window time.Duration
}

// Seen waits for the answer. It is false if there will be none, or the context
// ends before.
func (q Question) Seen(ctx context.Context) bool {
	if q.shelf == nil {
		return false
	}
	if q.page != nil {
		select {
		case <-q.page.done:
		case <-ctx.Done():
			return false
		}
		q.memory.mu.Lock()
		seen := q.shelf.known.seen(q.digest, time.Now(), q.window)
		q.memory.mu.Unlock()
		if !seen {
			return false
		}
	}
	q.shelf.repeats.Inc()
	return true
}

// digest stands for a source and an id. A digest that two events share would
// lose the second, so it must not be had by chance or by design: of a million
// remembered events a stranger meets one with odds of 1 to 10^32, and whoever
// chooses ids to meet somebody else's event has to try 2^108 of them. Two of
// his own that meet (2^64 tries) lose one of his own. A faster hash would have
// to be keyed, and every gateway would have to share the key and keep it.
type digest [16]byte

// digestOf puts the length before the source, so that ("ab", "c") and
// ("a", "bc") differ. What most events have fits one block of SHA-256.
func digestOf(source, id string) digest {
	var room [256]byte
	b := binary.AppendUvarint(room[:0], uint64(len(source)))
	b = append(b, source...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// mark says that an event is on the log.
type mark struct {
	digest digest
	at     int64 // milliseconds since 1970
}

// markBytes are a mark's in Redis: its digest, and its time with the big end
// first.
const markBytes = len(digest{}) + 8

func encode(marks []mark) []byte {
	b := make([]byte, 0, len(marks)*markBytes)
	for i := range marks {
		b = append(b, marks[i].digest[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(marks[i].at))
	}
	return b
}

// decode hands out the marks of an entry. What is no mark, because others write
// to the same Redis, is left out.
func decode(text string, each func(mark)) {
	for ; len(text) >= markBytes; text = text[markBytes:] {
		at := binary.BigEndian.Uint64([]byte(text[len(digest{}):markBytes]))
		each(mark{digest([]byte(text[:len(digest{})])), int64(at)})
	}
}

// longest is how long an event may be remembered, by any config.
const longest = 24 * time.Hour

// keyOf is where a stream's marks lie in Redis. It names the Kafka, lest two
// installs of one name that share a Redis take each other's events for repeats.
func keyOf(names tidemill.Names, kafka, stream string) string {
	return names.Key("repeats", layout, kafka, "{"+stream+"}")
}

// Forget has all gateways forget what was marked on a stream up to now. It is
// for one that has just been made: marks of an earlier stream of its name, or
// from beside another Kafka, are of events that it does not hold. Gateways read
// of it as they read of each other's marks, and each says it on with its own,
// so that it is heard however much is written, and trimmed, behind it.
func Forget(ctx context.Context, client *redis.Client, names tidemill.Names, kafka, stream string) error {
	key := keyOf(names, kafka, stream)
	_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Unlink(ctx, key)
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{fieldForget, time.Now().UnixMilli()}})
		p.PExpire(ctx, key, longest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget the repeats of stream %s: %w", stream, err)
	}
	return nil
}

// Forget drops what this gateway knows of a stream that has just been made,
// whether or not Redis is there.
func (m *Memory) Forget(stream string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shelf(stream)
	s.known = known{forgotten: time.Now().UnixMilli()}
	s.marks.waiting = nil
}

// forgets reads what an entry says of forgetting.
func forgets(entry *redis.XMessage) (upTo int64) {
	text, _ := entry.Values[fieldForget].(string)
	upTo, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return upTo
}
