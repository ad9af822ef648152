package main

import (
	"context"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// consumeOurs is our side of the comparison. It reads every event's attributes and data and calls
// Done for every event, and the group commits.
func consumeOurs(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	b, stream, err := open(ctx, t)
	if err != nil {
		return r, err
	}
	defer b.Close()
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Group: t.Group, Streams: []string{stream},
		MaxBytes: task.BufferedBytes, CommitEvery: task.CommitEvery})
	if err != nil {
		return r, err
	}
	warm, sum, err := readEvents(ctx, c, t.Warm)
	if err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(t); err != nil {
		return r, err
	}
	n, more, err := readEvents(ctx, c, t.Records)
	if err != nil {
		return r, err
	}
	t.Records = n // a delivery may go beyond the wanted number
	if r, err = m.Stop(t); err != nil {
		return r, err
	}
	r.Sum = sum + more + uint64(warm)
	return r, c.Close(ctx)
}

// readEvents reads at least n events.
func readEvents(ctx context.Context, c *broker.Consumer, n int) (got int, sum uint64, err error) {
	for got < n {
		d, err := c.Poll(ctx)
		if err != nil {
			return got, sum, err
		}
		for i := range d.Events {
			sum += lengths(&d.Events[i].View)
		}
		got += len(d.Events)
		d.Done()
	}
	return got, sum, nil
}

func lengths(v *broker.View) uint64 {
	n := len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.Time) + len(v.DataContentType) + len(v.Data) + len(v.Key)
	for i := range v.Extensions {
		n += len(v.Extensions[i].Value)
	}
	return uint64(n)
}
