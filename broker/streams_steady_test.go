package broker

import (
	"testing"
	"testing/synctest"
	"time"
)

// What is left to do is given up when it has been the same for long, counted from
// when it became that; what becomes less is not.
func TestSteadiness(t *testing.T) {
	const rounds, every = 4 * ensureRounds, ensureSettles / 10
	left := func(streams ...string) actions {
		a := actions{}
		for _, s := range streams {
			a.alter = append(a.alter, alteredStream{name: s, settings: []wanted{{key: "max.message.bytes", value: "2"}}, from: []string{"1"}})
		}
		return a
	}
	synctest.Test(t, func(t *testing.T) {
		var s steadiness
		ended := -1
		for i := range rounds {
			now := left("a", "b")
			if i >= ensureRounds/2 {
				now = left("b")
			}
			if s.still(now) {
				ended = i
				break
			}
			time.Sleep(every)
		}
		if want := ensureRounds/2 + ensureRounds - 1; ended != want {
			t.Errorf("given up in round %d, not %d", ended, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var s steadiness
		for range rounds {
			if s.still(left("a")) {
				t.Fatal("given up at once")
			}
		}
	})
}
