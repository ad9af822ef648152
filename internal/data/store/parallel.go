package store

import (
	"context"
	"sync"
)

// each calls fn for all of the items, several at once, and returns the first
// error. None is begun after an error.
func each[T any](ctx context.Context, ways int, items []T, fn func(context.Context, T) error) error {
	if len(items) == 1 || ways < 2 {
		return oneByOne(ctx, items, fn)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan T)
	var all sync.WaitGroup
	for range min(ways, len(items)) {
		all.Go(func() {
			for i := range next {
				if err := fn(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	feed(ctx, next, items)
	all.Wait()
	return context.Cause(ctx)
}

func feed[T any](ctx context.Context, next chan<- T, items []T) {
	defer close(next)
	for _, i := range items {
		select {
		case next <- i:
		case <-ctx.Done():
			return
		}
	}
}

func oneByOne[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	for _, i := range items {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}
