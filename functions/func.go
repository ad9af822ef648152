package functions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
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

// read reads the request's event. It reads the body to its end, because only then does
// net/http notice that the caller has closed the connection.
func (h *handler) read(w http.ResponseWriter, r *http.Request) (v broker.View, err error) {
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return broker.View{}, err
	}
	if mode == cehttp.Batch {
		return broker.View{}, &cehttp.UnsupportedError{Header: "Content-Type", Value: r.Header.Get("Content-Type"),
			Advice: "send one event in a request, as one answer is to speak for it"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.opt.MaxBody)))
	if err != nil {
		return broker.View{}, fmt.Errorf("read the event: %w", err)
	}
	if mode == cehttp.Structured {
		err = cehttp.ReadStructured(r.Header, body, &v)
	} else {
		err = cehttp.ReadBinary(r.Header, body, &v)
	}
	return v, err
}

// refuse answers a request without a readable event. A retry would have the same error.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		status = http.StatusRequestEntityTooLarge
	case errors.As(err, new(*cehttp.UnsupportedError)):
		status = http.StatusUnsupportedMediaType
	}
	say(w, status, err.Error())
}

// unreadable is the error of an event that the SDK cannot represent.
type unreadable struct{ error }

// viewsOf converts the events that follow from another.
func viewsOf(cause event.Event, events []event.Event) ([]broker.View, error) {
	views := make([]broker.View, len(events))
	for i := range events {
		v, err := viewOf(cause, i, events[i])
		if err != nil { // permanent, because the function would return such an event again
			return nil, Permanent(fmt.Errorf("the function's reply %d is not a CloudEvent: %w", i, err))
		}
		views[i] = v
	}
	return views, nil
}

// viewOf converts one reply. A reply without an id gets one that follows from its
// cause and its index, so that it is the same at every attempt.
func viewOf(cause event.Event, index int, e event.Event) (broker.View, error) {
	if e.Context != nil && e.ID() == "" {
		e = e.Clone()
		e.SetID(tidemill.CauseOf(cause).Derive("reply", strconv.Itoa(index)))
	}
	return broker.FromEvent(e)
}

// reply answers with the events that follow from one.
func reply(w http.ResponseWriter, views []broker.View) {
	switch len(views) {
	case 0:
		w.WriteHeader(http.StatusNoContent)
	case 1:
		answer(w, cehttp.WriteBinary(w.Header(), &views[0]))
	default:
		answer(w, cehttp.WriteBatch(w.Header(), views))
	}
}

func answer(w http.ResponseWriter, body []byte) {
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // a caller that has gone asks again
}

// Permanent marks an error that a retry would have again: the event becomes a dead
// letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

// Unwrap returns the marked error.
func (p permanent) Unwrap() error { return p.error }

// RetryAfter marks an error with the time after which a retry makes sense: the event
// does not come again earlier. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return later{err, d}
}

type later struct {
	error
	after time.Duration
}

// Unwrap returns the marked error.
func (l later) Unwrap() error { return l.error }

// fail answers with an error. If it has both marks, Permanent counts.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if mark, ok := errors.AsType[later](err); ok {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", seconds(mark.after))
	}
	if _, ok := errors.AsType[permanent](err); ok {
		status = http.StatusUnprocessableEntity
		w.Header().Del("Retry-After")
	}
	say(w, status, err.Error())
}

// seconds rounds up, so that the retry is not too early.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(max(d, 0).Seconds())), 10)
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // a caller that has gone needs no reason
}
