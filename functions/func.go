package functions

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Func takes an event and returns those that follow from it, if any. An error
// says that the event shall come again later, unless it is [Permanent]. The
// context ends when nobody waits for the answer any more.
type Func func(context.Context, event.Event) ([]event.Event, error)

// Options of a handler. The zero value is good.
type Options struct {
	Timeout time.Duration // after which the function's context ends; 0 is as long as the caller waits
	MaxBody int           // bytes of a request's body; 1 MiB
	Logger  *slog.Logger  // of what fails; nil is slog's default
}

const defaultMaxBody = 1 << 20

// Handler serves a function by the CloudEvents HTTP binding, in binary and in
// structured mode, and answers as Knative's data-plane contract has it:
//
//	no events             204
//	one                   200 and the event, in binary mode
//	several               200 and a batch (a CloudEvents format, but no part of Knative's contract)
//	an error              500 and the reason: the event comes again
//	a RetryAfter error    503 and Retry-After
//	a Permanent error     422: the event does not come again
//	a panic               500, and its stack in the log
//	no event, or several  400 or 415: one status cannot speak for several events
func Handler(f Func, o Options) http.Handler {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &handler{call: f, opt: o}
}

type handler struct {
	call Func
	opt  Options
}

// ServeHTTP is one event.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		other(w, r)
		return
	}
	e, err := h.read(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	ctx := r.Context()
	if h.opt.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.opt.Timeout)
		defer cancel()
	}
	replies, err := h.run(ctx, e)
	if err == nil {
		err = reply(w, e, replies)
	}
	if err != nil {
		h.tell(ctx, e, err)
		fail(w, err)
	}
}

// other answers what is no event. Senders may ask with OPTIONS whether they may
// post here.
func other(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "POST, OPTIONS")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	say(w, http.StatusMethodNotAllowed, "post a CloudEvent here")
}
