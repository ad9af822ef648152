package promote

import (
	"context"
	"errors"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models"
)

// Options say what to work with.
type Options struct {
	Models *models.Registrar
}

// New is the function. It takes ends of runs and passes over everything else.
func New(o Options) functions.Func {
	return func(ctx context.Context, e event.Event) ([]event.Event, error) {
		if e.Type() != tidemill.TypeRunFinished {
			return nil, nil
		}
		v, err := broker.FromEvent(e)
		if err != nil {
			return nil, functions.Permanent(err)
		}
		return nil, marked(o.Models.Finished(ctx, &v))
	}
}

// catchingUp is how long an event stays away while the ledger is filled.
const catchingUp = 2 * time.Second

// marked says of an error whether the event shall come again.
func marked(err error) error {
	switch {
	case models.Hopeless(err):
		return functions.Permanent(err)
	case errors.Is(err, models.ErrCatchingUp):
		return functions.RetryAfter(err, catchingUp)
	}
	return err
}
