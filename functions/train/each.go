package train

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/scheduler"
)

// eachAtOnce is how many requests of one tick are sent at once: enough to be written in batches.
const eachAtOnce = 128

// takeEach requests a run for every key that the recipe knows. If it is interrupted the
// tick comes again, and the requests that were written already are known by their ids.
func (t *trainer) takeEach(ctx context.Context, v *broker.View, w config.RecipeWhen) error {
	keys, err := t.keys(ctx)
	if err != nil {
		return fmt.Errorf("list its keys: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	event := request(v, t.recipe, "", w)
	todo := make(chan string)
	var askers sync.WaitGroup
	for range min(eachAtOnce, len(keys)) {
		askers.Go(func() {
			for key := range todo {
				if err := t.askOne(ctx, event, key, w.Spread); err != nil {
					cancel(fmt.Errorf("for key %s: %w", key, err)) // the first error counts
				}
			}
		})
	}
	hand(ctx, todo, keys)
	askers.Wait()
	return context.Cause(ctx)
}

func hand(ctx context.Context, todo chan<- string, keys []string) {
	defer close(todo)
	for _, key := range keys {
		select {
		case todo <- key:
		case <-ctx.Done():
			return
		}
	}
}

func (t *trainer) askOne(ctx context.Context, r scheduler.Request, key string, spread time.Duration) error {
	r.Key, r.Delay = key, place(key, spread)
	_, err := t.opt.Asker.Request(ctx, r)
	return err
}

func (t *trainer) keys(ctx context.Context) (all []string, err error) {
	err = t.opt.Keys(ctx, t.recipe, func(key string) bool {
		all = append(all, key)
		return ctx.Err() == nil
	})
	return all, err
}

// place returns the delay of a key within a spread. It is a hash of the key, so the
// delays are even, and a key has the same delay every night.
func place(key string, spread time.Duration) time.Duration {
	if spread <= 0 {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	return time.Duration(mix(h.Sum64()) % uint64(spread))
}

// mix spreads the close results that FNV has for keys which differ only in their last
// letter. It is the finalizer of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
