package platform

import (
	"context"
	"errors"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift/watcher"
)

// driftTasks returns a task for each scorer whose models are watched for drift.
func (p *Platform) driftTasks(c *config.Config) (all []observerTask) {
	for _, s := range c.Scorers {
		if s.Drift == nil {
			continue
		}
		all = append(all, observerTask{name: "drift." + s.Name, config: watcher.Settings(&s), run: func(ctx context.Context) error { return p.watchDrift(ctx, s) }})
	}
	return all
}

// watchDrift watches the models of a scorer until the context ends.
func (p *Platform) watchDrift(ctx context.Context, s config.Scorer) (err error) {
	kept, err := p.objectStore(ctx)
	if err != nil {
		return err
	}
	producer, err := p.broker.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, producer.Close(context.WithoutCancel(ctx))) }()
	return watcher.Run(ctx, watcher.Options{Broker: p.broker, Store: kept, Names: p.names, Scorer: s, Logger: p.log, Lag: p.lagOf("drift." + s.Name),
		Publish: func(ctx context.Context, v *broker.View) error {
			_, err := producer.Publish(ctx, tidemill.StreamFacts, v)
			return err
		}})
}

// objectStore returns the store of the runs. A process without runs opens the store at the first call.
func (p *Platform) objectStore(ctx context.Context) (*store.Store, error) {
	if p.works != nil {
		return p.works.store, nil
	}
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if p.addresses.Store == "" {
		return nil, errors.New("watch for drift: it takes the object store to keep what was seen; give --store, the one that tidemill up has or was given")
	}
	if p.library == nil {
		library, err := p.openStore(ctx, RunsOptions{})
		if err != nil {
			return nil, err
		}
		p.library = library
	}
	return p.library, nil
}
