package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// scoreTrack is a publisher at a fixed rate, and a tail of its outputs. Both are goroutines of one
// process, so that one clock measures when an event left and when its output arrived.
type scoreTrack struct {
	w      *scoreBench
	p      *broker.Producer
	c      *broker.Consumer
	feeder *eventFeeder
	first  int // number of the first measured event
	sent   *sendTimes
	acked  sample
	came   sample
}

func (w *scoreBench) measureLatency(ctx context.Context, o *scoreOutcome) error {
	w.places = &offsetEvents{}
	s, err := w.startScorer(ctx, false, w.Name)
	if err != nil {
		return err
	}
	t, err := w.track(ctx, s, func(int) {})
	if err := errors.Join(err, s.stop()); err != nil {
		return err
	}
	if err := w.places.check(); err != nil {
		return err
	}
	a, err := w.newAudit()
	if err == nil {
		err = a.checkStream(ctx, s.out)
	}
	if err != nil {
		return err
	}
	a.counts.lost += w.Warm + w.Events - a.counts.outputs + a.counts.twice // no output follows the last input
	a.counts.addCounts(o, a.first)
	t.came, t.acked = t.came.sorted(), t.acked.sorted()
	o.Figures["p50"], o.Figures["p99"] = milliseconds(t.came.quantile(0.5)), milliseconds(t.came.quantile(0.99))
	o.Notes = append(o.Notes, fmt.Sprintf("of that, until Kafka had the event: p50 %s, p99 %s; the longest of all took %s",
		micros(t.acked.quantile(0.5)), micros(t.acked.quantile(0.99)), micros(t.came.quantile(1))))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// track warms up the scorer, then publishes and follows the measured events. before is called before each one.
func (w *scoreBench) track(ctx context.Context, s *scorerProcess, before func(i int)) (t *scoreTrack, err error) {
	t = &scoreTrack{w: w, feeder: w.newFeeder(), first: w.Warm, sent: newStamps(w.Events), acked: make(sample, w.Events), came: make(sample, w.Events)}
	if t.p, err = w.st.b.Producer(broker.ProducerOptions{}); err != nil {
		return nil, err
	}
	for range w.Warm {
		v, number := t.feeder.nextEvent()
		t.p.Send(ctx, inStream, v, func(r broker.Receipt, err error) { w.places.note(r, number, err) })
	}
	if _, err := s.waitScored(w.Warm); err != nil {
		return nil, err
	}
	t.c, err = w.st.b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{s.out}, Start: broker.Latest()})
	if err != nil {
		return nil, err
	}
	return t, t.run(ctx, before)
}

func (t *scoreTrack) run(ctx context.Context, before func(i int)) error {
	arrived := make(chan error, 1)
	ctx, stop := context.WithTimeout(ctx, time.Duration(len(t.came)/t.w.Rate)*time.Second+lapPatience)
	defer stop()
	go func() { arrived <- t.waitOutputs(ctx) }()
	err := paceAt(ctx, t.w.Rate, len(t.came), func(i int) error {
		before(i)
		v, number := t.feeder.nextEvent()
		t.sent.left(i)
		t.p.Send(ctx, inStream, v, func(r broker.Receipt, err error) {
			t.acked[i] = t.sent.since(i)
			t.w.places.note(r, number, err)
		})
		return nil
	})
	if err := errors.Join(err, t.p.Close(ctx)); err != nil {
		return err
	}
	return errors.Join(<-arrived, t.c.Close(ctx))
}

// waitOutputs waits for as many outputs as there are inputs. The audit finds double outputs later.
func (t *scoreTrack) waitOutputs(ctx context.Context) error {
	for left := len(t.came); left > 0; {
		d, err := t.c.Poll(ctx)
		if err != nil {
			return fmt.Errorf("%d events are not scored yet: %w", left, err)
		}
		for i := range d.Events {
			id, _ := d.Events[i].Attribute(tidemill.AttrCausationID)
			number, err := strconv.Atoi(id)
			if at := number - t.first; err == nil && at >= 0 && at < len(t.came) && t.came[at] == 0 {
				t.came[at] = t.sent.since(at)
				left--
			}
		}
		d.Done()
	}
	return nil
}
