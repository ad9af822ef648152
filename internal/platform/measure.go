package platform

import (
	"context"
	"errors"
	"slices"

	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/measure"
	"tidemill.dev/internal/ops/telemetry"
)

// measureTasks returns the task that counts outcomes, if a scorer has labels.
func (p *Platform) measureTasks(c *config.Config) []observerTask {
	if p.redis == nil || !slices.ContainsFunc(c.Scorers, func(s config.Scorer) bool { return s.Labels != nil }) {
		return nil
	}
	return []observerTask{{name: "measure", run: func(ctx context.Context) error {
		l, err := p.anyLedger(ctx)
		if err != nil {
			return err
		}
		return measure.Run(ctx, measure.Options{Broker: p.broker, Names: p.names, Ledger: l, Logger: p.log, Lag: p.lagOf("measure")})
	}}}
}

// lagOf reports the lag of a task of the observer.
func (p *Platform) lagOf(task string) telemetry.Lag {
	return telemetry.Lag{Registerer: p.telemetry.Registry(), Task: task, Broker: p.broker}
}

// anyLedger returns the ledger of the runs. A process without runs opens its own.
func (p *Platform) anyLedger(ctx context.Context) (_ *ledger.Ledger, err error) {
	if p.works != nil {
		return p.works.ledger, nil
	}
	if p.redis == nil {
		return nil, errors.New("read the models: give --redis, which has their state")
	}
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if p.registry == nil {
		p.registry, err = p.openLedger(ctx)
	}
	return p.registry, err
}
