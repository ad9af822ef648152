package dedupe

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

func numbered(n int) (m mark) {
	binary.BigEndian.PutUint64(m.digest[:], uint64(n))
	return m
}

func number(m mark) int { return int(binary.BigEndian.Uint64(m.digest[:])) }

// inOrder fails unless the marks are numbered from first on.
func inOrder(t *testing.T, marks []mark, first, count int) {
	t.Helper()
	if len(marks) != count {
		t.Fatalf("%d marks, want %d", len(marks), count)
	}
	for i, m := range marks {
		if number(m) != first+i {
			t.Fatalf("mark %d stands where %d should", number(m), first+i)
		}
	}
}

func TestQueueKeepsOrder(t *testing.T) {
	var q markQueue
	next, taken := 0, 0
	for round := range 200 {
		for range round % 17 {
			q.add(numbered(next))
			next++
		}
		marks := q.takeMarks(7)
		inOrder(t, marks, taken, len(marks))
		q.add(numbered(next)) // while a trip carries the marks
		next++
		inOrder(t, marks, taken, len(marks))
		if round%5 == 0 {
			if dropped := q.restore(marks); dropped != 0 {
				t.Fatal("dropped", dropped)
			}
			continue
		}
		taken += len(marks)
		q.reuseSlice(marks)
	}
	inOrder(t, q.waiting, taken, next-taken)
}

func TestQueueForgetsTheOldest(t *testing.T) {
	var q markQueue
	dropped := 0
	for i := range 3 * maxWaiting {
		dropped += q.add(numbered(i))
	}
	inOrder(t, q.waiting, dropped, 3*maxWaiting-dropped)
	if n := len(q.waiting); n > maxWaiting || n < maxWaiting*3/4 {
		t.Errorf("%d wait", n)
	}
	marks := q.takeMarks(1000)
	for range 1000 + maxWaiting - len(q.waiting) {
		if q.add(numbered(0)) > 0 {
			break
		}
	}
	room := maxWaiting - len(q.waiting)
	if lost := q.restore(marks); lost != max(0, 1000-room) || len(q.waiting) > maxWaiting {
		t.Errorf("%d did not fit into %d, %d wait", lost, room, len(q.waiting))
	}
}

func TestDigestsDiffer(t *testing.T) {
	long := strings.Repeat("x", 300)
	seen := map[digest][2]string{}
	for _, e := range [][2]string{{"", ""}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"\x01a", ""}, {"", "\x01a"}, {long, "1"}, {long + "1", ""}, {long, "2"}, {"1", long}} {
		d := digestOf(e[0], e[1])
		if first, ok := seen[d]; ok {
			t.Errorf("%q and %q are one", first, e)
		}
		seen[d] = e
		if d != digestOf(e[0], e[1]) {
			t.Errorf("%q is two", e)
		}
	}
}

// The data in Redis outlives a program, so another layout needs another version.
func TestLayout(t *testing.T) {
	if d := digestOf("/shop", "1"); dataVersion != "1" || string(d[:4]) != "\x50\xd9\x2b\xc3" {
		t.Errorf("layout %s has digest %x", dataVersion, d[:4])
	}
	want := []mark{{digestOf("/shop", "1"), 1_700_000_000_123}, {digestOf("/shop", "2"), 1}}
	text := string(encode(want))
	if len(text) != 2*24 || text[16:24] != "\x00\x00\x01\x8b\xcf\xe5\x68\x7b" {
		t.Errorf("they lie there as %x", text)
	}
	for cut, n := range map[int]int{0: 0, 23: 0, 24: 1, 47: 1, 48: 2} {
		var got []mark
		decodeMarks(text[:cut], func(m mark) { got = append(got, m) })
		if !slices.Equal(got, want[:n]) {
			t.Errorf("%d bytes are read as %v", cut, got)
		}
	}
}

func TestDigestNeedsNoMemory(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { digestOf("/shop/eu", "4c7d1f5e-0000-4000-8000-000000000000") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
