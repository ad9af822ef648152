package platform

import (
	"context"
	"errors"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift/watcher"
	"tidemill.dev/internal/models/registry"
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
		Predictions: func(ctx context.Context, model string, version int) (*tidemill.Figures, error) {
			return p.predictionsOf(ctx, kept, model, version)
		},
		OpenAlarm: p.openAlarm,
		Publish: func(ctx context.Context, v *broker.View) error {
			_, err := producer.Publish(ctx, tidemill.StreamFacts, v)
			return err
		}})
}

// openAlarm returns the number of the alarm that a model has for the same figure of the same version; 0 if it has none,
// or if this process cannot read models because it has no Redis.
func (p *Platform) openAlarm(ctx context.Context, model string, d *tidemill.ModelDrifted) (int, error) {
	if p.works == nil && p.redis == nil {
		return 0, nil
	}
	l, err := p.ledgerNow(ctx, model)
	if err != nil {
		return 0, err
	}
	m, err := l.Model(ctx, model)
	if err != nil {
		return 0, err
	}
	for i := range m.Drifts {
		if one := &m.Drifts[i]; one.Scorer == d.Scorer && one.Version == d.Version && one.Figure == d.Figure {
			return one.Alarm, nil
		}
	}
	return 0, nil
}

// ledgerNow returns the ledger once it has all facts that are on the stream. That can take minutes if Redis was empty, and
// for ever if the ledger has stopped. No figure is watched meanwhile, so the log says so.
func (p *Platform) ledgerNow(ctx context.Context, model string) (*ledger.Ledger, error) {
	l, err := p.anyLedger(ctx)
	if err != nil {
		return nil, err
	}
	if behind := l.Status().Behind; behind > 0 {
		p.log.Info("drift: the ledger has not caught up; the watch waits for it", "model", model, "events", behind)
	}
	return l, l.CaughtUp(ctx)
}

// predictionsOf returns the figures of a version's predictions; nil if the version or its report is gone, or has none.
func (p *Platform) predictionsOf(ctx context.Context, kept *store.Store, model string, version int) (*tidemill.Figures, error) {
	l, err := p.ledgerNow(ctx, model)
	if err != nil {
		return nil, err
	}
	all, err := l.Versions(ctx, model, version)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return measuredIn(ctx, kept, all[0].Report)
}

// measuredIn returns the figures in the tree of a report; nil if the store no longer has the report, or only corrupt bytes.
func measuredIn(ctx context.Context, kept *store.Store, tree string) (*tidemill.Figures, error) {
	report, err := registry.ReadReport(ctx, kept, tree)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return nil, nil
	}
	return report.Measured, err
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
