package deliver

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestBucketGivesABurstAndThenTheRate(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		rate  float64
		burst int
		every time.Duration
	}{
		{100, 100, 10 * time.Millisecond},
		{1, 1, time.Second},
		{0.1, 1, 10 * time.Second},
		{2.5, 2, 400 * time.Millisecond},
	} {
		b, now := newBucket(c.rate), began
		got := 0
		for ok, _ := b.takeToken(now); ok; ok, _ = b.takeToken(now) {
			got++
		}
		if got != c.burst {
			t.Errorf("%v a second: a burst of %d, want %d", c.rate, got, c.burst)
		}
		for range 50 {
			_, now = b.takeToken(now)
			if ok, _ := b.takeToken(now); !ok {
				t.Fatalf("%v a second: there is no token at the returned time", c.rate)
			}
		}
		if took := now.Sub(began); took < 49*c.every || took > 51*c.every { // a fraction of a token is left from the burst
			t.Errorf("%v a second: 50 more take %s, want about %s", c.rate, took, 50*c.every)
		}
	}
}

// In any interval the bucket gives at most a burst plus the rate, however it is asked,
// and the returned time is always in the future.
func TestBucketHoldsItsBounds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		rate := random.ExpFloat64() * 50
		if rate == 0 {
			continue
		}
		b, began := newBucket(rate), time.Unix(1_700_000_000, 0)
		now, given := began, 0
		for range 500 {
			ok, next := b.takeToken(now)
			if ok {
				given++
			} else if !next.After(now) {
				t.Fatalf("%v a second: none, but again at once", rate)
			}
			if allowed := max(rate, 1) + rate*now.Sub(began).Seconds() + 1e-3; float64(given) > allowed {
				t.Fatalf("%v a second: %d given, %v allowed", rate, given, allowed)
			}
			now = now.Add(time.Duration(random.ExpFloat64() * float64(time.Second) / rate))
		}
	}
}

func TestBucketAtTheEdges(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	free := newBucket(0)
	for range 1000 {
		if ok, _ := free.takeToken(now); !ok {
			t.Fatal("without a rate there is no bound")
		}
	}
	slow := newBucket(1e-300)
	if ok, _ := slow.takeToken(now); !ok {
		t.Error("the first is free")
	}
	if ok, next := slow.takeToken(now); ok || next.Sub(now) != longestNext {
		t.Errorf("the next: %t, %s", ok, next)
	}
	back := newBucket(1)
	back.takeToken(now)
	if ok, next := back.takeToken(now.Add(-time.Hour)); ok || next.Before(now) {
		t.Errorf("a clock that goes back gives a token: %t, %s", ok, next)
	}
}
