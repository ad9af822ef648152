package dedupe

import (
	"testing"
	"time"
)

// In any order and number of marks, the newest half of the limit is remembered, and never more than
// the limit.
func TestKnownForgetsTheOldest(t *testing.T) {
	for _, limit := range []int{1, 2, 10, 1000} {
		var k marksKnown
		now := time.UnixMilli(1_000_000)
		for i := range 5 * limit {
			m := numbered(i)
			m.at = now.UnixMilli()
			k.addOwn(m, now, time.Hour, limit)
			if n := len(k.young.marks) + len(k.old.marks); n > max(2, limit) {
				t.Fatalf("%d of %d are remembered", n, limit)
			}
			for back := range min(i+1, max(1, limit/2)) {
				if !k.isKnown(numbered(i-back).digest, now, time.Hour) {
					t.Fatalf("limit %d: after %d marks, %d ago is forgotten", limit, i, back)
				}
			}
			if since := k.oldestTime(); i < limit/2 && since != 1_000_000 {
				t.Fatalf("limit %d: after %d marks the oldest is of %d", limit, i, since)
			}
			now = now.Add(time.Millisecond)
		}
	}
}

// The marks that a gateway reads at its start are older than its first generation. They must stay
// in Redis for other gateways that start.
func TestKnownTellsItsOldest(t *testing.T) {
	var k marksKnown
	now := time.UnixMilli(5000)
	k.addOwn(mark{at: 4000}, now, time.Second, 10)
	k.addOwn(mark{digest: digest{1}, at: 5000}, now, time.Second, 10)
	if k.oldestTime() != 4000 {
		t.Errorf("the oldest is of %d", k.oldestTime())
	}
	k.addOwn(mark{digest: digest{2}, at: 6000}, now.Add(time.Second), time.Second, 10)
	if k.oldestTime() != 4000 || len(k.old.marks) != 2 {
		t.Errorf("after a turn the oldest is of %d", k.oldestTime())
	}
	k.addOwn(mark{digest: digest{3}, at: 7000}, now.Add(2*time.Second), time.Second, 10)
	if k.oldestTime() != 6000 {
		t.Errorf("after two turns the oldest is of %d", k.oldestTime())
	}
}

func TestALaterMarkCounts(t *testing.T) {
	var k marksKnown
	now := time.UnixMilli(10_000)
	for _, at := range []int64{9000, 9500, 9200} {
		k.addOther(mark{at: at}, now, time.Minute, 10)
	}
	if !k.isKnown(digest{}, now, 501*time.Millisecond) || k.isKnown(digest{}, now, 500*time.Millisecond) {
		t.Errorf("it counts as marked at %d", k.young.marks[digest{}])
	}
}
