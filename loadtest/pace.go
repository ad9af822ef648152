package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

// latencyRate is the events a second of the latency measurement.
const latencyRate = 2000

// sample is a list of times, sorted once it is complete.
type sample []time.Duration

func (s sample) sorted() sample { slices.Sort(s); return s }

// sendTimes are the times at which each message left. They are atomic because only the network
// orders the writes before the reads, which Go's memory model cannot see.
type sendTimes struct {
	begun time.Time
	at    []atomic.Int64
}

func newStamps(n int) *sendTimes { return &sendTimes{time.Now(), make([]atomic.Int64, n)} }

func (s *sendTimes) left(i int) { s.at[i].Store(int64(time.Since(s.begun))) }

func (s *sendTimes) since(i int) time.Duration {
	return time.Since(s.begun) - time.Duration(s.at[i].Load())
}

// callAtRate calls do n times at the rate. This process can wait only for about a millisecond or
// more, so calls come in pairs. Late calls are made at once. A message's time counts from its call,
// on this process's clock.
func callAtRate(ctx context.Context, n int, do func(i int) error) error {
	return paceAt(ctx, latencyRate, n, do)
}

// paceAt calls do n times at the given number of calls per second.
func paceAt(ctx context.Context, rate, n int, do func(i int) error) error {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	begun := time.Now()
	for i := 0; i < n; {
		due := min(n, int(time.Since(begun)*time.Duration(rate)/time.Second)+1)
		for ; i < due; i++ {
			if err := do(i); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// quantile is a quantile of a sorted sample.
func (s sample) quantile(q float64) time.Duration { return task.Quantile(s, q) }
