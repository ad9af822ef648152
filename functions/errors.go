package functions

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Permanent marks an error as one that would be the same every time: the event
// becomes a dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

// Unwrap is the error that was marked.
func (p permanent) Unwrap() error { return p.error }

// RetryAfter says how long it will take until there is hope: the event does not
// come again before. RetryAfter(nil, d) is nil.
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

// Unwrap is the error that was marked.
func (l later) Unwrap() error { return l.error }

// fail answers with an error. Of both marks Permanent counts.
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

// seconds are rounded up, as nobody shall come early.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(max(d, 0).Seconds())), 10)
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // whoever has gone needs no reason
}
