package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// consume handles events as a member of a group. Each event takes a random time, so that events end
// in a different order than they began.
func (c *child) consume(ctx context.Context) error {
	b, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	r, err := c.consumer(ctx, b, broker.ConsumerOptions{Group: groupRead, Streams: []string{streamIn}, MaxBytes: 1 << 20,
		CommitEvery: 200 * time.Millisecond, Assigned: c.noteAssigned})
	if err != nil {
		return err
	}
	c.j.note("joining")
	err = c.handleAll(ctx, r)
	c.j.note("leaving")
	until, cancel := context.WithTimeout(context.Background(), stopLimit-5*time.Second)
	defer cancel()
	return errors.Join(err, r.Close(until))
}

func (c *child) noteAssigned(_ context.Context, all []broker.Position) ([]broker.Position, error) {
	for _, p := range all {
		c.j.note("take", p.Partition, p.Offset)
	}
	return nil, nil
}

func (c *child) handleAll(ctx context.Context, from *broker.Consumer) error {
	var open sync.WaitGroup
	defer open.Wait()
	r := rand.New(rand.NewPCG(c.seed, uint64(c.index)))
	for {
		d, err := from.Poll(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		events, n := d.Events, len(d.Events) // d may be reused after its last event is done
		for i := range n {
			c.handle(&open, d.Partition, &events[i], handlingTime(r))
		}
	}
}

// handle ends an event after a while. It writes the end to the journal before it calls Done, so
// that a kill between the two leaves a line too many, but never a missing line.
func (c *child) handle(open *sync.WaitGroup, partition int32, e *broker.Incoming, takes time.Duration) {
	offset := e.Offset
	c.j.note("begin", partition, offset, time.Since(e.Time).Milliseconds())
	open.Add(1)
	time.AfterFunc(takes, func() {
		defer open.Done()
		c.j.note("done", partition, offset)
		e.Done()
	})
}

func handlingTime(r *rand.Rand) time.Duration {
	if r.IntN(50) == 0 {
		return time.Duration(r.IntN(300)) * time.Millisecond
	}
	return time.Duration(r.IntN(15)) * time.Millisecond
}
