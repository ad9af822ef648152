package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// chance makes facts about a few runs. Most of them make sense.
type chance struct {
	*rand.Rand
	*script
	keys    int
	recipes []string
	known   sync.Map // recipe/key → last making that was read
	models  sync.Map // name → last model that was read
}

func (c *chance) view(r *rand.Rand) *broker.View {
	recipe, key := c.recipes[r.IntN(len(c.recipes))], fmt.Sprint("bot-", r.IntN(c.keys))
	m := &fold.Making{}
	if known, ok := c.known.Load(recipe + "/" + key); ok {
		m = known.(*fold.Making)
	}
	switch n := r.IntN(20); {
	case n == 0:
		return c.oddFact(r, recipe, key)
	case n == 1:
		return c.script.view(tidemill.TypeRunForgotten, recipe, key, "", tidemill.RunForgotten{Cause: tidemill.Cause{Source: "/test", ID: fmt.Sprint("end-", r.IntN(9))}})
	case n < 8 || m.Live == nil && m.Waiting == nil:
		v, _ := c.runRequest(recipe, key, fmt.Sprint(key, ", ", r.IntN(60)), func(d *tidemill.RunRequested) {
			d.Priority = r.IntN(3) - 1
			d.Debounce = time.Duration(r.IntN(3)) * time.Hour
			d.Delay = time.Duration(r.IntN(3)) * time.Minute
		})
		return v
	case n < 10:
		run := m.Live
		if run == nil || m.Waiting != nil && n == 9 {
			run = m.Waiting
		}
		return c.script.view(tidemill.TypeRunCancelled, recipe, key, run.ID, tidemill.RunCancelledData{Reason: "no"})
	case m.Live == nil:
		return c.start(m.Waiting, r)
	case m.Live.State == tidemill.RunRetrying:
		return c.start(m.Live, r)
	case m.Live.State == tidemill.RunCommitting:
		return c.script.view(tidemill.TypeRunCommitted, recipe, key, m.Live.ID, tidemill.RunCommitted{Dataset: "d", Branch: "main", Commit: "c"})
	}
	if r.IntN(4) == 0 {
		return c.script.view(tidemill.TypeRunSeen, recipe, key, m.Live.ID, tidemill.RunSeen{Attempt: len(m.Live.Attempts), Pending: []string{"", "no GPU"}[r.IntN(2)],
			Where: tidemill.Where{Image: []string{"", "sha256:1"}[r.IntN(2)]}})
	}
	outcomes := []tidemill.Outcome{tidemill.OutcomeSucceeded, tidemill.OutcomeSucceeded, tidemill.OutcomeFailed, tidemill.OutcomeLost, tidemill.OutcomeCancelled}
	return c.finish(m.Live, outcomes[r.IntN(len(outcomes))])
}

func (c *chance) start(run *tidemill.Run, r *rand.Rand) *broker.View {
	d := tidemill.RunStarted{Attempt: run.NextAttempt(), Seen: run.LastAsked()}
	if r.IntN(2) == 0 { // as this version writes it; sometimes it misses a cause
		d.Causes = max(1, run.Causes-r.IntN(2))
	}
	if d.Attempt == 1 {
		d.Plan = plan([]string{"gpu", "default"}[r.IntN(2)], []string{"", "made"}[r.IntN(2)])
	}
	return c.script.view(tidemill.TypeRunStarted, run.Recipe, run.Key, run.ID, d)
}

// oddFact returns a fact that must be skipped.
func (c *chance) oddFact(r *rand.Rand, recipe, key string) *broker.View {
	v := c.script.view(tidemill.TypeRunRequested, recipe, key, "odd", "no object")
	switch r.IntN(4) {
	case 0:
		v.Type = tidemill.TypeModelPromoted
	case 1:
		v.Key = []byte("elsewhere")
	case 2:
		v.Extensions = v.Extensions[1:] // without a recipe
	}
	return v
}

// In the end Redis has the state of a simple fold of the log. This holds for any order and
// any batches of facts, for several ledgers at once, and for a flush or a lost key at any time.
func TestRedisHoldsThePlainFold(t *testing.T) { propertyRound(newWorld(t, 2), 1, 300) }

func propertyRound(w *world, seed uint64, facts int64) {
	r := rand.New(rand.NewPCG(seed, 1))
	c := &chance{Rand: r, script: &script{}, keys: 1 + r.IntN(20), recipes: []string{"intent", "fraud", "demand"}[:1+r.IntN(3)]}
	ledgers := make([]*ledger.Ledger, 1+r.IntN(3))
	for i := range ledgers {
		ledgers[i] = w.openWith(w.options().AtOnce(1+r.IntN(40)).Far([]int64{1, 1, 20, 0}[r.IntN(4)], 1+r.IntN(30)))
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var left atomic.Int64
	left.Store(facts)
	var working sync.WaitGroup
	for i := range 4 {
		r := rand.New(rand.NewPCG(seed, uint64(i+10)))
		working.Go(func() {
			for left.Add(-1) >= 0 {
				c.randomStep(ctx, w, ledgers[r.IntN(len(ledgers))], r)
			}
		})
	}
	working.Wait()
	w.waitAnswers(w.open()) // it has no list of models in memory
	w.waitSettled(ledgers[0])
	w.checkSame(w.modelOf())
	fill := w.redisContent()["at"]["fill"]
	w.waitAnswers(w.open()) // the prints of the last facts are those of the log
	if now := w.redisContent()["at"]["fill"]; now != fill {
		w.t.Error("Redis was filled again, although nothing was lost")
	}
	for _, l := range ledgers {
		w.waitAnswers(l)
		w.listsModels(l)
	}
}

// randomStep does one random step.
func (c *chance) randomStep(ctx context.Context, w *world, l *ledger.Ledger, r *rand.Rand) {
	switch n := r.IntN(100); {
	case n < 2:
		if err := w.redis.FlushAll(ctx).Err(); err != nil {
			w.t.Error(err)
		}
	case n < 4:
		w.loseKey(ctx, r)
	case n < 16:
		c.claim(ctx, w, l, r)
	case n < 22:
		c.listModels(ctx, w, l, r)
	case n < 42:
		v := c.view(r)
		if n%2 == 0 {
			v = c.model(r)
		}
		if _, err := w.produce.Publish(ctx, tidemill.StreamFacts, v); err != nil {
			w.t.Error(err)
		}
	case n < 65:
		v := c.model(r)
		if v.Type == tidemill.TypeModelUnloadable || string(v.Key) == "elsewhere" {
			return
		}
		_, m, err := l.AppendModel(ctx, v)
		if err != nil {
			w.t.Error(err)
			return
		}
		c.models.Store(m.Name, m)
	default:
		v := c.view(r)
		if recipe, ok := v.Attribute(tidemill.AttrRecipe); !ok || v.Type == tidemill.TypeModelPromoted || string(v.Key) != recipe+"/"+v.Subject {
			return
		}
		_, m, err := l.Append(ctx, v)
		if err != nil {
			w.t.Error(err)
			return
		}
		c.known.Store(m.Recipe+"/"+m.Key, m)
	}
}

// loseKey deletes a key, as a Redis that evicts does. It spares the nodes of queues, whose loss is
// noticed only when their runs are due.
func (w *world) loseKey(ctx context.Context, r *rand.Rand) {
	keys, err := w.redis.Keys(ctx, w.prefix()+"*").Result()
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.Contains(key, ":queue:") })
	if err == nil && len(keys) > 0 {
		err = w.redis.Del(ctx, keys[r.IntN(len(keys))]).Err()
	}
	if err != nil {
		w.t.Error(err)
	}
}

// claim takes a slot and returns it, sometimes only after the run has started.
func (c *chance) claim(ctx context.Context, w *world, l *ledger.Ledger, r *rand.Rand) {
	ask := ledger.Ask{Pool: "gpu", Slots: 0}
	for _, name := range c.recipes {
		ask.Recipes = append(ask.Recipes, ledger.Admission{Recipe: name, Priority: r.IntN(2)})
	}
	slot, ok, err := l.Claim(ctx, ask, time.Now().Add(time.Duration(r.IntN(5))*time.Hour))
	if err != nil && !errors.Is(err, ledger.ErrCatchingUp) {
		w.t.Error(err)
	}
	if !ok {
		return
	}
	if m, err := l.Making(ctx, slot.Recipe, slot.Key); err == nil && r.IntN(3) > 0 {
		if run, _ := m.DueRun(); run != nil && run.ID == slot.Run {
			if _, m, err = l.Append(ctx, c.start(run, r)); err != nil {
				w.t.Error(err)
				return
			}
			c.known.Store(m.Recipe+"/"+m.Key, m)
		}
	}
	if err := l.Return(ctx, slot); err != nil {
		w.t.Error(err)
	}
}
