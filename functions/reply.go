package functions

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/cehttp"
)

// reply answers with the events that follow from one. Nothing has been written
// when it returns an error.
func reply(w http.ResponseWriter, cause event.Event, events []event.Event) error {
	views := make([]broker.View, len(events))
	for i := range events {
		v, err := viewOf(cause, i, events[i])
		if err != nil {
			// A function that makes such an event makes it again.
			return Permanent(fmt.Errorf("the function's reply %d is no CloudEvent: %w", i, err))
		}
		views[i] = v
	}
	switch len(views) {
	case 0:
		w.WriteHeader(http.StatusNoContent)
	case 1:
		answer(w, cehttp.WriteBinary(w.Header(), &views[0]))
	default:
		answer(w, cehttp.WriteBatch(w.Header(), views))
	}
	return nil
}

// viewOf gives a reply without an id one that follows from its cause: it has to
// have one on its way, and the same every time.
func viewOf(cause event.Event, index int, e event.Event) (broker.View, error) {
	if e.Context != nil && e.ID() == "" {
		e = e.Clone()
		e.SetID(tidemill.CauseOf(cause).Derive("reply", strconv.Itoa(index)))
	}
	return broker.FromEvent(e)
}

func answer(w http.ResponseWriter, body []byte) {
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // whoever has gone asks again
}
