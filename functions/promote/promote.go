package promote

import (
	"context"
	"errors"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models/registry"
)

// Options configure the function.
type Options struct {
	Models *registry.Registrar
}

// New returns the function. It handles ends of runs and ignores other events.
func New(o Options) functions.ViewFunc {
	return func(ctx context.Context, v *broker.View) error {
		if v.Type != tidemill.TypeRunFinished {
			return nil
		}
		return marked(o.Models.Finished(ctx, v))
	}
}

// catchingUp is the time after which an event is delivered again while the ledger is catching up.
const catchingUp = 2 * time.Second

// marked marks an error by whether the event shall come again.
func marked(err error) error {
	switch {
	case registry.Hopeless(err):
		return functions.Permanent(err)
	case errors.Is(err, registry.ErrCatchingUp):
		return functions.RetryAfter(err, catchingUp)
	}
	return err
}
