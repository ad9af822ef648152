package functions

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/broker"
	"tidemill.dev/internal/cehttp"
)

// read reads the request's event. The body is read to its end, without which
// net/http does not notice that the caller hangs up.
func (h *handler) read(w http.ResponseWriter, r *http.Request) (event.Event, error) {
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return event.Event{}, err
	}
	if mode == cehttp.Batch {
		return event.Event{}, &cehttp.UnsupportedError{Header: "Content-Type", Value: r.Header.Get("Content-Type"),
			Advice: "send one event in a request, as one answer is to speak for it"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.opt.MaxBody)))
	if err != nil {
		return event.Event{}, fmt.Errorf("read the event: %w", err)
	}
	var v broker.View
	if mode == cehttp.Structured {
		err = cehttp.ReadStructured(r.Header, body, &v)
	} else {
		err = cehttp.ReadBinary(r.Header, body, &v)
	}
	if err != nil {
		return event.Event{}, err
	}
	return v.Event()
}

// refuse answers who has sent no event that can be read. What is broken now is
// broken every time.
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
