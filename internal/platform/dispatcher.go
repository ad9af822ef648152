package platform

import (
	"context"
	"errors"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/standing"
	"tidemill.dev/triggers/deliver"
)

// skewInCluster is how much older than another process's our config may be:
// Kubernetes takes up to a minute to bring a changed ConfigMap to a pod.
const skewInCluster = 75 * time.Second

// Dispatcher opens what sends events to the subscribers of the triggers. The
// stop order closes it, before our functions and before the producers. The
// platform must have been opened with Telemetry.
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
	bearer, err := p.bearer()
	if err != nil {
		return nil, err
	}
	o := deliver.Options{Broker: p.broker, Config: p.Config(), Resolve: p.resolve, Bearer: bearer, Version: p.version,
		Registerer: p.telemetry.Registry(), Tracer: p.telemetry.Tracer(), Logger: p.log}
	if !p.Embedded() {
		o.Skew = skewInCluster
	}
	d, err := deliver.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	p.AtStop(Consumers, "the dispatcher", d.Close)
	p.add(part{name: "the triggers", apply: d.Apply, check: func(context.Context) api.Check { return d.Check() }})
	p.publishStanding(ctx, d)
	return d, nil
}

// publishStanding tells gateways how the triggers stand here.
func (p *Platform) publishStanding(ctx context.Context, d *deliver.Dispatcher) {
	board := standing.NewBoard(p.redis, p.names, p.kafka)
	telling, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	id := tidemill.ID("dispatcher", time.Now().String(), p.addresses.Kafka)
	running.Go(func() {
		board.Publish(telling, id, func() []standing.Trigger {
			all := d.Standing()
			told := make([]standing.Trigger, len(all))
			for i, s := range all {
				told[i] = standing.Trigger(s)
			}
			return told
		})
	})
	p.AtStop(Consumers, "the word of how the triggers stand", func(context.Context) error {
		stop()
		running.Wait()
		return nil
	})
}
