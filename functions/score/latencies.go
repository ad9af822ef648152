package score

import (
	"math/bits"
	"sync"
	"time"
)

// latencies counts numbers by size, in buckets that are a quarter as wide as the
// number: in total, and for the recent past.
type latencies struct {
	mu   sync.Mutex
	all  [buckets]uint64
	sum  uint64
	turn [2][buckets]uint64 // present period and the one before
	last time.Time          // beginning of the present period
}

const (
	buckets     = 128
	lately      = 10 * time.Second
	bucketShift = 2
)

// bucketOf returns the bucket of a number: the number itself if it is small, otherwise
// by its highest bits.
func bucketOf(n int64) int {
	if n < 1<<bucketShift {
		return int(max(n, 0))
	}
	shift := bits.Len64(uint64(n)) - bucketShift - 1
	return min(buckets-1, (shift+1)<<bucketShift+int(n>>shift)&(1<<bucketShift-1))
}

// bucketTop returns the largest number of a bucket.
func bucketTop(b int) int64 {
	if b < 1<<bucketShift {
		return int64(b)
	}
	shift := b>>bucketShift - 1
	return (int64(1<<bucketShift+b&(1<<bucketShift-1))+1)<<shift - 1
}

// begin allows calls of add until end, so that a batch takes the lock once.
func (l *latencies) begin() {
	l.mu.Lock()
	l.move(time.Now())
}

func (l *latencies) add(n int64) {
	b := bucketOf(n)
	l.all[b]++
	l.turn[0][b]++
	l.sum += uint64(max(n, 0))
}

func (l *latencies) end() { l.mu.Unlock() }

func (l *latencies) one(n int64) {
	l.begin()
	l.add(n)
	l.end()
}

func (l *latencies) move(now time.Time) {
	switch since := now.Sub(l.last); {
	case since > 2*lately:
		l.turn = [2][buckets]uint64{}
	case since > lately:
		l.turn[1], l.turn[0] = l.turn[0], [buckets]uint64{}
	default:
		return
	}
	l.last = now
}

// quantile returns a number that a share q of the recent numbers does not exceed.
func (l *latencies) quantile(q float64) int64 {
	l.begin()
	defer l.end()
	var all uint64
	for b := range buckets {
		all += l.turn[0][b] + l.turn[1][b]
	}
	left := uint64(q * float64(all))
	for b := range buckets {
		n := l.turn[0][b] + l.turn[1][b]
		if n > left {
			return bucketTop(b)
		}
		left -= n
	}
	return 0
}

// histogram returns how many numbers did not exceed each of some bounds.
func (l *latencies) histogram(bounds []int64) (counts []uint64, n, sum uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts = make([]uint64, len(bounds))
	for b := range buckets {
		n += l.all[b]
		for i, bound := range bounds {
			if bucketTop(b) <= bound {
				counts[i] += l.all[b]
			}
		}
	}
	return counts, n, l.sum
}
