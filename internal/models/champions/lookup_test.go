package champions

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// redisAway lets every command of a client fail while it is set.
type redisAway struct{ atomic.Bool }

var errRedisAway = errors.New("redis is away")

// DialHook implements redis.Hook.
func (a *redisAway) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (a *redisAway) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a.Load() {
			return errRedisAway
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (a *redisAway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		if a.Load() {
			return errRedisAway
		}
		return next(ctx, all)
	}
}

// The files of a version that is not the champion are looked up once, until the next fact about the model.
func TestAVersionIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, 1), &script{}
	for n := 1; n <= 5; n++ {
		w.publish(s.register("intent/bot-1", n))
	}
	w.must(w.ledger.AwaitFolded(w.ctx(), 0, w.endPlaces()[0]))
	away := &redisAway{}
	w.redis.AddHook(away)
	table := w.open(w.options())
	find := func(version int) (string, error) { return table.Artifact(w.ctx(), "intent/bot-1", version) }
	if files, err := find(4); err != nil || files != artifactOf(4) {
		t.Fatalf("version 4 has the files %q, %v", files, err)
	}
	away.Store(true)
	defer away.Store(false)
	if files, err := find(4); err != nil || files != artifactOf(4) {
		t.Errorf("version 4 is looked up again: %q, %v", files, err)
	}
	if files, err := find(3); !errors.Is(err, errRedisAway) {
		t.Errorf("version 3 is known without a look: %q, %v", files, err)
	}
	w.publish(s.register("intent/bot-1", 6))
	w.must(table.Reached(w.ctx(), w.endPlaces()))
	if files, err := find(4); !errors.Is(err, errRedisAway) {
		t.Errorf("version 4 is not looked up after another fact: %q, %v", files, err)
	}
}

func TestEachChampion(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, 1), &script{}
	w.publish(s.register("intent/a", 1))
	w.publish(s.promote("intent/a", 1, 0, 0))
	w.publish(s.register("intent/none", 1))
	got := map[string]int{}
	w.open(w.options()).Each(func(model string, now Champion) { got[model] = now.Version })
	if !maps.Equal(got, map[string]int{"intent/a": 1}) {
		t.Errorf("the champions are %v", got)
	}
}
