package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"
)

// onlyDead is the scenario that compares a living subscriber alone and next to two dead ones. It
// takes seconds, and the profiles of its dispatcher show where the difference comes from.
const onlyDead = "dead"

// pacedCost is a measurement at a pace, with the CPU time of the dispatcher and of the broker.
type pacedCost struct {
	arrivals
	server, broker float64 // CPU time per second, in cores
}

// compareDead measures the living subscriber alone and next to dead ones, round by round.
func (r *runner) compareDead(ctx context.Context, self string, broker *childServer) (alone, beside []pacedCost, err error) {
	t := &triggersBench{runner: r, broker: broker, self: self}
	turns := []struct {
		dead bool
		into *[]pacedCost
	}{{false, &alone}, {true, &beside}}
	for range r.plan.rounds {
		for _, turn := range turns {
			c, err := t.measurePaced(ctx, turn.dead)
			if err != nil {
				return nil, nil, fmt.Errorf("measure dead subscribers: %w", err)
			}
			*turn.into = append(*turn.into, c)
		}
		turns[0], turns[1] = turns[1], turns[0]
	}
	return alone, beside, nil
}

func (t *triggersBench) measurePaced(ctx context.Context, dead bool) (c pacedCost, err error) {
	return c, t.startSubscriber(ctx, dead, func(l *childProcess, d *childServer) error {
		if err := errors.Join(t.broker.startMeasuring(), d.startMeasuring()); err != nil {
			return err
		}
		paced, err := t.paced(l, lapPace, t.turn)
		if err != nil {
			return err
		}
		server, failed := d.stopMeasuring()
		broker, err := t.broker.stopMeasuring()
		c = pacedCost{paced, server.CPU.Seconds() / server.Wall.Seconds(), broker.CPU.Seconds() / broker.Wall.Seconds()}
		return errors.Join(failed, err)
	})
}

func (t *table) dead(alone, beside []pacedCost) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "publish to function received, at %d events/s; medians of %d rounds\tp50\tp99\tmax\tdispatcher, cores\tbroker, cores\n", latencyRate, len(alone))
	row := func(name string, all []pacedCost) (came []arrivals) {
		var server, broker []float64
		for _, c := range all {
			came, server, broker = append(came, c.arrivals), append(server, c.server), append(broker, c.broker)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%.2f\t%.2f\n", name, micros(medianOf(came, func(a arrivals) time.Duration { return a.Came.P50 })),
			micros(medianOf(came, func(a arrivals) time.Duration { return a.Came.P99 })), micros(medianOf(came, func(a arrivals) time.Duration { return a.Came.Max })),
			spreadOf(server).median, spreadOf(broker).median)
		return came
	}
	one, other := row("the dispatcher", alone), row("with two dead subscribers beside", beside)
	w.Flush()
	t.compareBeside(other, one)
}
