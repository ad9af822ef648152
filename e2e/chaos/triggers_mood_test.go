package chaos

import (
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"
)

// mood is the sink's behaviour in an attempt.
type mood struct {
	after  time.Duration // time for which the sink sleeps
	status int
	wait   bool // the sink asks for a pause of one second
	cut    bool // the sink closes the connection without an answer
}

const longSleep = 3 * time.Second

// moodOf draws the mood from the seed, the rule, the event and the number of the attempt. So a seed
// gives the same moods whatever the dispatchers do, and an event gets another mood at each attempt.
func moodOf(seed uint64, rule, id string, try int) mood {
	h := fnv.New64a()
	_, _ = h.Write([]byte(rule + " " + id)) // never fails
	r := rand.New(rand.NewPCG(seed, h.Sum64()+uint64(try)))
	m := mood{status: http.StatusOK}
	if r.IntN(20) == 0 {
		m.after = ms(r, 1, 30)
	}
	switch n := r.IntN(1000); {
	case n < 100:
		m.status = http.StatusInternalServerError
	case n < 110:
		m.status = http.StatusNotFound
	case n < 120:
		m.status = http.StatusTooManyRequests
	case n < 123:
		m.status, m.wait = http.StatusServiceUnavailable, true
	case n < 135:
		m.cut = true
	case n < 137:
		m.after = longSleep
	case n < 138:
		m.after, m.status = longSleep, http.StatusInternalServerError
	}
	return m
}

func TestMoods(t *testing.T) {
	const n = 20_000
	fine, sleeps, late := 0, 0, 0
	for i := range n {
		m := moodOf(1, "keyed", eventID(i), 0)
		if m != moodOf(1, "keyed", eventID(i), 0) {
			t.Fatalf("event %d has two moods", i)
		}
		if m.status == http.StatusOK && !m.cut {
			fine++
		}
		if m.after == longSleep {
			sleeps++
		}
		if second := moodOf(1, "keyed", eventID(i), 1); m.status != http.StatusOK && second.status != http.StatusOK {
			late++
		}
	}
	if fine < n*4/5 || fine > n*9/10 || sleeps < n/1000 || sleeps > n*6/1000 || late == 0 || late > n/20 {
		t.Errorf("of %d, %d are fine, %d sleep, %d fail twice", n, fine, sleeps, late)
	}
}
