//go:build slow

package ledger_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// The cost of a decision does not grow with the number of waiting runs.
func TestADecisionIsFlat(t *testing.T) {
	few, many := decisionCost(t, 100), decisionCost(t, 10_000)
	t.Logf("100 wait: %+v; 10,000 wait: %+v", few, many)
	if many.commands > few.commands+8 || many.largest > 256 || many.memory > 2*few.memory {
		t.Errorf("100 wait: %+v; 10,000 wait: %+v", few, many)
	}
}

// The cost of a page does not depend on the number of runs.
func TestAPageIsFlat(t *testing.T) {
	few, many := pageCost(t, 200), pageCost(t, 5_000)
	t.Logf("looks of a page of 20 among 200: %d, among 5,000: %d", few, many)
	if many > 2*few {
		t.Errorf("looks of a page of 20 among 200: %d, among 5,000: %d", few, many)
	}
}

// A page reads only the models on it, and the entries of changed partitions.
func TestAPageOfModelsIsFlat(t *testing.T) {
	t.Parallel()
	w, m := newMiniWorld(t, 4)
	s := &script{}
	w.publish(2_000, func(i int) *broker.View { return s.registered(fmt.Sprint("intent/bot-", i), "run", 2) })
	l := w.open()
	var entries, models atomic.Int64
	noteCommands(m.Server().SetPreHook, func(command string, args []string) {
		switch {
		case command == "HGETALL" && strings.Contains(args[0], "entries:"):
			entries.Add(1)
		case command == "HMGET" && strings.HasSuffix(args[0], ":models"):
			models.Add(int64(len(args) - 1))
		}
	})
	q := ledger.ModelQuery{Limit: 20}
	page := func(what string, partitions int64) {
		t.Helper()
		entries.Store(0)
		models.Store(0)
		p, err := l.Models(t.Context(), q)
		must(t, err)
		q.After = p.Next
		if len(p.Models) != 20 || models.Load() != 20 || entries.Load() != partitions {
			t.Errorf("%s: a page of %d has read %d models and the entries of %d partitions, want %d", what, len(p.Models), models.Load(), entries.Load(), partitions)
		}
	}
	page("first", 4)
	page("second", 0)
	w.addModel(l, s.registered("intent/bot-7", "another run", 2)) // the model's entry does not change
	page("after a version", 0)
	w.addModel(l, s.registered("intent/new", "run", 2))
	page("after a new one", 1)
	must(t, w.redis.FlushAll(t.Context()).Err())
	_, _ = l.Models(t.Context(), q) // makes the ledger check at once whether Redis has forgotten facts
	w.waitSettled(l)
	caughtUp(t, l)
	page("after a flush", 4)
}

func TestRedisHoldsThePlainFoldOfAnySeed(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { propertyRound(newWorld(t, 1+int(seed)), seed, 300) })
	}
}
