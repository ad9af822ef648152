package runs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"tidemill.dev/internal/ledger"
)

// Status is how a foreman's watch is.
type Status struct {
	Watching bool      // it has looked at everything at least once
	Err      error     // why not all that is due can be done; nil if it can
	Since    time.Time // of the error
}

type health struct {
	mu  sync.Mutex
	now Status
}

// Status is how the watch is now. That the ledger is catching up is the
// ledger's to tell.
func (f *Foreman) Status() Status {
	f.health.mu.Lock()
	defer f.health.mu.Unlock()
	return f.health.now
}

// report notes how a round went. An error that lasts is told once.
func (h *health) report(log *slog.Logger, ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, ledger.ErrCatchingUp) {
		return
	}
	h.mu.Lock()
	was := h.now
	switch {
	case err == nil:
		h.now = Status{Watching: true}
	case was.Err == nil:
		h.now = Status{Watching: was.Watching, Err: err, Since: time.Now()}
	default:
		h.now.Err = err
	}
	h.mu.Unlock()
	switch {
	case err != nil && (was.Err == nil || was.Err.Error() != err.Error()):
		log.Warn("what is due cannot be done; it is tried again", "reason", err)
	case err == nil && was.Err != nil:
		log.Info("what is due can be done again")
	}
}
