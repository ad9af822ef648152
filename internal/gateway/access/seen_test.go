package access

import (
	"fmt"
	"testing"
	"time"
)

func TestSeenIsBounded(t *testing.T) {
	s := newSeen(10)
	often := hashOf("often")
	s.put(often, &Caller{name: "often"}, morning, morning.Add(time.Hour))
	for i := range 1000 {
		s.put(hashOf(fmt.Sprint(i)), &Caller{}, morning, morning.Add(time.Hour))
		if len(s.young)+len(s.old) > 20 {
			t.Fatalf("%d and %d are remembered", len(s.young), len(s.old))
		}
		if i%5 == 0 && s.get(often, morning) == nil {
			t.Fatalf("what is used often was forgotten after %d", i)
		}
	}
	if s.get(hashOf("1"), morning) != nil {
		t.Error("what was not used is remembered")
	}
}

func TestSeenEnds(t *testing.T) {
	s := newSeen(10)
	s.put(hash{1}, &Caller{}, morning, morning.Add(time.Hour))
	s.put(hash{2}, &Caller{}, morning, morning.Add(time.Minute))
	for _, c := range []struct {
		jwt   hash
		after time.Duration
		known bool
	}{
		{hash{1}, seenFor - 1, true}, {hash{1}, seenFor, false},
		{hash{2}, time.Minute - 1, true}, {hash{2}, time.Minute, false}, {hash{3}, 0, false},
	} {
		if got := s.get(c.jwt, morning.Add(c.after)) != nil; got != c.known {
			t.Errorf("%d after %s: %t", c.jwt[0], c.after, got)
		}
	}
}
