package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tidemill.dev/internal/platform"
)

// beginWithin is for how long a start waits for its triggers: what is published
// after it says that it is up shall reach them.
const beginWithin = 15 * time.Second

// begin opens what works behind the door.
func begin(ctx context.Context, p *platform.Platform, log *slog.Logger) error {
	if err := beginTriggers(ctx, p, log); err != nil {
		return err
	}
	if _, err := p.Keeper(ctx); err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	if err := p.Scorers(ctx, ""); err != nil {
		return fmt.Errorf("start the scorers: %w", err)
	}
	return nil
}

// beginTriggers opens the dispatcher and waits until every trigger has begun.
// One that cannot begin yet holds nothing up for ever: readiness tells of it.
func beginTriggers(ctx context.Context, p *platform.Platform, log *slog.Logger) error {
	d, err := p.Dispatcher(ctx)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, beginWithin)
	defer cancel()
	err = d.Ready(waiting)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		log.Warn("not all triggers have begun; what is published before they have does not reach them", "reason", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}
