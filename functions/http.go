package functions

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
)

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
