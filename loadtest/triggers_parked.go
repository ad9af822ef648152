package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// parkedEvents is the cost of many parked events whose subscriber is dead, a million by default.
type parkedEvents struct {
	events, keys           int
	empty, full, restarted task.Result   // memory of the process
	parking                time.Duration // time until the group had committed past all events
	begin, again, taken    time.Duration // time until the dispatcher was ready: without events, with all events, and with all events after a kill
}

// onlyParked is the scenario that measures parked events alone. With -parked 10000000 and the
// environment's GOMEMLIMIT=400MiB it shows that the dispatcher's memory is bounded.
const onlyParked = "parked"

// parkedOfKey is the number of events per key. The events of a key form a chain that waits for its
// first event.
const parkedOfKey = 50

func (t *triggersBench) park(ctx context.Context) (p parkedEvents, err error) {
	stream, err := t.streams.newStream(ctx)
	if err != nil {
		return p, err
	}
	p.events, p.keys = t.plan.parked, max(1, cmp.Or(t.plan.parkedKeys, t.plan.parked/parkedOfKey))
	conf := loadConfig(stream, "", true)
	err = t.runLife(ctx, conf, &p.begin, (*childServer).stop, func(d *childServer) (err error) {
		if p.empty, err = d.memoryUse(); err != nil {
			return err
		}
		began := time.Now()
		if err := errors.Join(t.publishSmall(ctx, stream, p.events, p.keys), t.caughtUp(ctx, stream)); err != nil {
			return err
		}
		p.parking = time.Since(began)
		p.full, err = d.memoryUse()
		return err
	})
	weighRestarted := func(d *childServer) (err error) { p.restarted, err = d.memoryUse(); return err }
	if err == nil {
		err = t.runLife(ctx, conf, &p.again, (*childServer).kill, weighRestarted)
	}
	if err == nil {
		err = t.runLife(ctx, conf, &p.taken, (*childServer).stop, func(*childServer) error { return nil })
	}
	return p, errors.Join(err, t.streams.remove(ctx, stream), t.streams.remove(ctx, tidemill.Parked(stream)))
}

// runLife runs a dispatcher's process from its start to its end.
func (t *triggersBench) runLife(ctx context.Context, conf string, ready *time.Duration, end func(*childServer) error, do func(*childServer) error) error {
	began := time.Now()
	d, err := t.startDispatcher(ctx, "parked", conf)
	if err != nil {
		return err
	}
	*ready = time.Since(began)
	return errors.Join(do(d), end(d))
}

// publishSmall publishes events with little data, because the dispatcher does not keep an event's
// data in memory.
func (t *triggersBench) publishSmall(ctx context.Context, stream string, n, keys int) error {
	p, err := t.streams.b.Producer(broker.ProducerOptions{Linger: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	w := &writer{p: p, stream: stream}
	v := broker.View{Source: "/shops/berlin/gateway", Type: "new-data", Data: []byte("a small event"), DataContentType: "text/plain"}
	for i := range n {
		v.ID, v.Subject = strconv.Itoa(i), "bot-"+strconv.Itoa(i%keys)
		p.Send(ctx, stream, &v, func(_ broker.Receipt, err error) {
			if err != nil {
				w.fail(err)
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// parkWithin bounds the wait for the commits.
const parkWithin = time.Hour

func (t *triggersBench) caughtUp(ctx context.Context, stream string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, parkWithin, fmt.Errorf("the stream's commits have not passed its events within %s", parkWithin))
	defer cancel()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		all, err := t.streams.b.Streams(ctx)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.Name == stream && len(s.Groups) == 1 && s.Groups[0].Lag == 0 {
				return nil
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
