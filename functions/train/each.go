package train

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/runs/scheduler"
)

const (
	// eachAtOnce is how many requests of one tick are sent at once: enough to be written in batches.
	eachAtOnce = 128
	// eachPart is the number of keys after which the progress of a tick is stored.
	eachPart = 2000
)

// Progress stores how far a tick without a key has come, so that its next try continues there, in
// any process. A store's notes do that.
type Progress interface {
	Note(ctx context.Context, name string) ([]byte, error)
	PutNote(ctx context.Context, name string, data []byte) error
	RemoveNote(ctx context.Context, name string) error
}

// takeEach requests a run for every key that the recipe knows, in the order of the keys. If it is
// interrupted the tick comes again, and continues after the last part that was finished. Requests of
// an unfinished part are repeated, and those that are on the log already write nothing.
func (t *trainer) takeEach(ctx context.Context, v *broker.View, w config.RecipeWhen) error {
	keys, err := t.keys(ctx)
	if err != nil {
		return fmt.Errorf("list its keys: %w", err)
	}
	event := request(v, t.recipe, "", w)
	event.Once = true
	if len(keys) <= eachPart {
		return t.askAll(ctx, event, keys, w.Spread)
	}
	name := "each-" + tidemill.ID(t.recipe, v.Source, v.ID)
	after, err := t.opt.Progress.Note(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read for how many keys it was requested: %w", err)
	}
	slices.Sort(keys)
	from, done := slices.BinarySearch(keys, string(after))
	if done {
		from++
	}
	for part := range slices.Chunk(keys[from:], eachPart) {
		if err := t.askAll(ctx, event, part, w.Spread); err != nil {
			return err
		}
		if err := t.opt.Progress.PutNote(ctx, name, []byte(part[len(part)-1])); err != nil {
			return fmt.Errorf("store for how many keys it was requested: %w", err)
		}
	}
	return t.opt.Progress.RemoveNote(ctx, name)
}

// askAll requests a run for each of some keys.
func (t *trainer) askAll(ctx context.Context, event scheduler.Request, keys []string, spread time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan string)
	var askers sync.WaitGroup
	for range min(eachAtOnce, len(keys)) {
		askers.Go(func() {
			for key := range todo {
				if err := t.askOne(ctx, event, key, spread); err != nil {
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
