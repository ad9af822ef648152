package access

import (
	"fmt"
	"testing"
	"time"
)

func TestSeenIsBounded(t *testing.T) {
	s := newSeen(10)
	often := hashOf("often")
	s.put(often, &Caller{name: "often"}, clockStart, clockStart.Add(time.Hour))
	for i := range 1000 {
		s.put(hashOf(fmt.Sprint(i)), &Caller{}, clockStart, clockStart.Add(time.Hour))
		if len(s.young)+len(s.old) > 20 {
			t.Fatalf("%d and %d are remembered", len(s.young), len(s.old))
		}
		if i%5 == 0 && s.get(often, clockStart) == nil {
			t.Fatalf("what is used often was forgotten after %d", i)
		}
	}
	if s.get(hashOf("1"), clockStart) != nil {
		t.Error("what was not used is remembered")
	}
}

func TestSeenEnds(t *testing.T) {
	s := newSeen(10)
	s.put(tokenHash{1}, &Caller{}, clockStart, clockStart.Add(time.Hour))
	s.put(tokenHash{2}, &Caller{}, clockStart, clockStart.Add(time.Minute))
	for _, c := range []struct {
		jwt   tokenHash
		after time.Duration
		known bool
	}{
		{tokenHash{1}, seenFor - 1, true}, {tokenHash{1}, seenFor, false},
		{tokenHash{2}, time.Minute - 1, true}, {tokenHash{2}, time.Minute, false}, {tokenHash{3}, 0, false},
	} {
		if got := s.get(c.jwt, clockStart.Add(c.after)) != nil; got != c.known {
			t.Errorf("%d after %s: %t", c.jwt[0], c.after, got)
		}
	}
}
