package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidemill.dev/loadtest/internal/task"
)

func consume(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	c, err := client(t,
		kgo.ConsumeTopics(t.Topic),
		kgo.ConsumerGroup(t.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(task.FetchBytes),
		kgo.FetchMaxPartitionBytes(task.PartitionBytes),
		kgo.AutoCommitInterval(task.CommitEvery))
	if err != nil {
		return r, err
	}
	defer c.Close()
	warm, sum, err := readRecords(ctx, c, t.Warm)
	if err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(t); err != nil {
		return r, err
	}
	n, more, err := readRecords(ctx, c, t.Records)
	if err != nil {
		return r, err
	}
	t.Records = n
	if r, err = m.Stop(t); err != nil {
		return r, err
	}
	r.Sum = sum + more + uint64(warm)
	return r, c.CommitUncommittedOffsets(ctx)
}

// readRecords reads at least n records.
func readRecords(ctx context.Context, c *kgo.Client, n int) (got int, sum uint64, err error) {
	for got < n {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			return got, sum, err
		}
		f.EachRecord(func(r *kgo.Record) {
			sum += lengths(r)
			got++
		})
	}
	return got, sum, nil
}

func lengths(r *kgo.Record) uint64 {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Value)
	}
	return uint64(n)
}
