package platform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/runmetrics"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deliver"
	"tidemill.dev/triggers/schedule"
)

// skewInCluster is how much older our config may be than that of another process. Kubernetes takes
// up to a minute to update a ConfigMap in a pod.
const skewInCluster = 75 * time.Second

// Dispatcher opens the dispatcher, which sends events to the subscribers of the triggers. The stop
// order closes it before our functions and before the producers. The platform must have been opened
// with Telemetry.
func (p *Platform) Dispatcher(ctx context.Context) (*deliver.Dispatcher, error) {
	if p.telemetry == nil {
		return nil, errors.New("open the dispatcher: the platform was opened without telemetry")
	}
	if err := p.openFunctions(ctx); err != nil {
		return nil, err
	}
	if err := p.openServices(ctx); err != nil {
		return nil, err
	}
	bearer, err := p.dispatcherToken()
	if err != nil {
		return nil, err
	}
	o := deliver.Options{Broker: p.broker, Config: p.Config(), Resolve: p.resolveURL, Bearer: bearer, Version: p.version, Network: p.network,
		Skew: p.skew, Registerer: p.telemetry.Registry(), Tracer: p.telemetry.Tracer(), Logger: p.log}
	d, err := deliver.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "the dispatcher", d.Close)
	err = p.addComponent(ctx, component{name: "the triggers", has: o.Config, apply: d.Apply, check: func(context.Context) api.Check { return d.Check() }})
	if err != nil {
		return nil, err
	}
	p.publishStanding(ctx, d)
	return d, nil
}

// publishStanding publishes the state of the triggers for the gateways.
func (p *Platform) publishStanding(ctx context.Context, d *deliver.Dispatcher) {
	board := status.NewBoard(p.redis, p.names, p.kafka)
	id := tidemill.ID("dispatcher", time.Now().String(), p.addresses.Kafka)
	p.untilStop(ctx, Consumers, "the status of the triggers", func(ctx context.Context) {
		board.Publish(ctx, id, func() []status.Trigger {
			all := d.Standing()
			told := make([]status.Trigger, len(all))
			for i, s := range all {
				told[i] = status.Trigger(s)
			}
			return told
		})
	})
}

// Controller opens the controller, which sends the ticks of the schedules. Any number of processes
// may have one; one of them is active. The stop order closes it.
func (p *Platform) Controller(ctx context.Context) (*schedule.Controller, error) {
	asked, err := commands.Follow(ctx, p.broker, p.log)
	if err != nil {
		return nil, fmt.Errorf("read which schedules are paused: %w", err)
	}
	p.AtStop(Consumers, "commands of people", asked.Close)
	o := schedule.Options{Broker: p.broker, Names: p.names, Config: p.Config(), Redis: p.redis, Kafka: p.kafka,
		Paused:  func(schedule string) bool { return asked.Now().SchedulePaused(schedule) },
		Changed: asked.Changed,
		Keys:    p.keysOf,
		// Apache Kafka's transactions are atomic and need no check.
		Verify: p.Embedded(), Logger: p.log}
	if p.telemetry != nil {
		o.Registerer = p.telemetry.Registry()
	}
	k, err := schedule.Open(o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "the clock", k.Close)
	err = p.addComponent(ctx, component{
		name:  "the clock",
		has:   o.Config,
		apply: func(_ context.Context, c *config.Config) error { return k.Apply(c) },
		check: func(context.Context) api.Check { return checkClock(k.Status()) },
	})
	if err != nil {
		return nil, err
	}
	ended := func(group string) bool { return deliver.IsOfEndedReplay(group, asked.Now()) }
	if err := p.refreshGroups(ctx, func() bool { return k.Status().Active }, ended); err != nil {
		return nil, err
	}
	p.watchRuns(ctx, func() bool { return k.Status().Active })
	if err := p.openCensus(ctx); err != nil {
		return nil, err
	}
	p.watchCluster(ctx)
	return k, nil
}

// refreshGroups keeps Kafka from forgetting our consumer groups, but not those that have ended, until the stop order
// ends it. Only the active controller does it, because one is enough.
func (p *Platform) refreshGroups(ctx context.Context, active func() bool, ended func(group string) bool) error {
	k, err := p.broker.GroupRefresher(ctx, 0)
	if err != nil {
		return err
	}
	p.AtStop(Consumers, "the refresher of consumer groups", k.Close)
	p.untilStop(ctx, Consumers, "the refreshing of consumer groups", func(ctx context.Context) { k.Run(ctx, active, ended) })
	return nil
}

// openCensus counts runs and models for alerts. The controller does it, because functions may scale
// to zero.
func (p *Platform) openCensus(ctx context.Context) error {
	if p.works == nil || p.telemetry == nil {
		return nil
	}
	inConfig := func() (recipes, pools []string) {
		c := p.Config()
		for _, r := range c.Recipes {
			recipes = append(recipes, r.Name)
		}
		for _, pool := range c.Pools {
			pools = append(pools, pool.Name)
		}
		return recipes, pools
	}
	c, err := runmetrics.Open(ctx, runmetrics.Options{Broker: p.broker, Ledger: p.works.ledger, InConfig: inConfig, Registerer: p.telemetry.Registry(), Logger: p.log})
	if err != nil {
		return fmt.Errorf("count runs and models: %w", err)
	}
	p.AtStop(Consumers, "the census of runs and models", c.Close)
	return nil
}

// checkClock returns OK for a passive controller. Errors of the clock never make a process unready,
// because it still serves requests, and removing it from a load balancer would not help.
func checkClock(s schedule.Status) api.Check {
	switch {
	case len(s.Delayed) > 0:
		name := slices.Min(slices.Collect(maps.Keys(s.Delayed)))
		return api.Check{Name: "clock", Status: api.Degraded, Detail: fmt.Sprintf("%d schedules wait for their keys; %v; it is tried again", len(s.Delayed), s.Delayed[name])}
	case s.Active:
		return api.Check{Name: "clock", Status: api.OK, Detail: "this process sends the ticks"}
	case s.Err != nil:
		return api.Check{Name: "clock", Status: api.Degraded, Detail: s.Err.Error() + "; it is tried again"}
	}
	return api.Check{Name: "clock", Status: api.OK, Detail: "another process is active"}
}
