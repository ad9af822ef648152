package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// The commands of a hookSubscriber, each with a duration.
const (
	lapPace  = "pace"  // publish at the rate of the latency measurement
	lapHop   = "hop"   // post at that rate with a bare client instead
	lapFlood = "flood" // publish so that events are always under way
	lapCount = "count" // count the posts of another process
)

// lapPatience is how long an event may be under way before it counts as lost.
const lapPatience = time.Minute

// pacedMeasurement is one measurement at a pace: how long each event was under way.
type pacedMeasurement struct {
	first   int // number of the first event
	left    *sendTimes
	took    []atomic.Int64
	acked   []atomic.Int64 // zero where a bare client posts
	missing atomic.Int64
	done    chan struct{}
}

func newHeat(first, n int) *pacedMeasurement {
	h := &pacedMeasurement{first: first, left: newStamps(n), took: make([]atomic.Int64, n), acked: make([]atomic.Int64, n), done: make(chan struct{})}
	h.missing.Store(int64(n))
	return h
}

// countArrival counts an event when it arrives for the first time.
func (h *pacedMeasurement) countArrival(number int) {
	i := number - h.first
	if i < 0 || i >= len(h.took) || !h.took[i].CompareAndSwap(0, int64(h.left.since(i))) {
		return
	}
	if h.missing.Add(-1) == 0 {
		close(h.done)
	}
}

// noteAcknowledged notes that Kafka has an event.
func (h *pacedMeasurement) noteAcknowledged(number int) {
	if i := number - h.first; i >= 0 && i < len(h.acked) {
		h.acked[i].Store(int64(h.left.since(i)))
	}
}

// arrivals are the results of a pacedMeasurement: the time until the function had the event, and
// the time until Kafka had the event.
type arrivals struct{ Came, Acked load.Result }

func (h *pacedMeasurement) result() arrivals {
	return arrivals{quantilesOf(h.took), quantilesOf(h.acked)}
}

func quantilesOf(times []atomic.Int64) load.Result {
	all := make(sample, len(times))
	for i := range times {
		all[i] = time.Duration(times[i].Load())
	}
	all = all.sorted()
	return load.Result{Events: len(all), P50: task.Quantile(all, 0.5), P99: task.Quantile(all, 0.99), Max: task.Quantile(all, 1)}
}

// runCommands reads a command from each line and writes a result for each.
func (l *hookSubscriber) runCommands(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	for told := bufio.NewScanner(stdin); told.Scan(); {
		var what, long string
		if _, err := fmt.Sscan(told.Text(), &what, &long); err != nil {
			return fmt.Errorf("lap: cannot %q", told.Text())
		}
		last, err := time.ParseDuration(long)
		if err != nil {
			return fmt.Errorf("lap: %w", err)
		}
		r, err := l.run(ctx, what, last)
		if err != nil {
			return fmt.Errorf("lap: %s: %w", what, err)
		}
		if err := json.NewEncoder(stdout).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *hookSubscriber) run(ctx context.Context, what string, last time.Duration) (any, error) {
	switch what {
	case lapPace:
		return l.sendPaced(ctx, last, func(number int) error { l.publish(ctx, l.p, number); return nil })
	case lapHop:
		return l.sendPaced(ctx, last, func(number int) error { return l.bare.assign(ctx, number) })
	case lapFlood:
		return l.countDuring(func() error { return l.flood(ctx, last) })
	case lapCount:
		return l.countDuring(func() error { return l.idle(ctx, last) })
	}
	return nil, errors.New("nobody knows how")
}

// sendPaced sends events at set times and waits until all have arrived.
func (l *hookSubscriber) sendPaced(ctx context.Context, last time.Duration, send func(number int) error) (arrivals, error) {
	n := int(last.Seconds() * latencyRate)
	h := newHeat(l.numbers, n)
	l.numbers += n
	l.heat.Store(h)
	defer l.heat.Store(nil)
	if err := callAtRate(ctx, n, func(i int) error {
		h.left.left(i)
		return send(h.first + i)
	}); err != nil {
		return arrivals{}, err
	}
	select {
	case <-h.done:
		return h.result(), nil
	case err := <-l.refused:
		return arrivals{}, err
	case err := <-l.bare.failed:
		return arrivals{}, err
	case <-time.After(lapPatience):
		return arrivals{}, fmt.Errorf("%d of %d events have not come after %s", h.missing.Load(), n, lapPatience)
	}
}

// countDuring counts the events that arrive while do runs.
func (l *hookSubscriber) countDuring(do func() error) (load.Result, error) {
	var m task.Meter
	if err := m.Start(task.Task{}); err != nil {
		return load.Result{}, err
	}
	before := l.came.Load()
	if err := do(); err != nil {
		return load.Result{}, err
	}
	events := int(l.came.Load() - before)
	spent, err := m.Stop(task.Task{})
	return load.Result{Events: events, Wall: spent.Wall, CPU: spent.CPU}, err
}

func (l *hookSubscriber) idle(ctx context.Context, last time.Duration) error {
	select {
	case <-time.After(last):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flood publishes a new event for each that arrives. Events that are still under way at the end
// arrive before the next measurement begins, or the next measurement counts them.
func (l *hookSubscriber) flood(ctx context.Context, last time.Duration) error {
	l.fillCredits()
	end := time.NewTimer(last)
	defer end.Stop()
	for {
		select {
		case <-l.credits:
			l.publish(ctx, l.many, l.numbers)
			l.numbers++
		case err := <-l.refused:
			return err
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *hookSubscriber) fillCredits() {
	for {
		select {
		case l.credits <- struct{}{}:
		default:
			return
		}
	}
}
