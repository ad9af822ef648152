package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/data/ledger"
)

func TestARunIsFoundByTheBeginningOfItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	byLetter := map[byte][]string{}
	for i := range 40 {
		v, id := s.runRequest("intent", fmt.Sprint("bot-", i), "cause", nil)
		w.add(l, v)
		byLetter[id[0]] = append(byLetter[id[0]], id)
	}
	for letter, ids := range byLetter {
		r, err := l.Find(t.Context(), string(letter))
		if len(ids) == 1 {
			if err != nil || r.ID != ids[0] {
				t.Errorf("by %c it finds %+v, %v", letter, r, err)
			}
		} else if !errors.Is(err, ledger.ErrAmbiguous) || !strings.Contains(err.Error(), "give more of it") || strings.Contains(err.Error(), ids[0]) {
			t.Errorf("by %c, with which %d begin, it finds %+v, %v", letter, len(ids), r, err)
		}
		for _, id := range ids {
			for _, n := range []int{8, len(id)} {
				if r, err := l.Find(t.Context(), id[:n]); err != nil || r.ID != id {
					t.Errorf("by %s it finds %+v, %v", id[:n], r, err)
				}
			}
		}
	}
	for _, none := range []string{"", "*", "a*", "[a-z]", "1", strings.Repeat("a", 26), strings.Repeat("a", 25), "\\"} {
		if r, err := l.Find(t.Context(), none); none != "" && !errors.Is(err, ledger.ErrUnknown) || err == nil {
			t.Errorf("by %q it finds %+v, %v", none, r, err)
		}
	}
}

// Busy shows why a claim is not granted.
func TestBusyCountsAsClaimsDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	ask := ledger.Ask{Pool: "gpu", Slots: 2, Recipes: []ledger.Admission{{Recipe: "intent"}}}
	now := time.Now().Add(time.Minute) // fixed, so that no claim expires before it shall
	claim := func() (ledger.Slot, bool) {
		slot, ok, err := l.Claim(t.Context(), ask, now)
		must(t, err)
		return slot, ok
	}
	for i := range 3 {
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "cause", nil)
		w.add(l, v)
	}
	first, _ := claim()
	m, err := l.Making(t.Context(), first.Recipe, first.Key)
	must(t, err)
	w.add(l, s.start(m.Waiting, "gpu"))
	second, _ := claim() // its run is not started
	busy := func() ledger.Busy {
		b, err := l.Busy(t.Context(), now)
		must(t, err)
		return b
	}
	if b := busy(); b.Pools["gpu"] != 2 || b.Recipes["intent"] != 2 || len(b.Pools) != 1 {
		t.Errorf("busy are %+v", b)
	}
	if _, ok := claim(); ok {
		t.Error("a third was admitted to two slots")
	}
	must(t, l.Return(t.Context(), second))
	if b := busy(); b.Pools["gpu"] != 1 || b.Recipes["intent"] != 1 {
		t.Errorf("after one was returned, busy are %+v", b)
	}
	if _, ok := claim(); !ok {
		t.Error("the returned slot is not claimed")
	}
	now = now.Add(time.Minute)
	if b := busy(); b.Pools["gpu"] != 1 || b.Recipes["intent"] != 1 {
		t.Errorf("after a claim has expired, busy are %+v", b)
	}
}
