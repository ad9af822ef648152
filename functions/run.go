package functions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/cloudevents/sdk-go/v2/event"
)

// panicked is a panic of the function's. To the caller it is an error like any
// other: it may have been this event's, and it may go better next time.
type panicked struct {
	cause any
	stack []byte
}

// Error is without the stack, which is for the log.
func (p *panicked) Error() string { return fmt.Sprintf("the function panicked: %v", p.cause) }

// run calls the function.
func (h *handler) run(ctx context.Context, e event.Event) (replies []event.Event, err error) {
	defer func() {
		cause := recover()
		if cause == http.ErrAbortHandler {
			panic(cause) // which is how a handler asks net/http to hang up
		}
		if cause != nil {
			replies, err = nil, &panicked{cause, debug.Stack()}
		}
	}()
	return h.call(ctx, e)
}

// tell logs what the caller is told, once.
func (h *handler) tell(ctx context.Context, e event.Event, err error) {
	log := h.opt.Logger.With("event", e.ID(), "type", e.Type(), "reason", err)
	if p, ok := errors.AsType[*panicked](err); ok {
		log.ErrorContext(ctx, "the function panicked", "stack", string(p.stack))
		return
	}
	log.WarnContext(ctx, "the function failed")
}
