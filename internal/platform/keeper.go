package platform

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"tidemill.dev/config"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/census"
	"tidemill.dev/triggers/clock"
)

// Keeper opens what sends the ticks of the schedules. Any number of processes
// may have one; one is active. The stop order closes it.
func (p *Platform) Keeper(ctx context.Context) (*clock.Keeper, error) {
	asked, err := acts.Follow(ctx, p.broker, p.log)
	if err != nil {
		return nil, fmt.Errorf("read which schedules are paused: %w", err)
	}
	p.AtStop(Consumers, "what people have asked for", asked.Close)
	o := clock.Options{Broker: p.broker, Names: p.names, Config: p.Config(), Redis: p.redis, Kafka: p.kafka,
		Paused:  func(schedule string) bool { return asked.Now().SchedulePaused(schedule) },
		Changed: asked.Changed,
		Keys:    p.keysOf,
		// Kafka's own transactions are there whole or not at all.
		Verify: p.Embedded(), Logger: p.log}
	if p.telemetry != nil {
		o.Registerer = p.telemetry.Registry()
	}
	k, err := clock.Open(o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "the clock", k.Close)
	p.add(part{
		name:  "the clock",
		apply: func(_ context.Context, c *config.Config) error { return k.Apply(c) },
		check: func(context.Context) api.Check { return checkClock(k.Status()) },
	})
	p.watchRuns(ctx)
	if err := p.openCensus(ctx); err != nil {
		return nil, err
	}
	p.watchCluster(ctx)
	return k, nil
}

// openCensus counts what alerts go by. It is the keeper that does, for it stays
// while functions go to zero.
func (p *Platform) openCensus(ctx context.Context) error {
	if p.works == nil || p.telemetry == nil {
		return nil
	}
	c, err := census.Open(ctx, census.Options{Broker: p.broker, Ledger: p.works.ledger, Registerer: p.telemetry.Registry(), Logger: p.log})
	if err != nil {
		return fmt.Errorf("count runs and models: %w", err)
	}
	p.AtStop(Consumers, "the census of runs and models", c.Close)
	return nil
}

// checkClock finds nothing wrong with a keeper that stands by. One that cannot
// keep the clock does not make a process unready: who asks is served all the
// same, and taking it out of a balancer would help nobody.
func checkClock(s clock.Status) api.Check {
	switch {
	case len(s.Delayed) > 0:
		name := slices.Min(slices.Collect(maps.Keys(s.Delayed)))
		return api.Check{Name: "clock", Status: api.Degraded, Detail: fmt.Sprintf("%d schedules wait for their keys; %v; it is tried again", len(s.Delayed), s.Delayed[name])}
	case s.Active:
		return api.Check{Name: "clock", Status: api.OK, Detail: "this process sends the ticks"}
	case s.Err != nil:
		return api.Check{Name: "clock", Status: api.Degraded, Detail: s.Err.Error() + "; it is tried again"}
	}
	return api.Check{Name: "clock", Status: api.OK, Detail: "stands by"}
}
