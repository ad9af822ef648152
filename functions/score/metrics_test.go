package score

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBucketsHoldWhatTheySay(t *testing.T) {
	last := int64(-1)
	for b := range buckets - 1 {
		top := bucketTop(b)
		if bucketOf(top) != b || bucketOf(last+1) != b {
			t.Fatalf("bucket %d ends at %d, which is in %d; it begins at %d, which is in %d", b, top, bucketOf(top), last+1, bucketOf(last+1))
		}
		last = top
	}
	if bucketOf(-5) != 0 || bucketOf(1<<62) != buckets-1 {
		t.Error("a number out of range is not in the first or last bucket")
	}
	for _, bound := range slices.Concat(latencyBounds, batchBounds) {
		if bucketTop(bucketOf(bound)) != bound {
			t.Errorf("%d is not the top of a bucket, so a histogram cannot tell it", bound)
		}
	}
}

func TestQuantilesAreWithinAQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l latencies
		r := rand.New(rand.NewPCG(1, 2))
		all := make([]int64, 10_000)
		for i := range all {
			all[i] = int64(r.ExpFloat64() * 100)
			l.one(all[i])
		}
		slices.Sort(all)
		for _, q := range []float64{0, .5, .9, .99, .999} {
			want := all[int(q*float64(len(all)))]
			if got := l.quantile(q); got < want || got > want+want/4+1 {
				t.Errorf("the quantile %v is %d, want %d", q, got, want)
			}
		}
		time.Sleep(lately + time.Second)
		l.one(1)
		if got := l.quantile(.5); got < 50 {
			t.Errorf("the while before is forgotten at once: %d", got)
		}
		time.Sleep(lately + time.Second)
		l.one(1)
		if got := l.quantile(.5); got != 1 {
			t.Errorf("an old number still counts: %d", got)
		}
		if _, n, _ := l.histogram(nil); n != 10_002 {
			t.Errorf("of all there are %d", n)
		}
	})
}

func TestARateIsThatOfTheLastSeconds(t *testing.T) {
	var r rate
	at := time.Unix(1_000, 0)
	for i := range 30 {
		r.add(100, at.Add(time.Duration(i)*time.Second))
	}
	if got := r.average(at.Add(30 * time.Second)); got != 100 {
		t.Errorf("it is %v a second", got)
	}
	if got := r.average(at.Add(35 * time.Second)); got != 50 {
		t.Errorf("five seconds later it is %v", got)
	}
	if got := r.average(at.Add(time.Hour)); got != 0 {
		t.Errorf("an hour later it is %v", got)
	}
}
