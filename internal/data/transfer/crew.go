package transfer

import (
	"context"
	"sync"
)

// crew does things several at once until one fails.
type crew struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	slots chan struct{}
	all   sync.WaitGroup
}

func newCrew(ctx context.Context, ways int) *crew {
	c := &crew{slots: make(chan struct{}, ways)}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	return c
}

// do starts one thing as soon as a hand is free. It is false if nothing more is
// to be begun.
func (c *crew) do(work func(context.Context) error) bool {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return false
	}
	c.all.Go(func() {
		defer func() { <-c.slots }()
		if err := work(c.ctx); err != nil {
			c.stop(err)
		}
	})
	return c.ctx.Err() == nil
}

// wait waits for all and returns the first error, or the one it is given if that
// came first.
func (c *crew) wait(err error) error {
	if err != nil {
		c.stop(err)
	}
	c.all.Wait()
	defer c.stop(nil)
	return context.Cause(c.ctx)
}
