package functions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/broker"
	"tidemill.dev/broker/network"
)

// Func handles an event and returns the events that follow from it, if any. After an
// error the event comes again later, unless the error is [Permanent]. The context ends
// when the caller no longer waits for the answer.
type Func func(context.Context, event.Event) ([]event.Event, error)

// Options of a handler. The zero value works.
type Options struct {
	Timeout time.Duration // time limit of a call; 0 is as long as the caller waits
	MaxBody int           // size limit of a request's body in bytes; 0 is 1 MiB
	Logger  *slog.Logger  // log of failures; nil is slog's default
}

const defaultMaxBody = 1 << 20

// Handler serves a function by the CloudEvents HTTP binding, in binary and in
// structured mode. It answers as Knative's data-plane contract requires:
//
//	no events             204
//	one                   200 and the event, in binary mode
//	several               200 and a batch (a CloudEvents format, but no part of Knative's contract)
//	an error              500 and the reason: the event comes again
//	a RetryAfter error    503 and Retry-After
//	a Permanent error     422: the event does not come again
//	a panic               500, and its stack in the log
//	no event, or several  400 or 415: one status cannot answer several events
func Handler(f Func, o Options) http.Handler {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &handler{call: onEvents(f), opt: o}
}

// ViewFunc is one of Tidemill's own functions. It reads the event in the request's
// memory, returns no events, and marks its errors as a [Func] does.
type ViewFunc func(context.Context, *broker.View) error

// ViewHandler serves one of Tidemill's own functions as [Handler] serves others.
func ViewHandler(f ViewFunc, o Options) http.Handler {
	h := Handler(nil, o).(*handler)
	h.call = func(ctx context.Context, v *broker.View) ([]broker.View, error) {
		if err := v.Validate(); err != nil {
			return nil, Permanent(err)
		}
		return nil, f(ctx, v)
	}
	return h
}

// handler calls a function for each request.
type handler struct {
	call func(context.Context, *broker.View) ([]broker.View, error)
	opt  Options
}

// onEvents converts the views of requests and replies for a function on events.
func onEvents(f Func) func(context.Context, *broker.View) ([]broker.View, error) {
	return func(ctx context.Context, v *broker.View) ([]broker.View, error) {
		e, err := v.Event()
		if err != nil {
			return nil, unreadable{err}
		}
		replies, err := f(ctx, e)
		if err != nil {
			return nil, err
		}
		return viewsOf(e, replies)
	}
}

// ServeHTTP handles one event.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		answerOther(w, r)
		return
	}
	v, err := h.read(w, r)
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
	replies, err := h.callFunc(ctx, &v)
	if broken, is := errors.AsType[unreadable](err); is {
		refuse(w, broken.error)
		return
	}
	if err != nil {
		h.report(ctx, &v, err)
		fail(w, err)
		return
	}
	reply(w, replies)
}

// answerOther answers requests that are not POST. A sender may ask with OPTIONS whether it
// may post here.
func answerOther(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "POST, OPTIONS")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	say(w, http.StatusMethodNotAllowed, "post a CloudEvent here")
}

// panicked is a panic of the function. The caller gets it as an error that may be
// retried, because the next call may succeed.
type panicked struct {
	cause any
	stack []byte
}

// Error leaves out the stack, which is for the log only.
func (p *panicked) Error() string { return fmt.Sprintf("the function panicked: %v", p.cause) }

// callFunc calls the function and turns a panic into an error.
func (h *handler) callFunc(ctx context.Context, v *broker.View) (replies []broker.View, err error) {
	defer func() {
		cause := recover()
		if cause == http.ErrAbortHandler {
			panic(cause) // a handler asks net/http with this to close the connection
		}
		if cause != nil {
			replies, err = nil, &panicked{cause, debug.Stack()}
		}
	}()
	return h.call(ctx, v)
}

// report logs the error that the caller gets.
func (h *handler) report(ctx context.Context, v *broker.View, err error) {
	log := h.opt.Logger.With("event", v.ID, "type", v.Type, "reason", err)
	if p, ok := errors.AsType[*panicked](err); ok {
		log.ErrorContext(ctx, "function: a call panicked", "stack", string(p.stack))
		return
	}
	log.WarnContext(ctx, "function: a call failed")
}

const (
	defaultPort = "8080"
	// drainFor is shorter than the 30 s that Kubernetes gives a pod to stop.
	drainFor = 25 * time.Second
)

// Serve is the main function of a function's program. It serves f on the port in $PORT,
// or 8080, over HTTP/1.1 and HTTP/2 without TLS, as Knative and Tidemill call it, and
// answers on /healthz. It returns when the context ends or the process is stopped
// (SIGTERM, Ctrl-C), after the calls under way have been answered.
func Serve(ctx context.Context, f Func) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	port := os.Getenv("PORT")
	if port == "" {
		port = defaultPort
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return fmt.Errorf("serve the function: %w: set PORT to a port that is free", err)
	}
	return serve(ctx, l, f, slog.Default())
}

func serve(ctx context.Context, l net.Listener, f Func, logger *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("/", Handler(f, Options{Logger: logger}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	server := network.NewServer(network.ServerOptions{Handler: mux, HTTP2: true, Write: -1, Errors: slog.LevelWarn, Logger: logger})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	logger.Info("function: ready", "to", l.Addr().String())
	select {
	case err := <-ended:
		return fmt.Errorf("serve the function: %w", err)
	case <-ctx.Done():
	}
	return drain(context.WithoutCancel(ctx), server, ended, logger)
}

// drain waits for the calls under way. Events whose call is cut off come again.
func drain(ctx context.Context, server *network.Server, ended <-chan error, logger *slog.Logger) error {
	logger.Info("function: stopping after its calls have ended")
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("stop the function: calls still ran after %s and were cut off: %w", drainFor, err)
	}
	err = errors.Join(err, server.Close())
	<-ended
	return err
}
