package platform

import (
	"context"
	"fmt"
	"net/http"

	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/functions/promote"
	"tidemill.dev/internal/models"
)

const promoteFunction = "promote"

// usesPromote reports whether a trigger's target is the function of ours that
// judges.
func usesPromote(to config.Target) bool { return to.Function == promoteFunction }

// openModels needs the foreman, whom it asks for runs again.
func (p *Platform) openModels(w *works) (err error) {
	w.models, err = models.New(models.Options{Ledger: w.ledger, Store: w.store, Broker: p.broker, Names: p.names, Asked: w.asked.Now,
		Again: func(ctx context.Context, l models.Lost) error {
			return w.foreman.Again(ctx, l.Run, l.Cause, l.Correlation, l.Trace)
		}, Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the models: %w", err)
	}
	return nil
}

// promote is the function that judges.
func (p *Platform) promote() http.Handler {
	return functions.Handler(promote.New(promote.Options{Models: p.works.models}), functions.Options{Logger: p.log})
}

// Models is what registers versions and promotes them; nil without runs.
func (p *Platform) Models() *models.Registrar {
	if p.works == nil {
		return nil
	}
	return p.works.models
}
