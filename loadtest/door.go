package main

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev/loadtest/internal/load"
)

// Size of a batch and number of connections for batches. A publisher that gathers events needs few
// connections.
const (
	batchEvents      = 100
	batchConnections = 16
)

// contender is a server that takes the same requests as the others.
type contender struct {
	name    string
	program []string
	stores  bool // the server stores events on a stream

	singles, batches, paced []serverMeasurement
}

// gatewayBench measures the gateway next to a bare server.
type gatewayBench struct {
	*runner
	broker *childServer
	cache  *startRedis
	self   string
	run    int // number of the stretch; event ids of two stretches must differ

	rate      float64 // requests per second of the paced stretches
	bare, own *contender
	all       []*contender
}

func (r *runner) door(ctx context.Context, self string, broker *childServer) (*gatewayBench, error) {
	c, err := startCache(ctx, []string{self})
	if err != nil {
		return nil, err
	}
	d := &gatewayBench{runner: r, broker: broker, cache: c, self: self}
	d.bare = &contender{name: "bare net/http", program: []string{self, roleBare}}
	d.own = &contender{name: "the door", program: []string{self, roleGateway}, stores: true}
	d.all = []*contender{d.bare, d.own}
	if r.beside != "" {
		d.all = append(d.all, &contender{name: "the other door", program: []string{r.beside, roleGateway}, stores: true})
	}
	return d, errors.Join(d.measureRounds(ctx), c.stop())
}

// measureRounds measures throughput first. Half of the measured rate is the pace of the other
// measurements.
func (d *gatewayBench) measureRounds(ctx context.Context) error {
	for range d.plan.rounds {
		if err := d.runRound(ctx, d.saturate); err != nil {
			return err
		}
	}
	d.rate = spreadOf(roundRates(d.own.singles)).median / 2
	for range (d.plan.rounds + 1) / 2 {
		if err := d.runRound(ctx, d.pace); err != nil {
			return err
		}
	}
	return nil
}

// runRound gives every contender a turn, each time in another order.
func (d *gatewayBench) runRound(ctx context.Context, turn func(context.Context, *contender) error) error {
	for _, c := range d.all {
		if err := turn(ctx, c); err != nil {
			return fmt.Errorf("measure %s: %w", c.name, err)
		}
	}
	d.all = append(d.all[1:], d.all[0])
	return nil
}

func (d *gatewayBench) saturate(ctx context.Context, c *contender) error {
	s, err := d.measureServer(ctx, c, load.Task{})
	if err != nil {
		return err
	}
	c.singles = append(c.singles, s)
	if !c.stores {
		return nil
	}
	s, err = d.measureServer(ctx, c, load.Task{Batch: batchEvents})
	c.batches = append(c.batches, s)
	return err
}

func (d *gatewayBench) pace(ctx context.Context, c *contender) error {
	s, err := d.measureServer(ctx, c, load.Task{Rate: d.rate})
	c.paced = append(c.paced, s)
	return err
}
