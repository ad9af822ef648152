package deliver

import (
	"context"
	"errors"
	"sync/atomic"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// replier publishes what subscribers answer, each event to its type's home.
type replier struct {
	p      *broker.Producer
	config atomic.Pointer[config.Config]
}

// publish returns when all are acknowledged. What fails for now is sent again,
// as long as the context allows: an id that derives from its cause counts once.
func (r *replier) publish(ctx context.Context, replies []broker.View) error {
	c := r.config.Load()
	for n := range replies {
		for {
			_, err := r.p.Publish(ctx, c.StreamFor(replies[n].Type), &replies[n])
			if err == nil {
				break
			}
			if hopeless(err) || sleep(ctx, publishAgain) != nil {
				return err
			}
		}
	}
	return nil
}

// hopeless tells an event that no stream will ever take.
func hopeless(err error) bool {
	var attribute *broker.AttributeError
	return errors.Is(err, broker.ErrTooLarge) || errors.Is(err, broker.ErrNoStream) || errors.As(err, &attribute)
}
