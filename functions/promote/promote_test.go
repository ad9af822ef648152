package promote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models"
)

// What the dispatcher is answered decides whether the event comes again. Against
// the real registrar the function is tested where that is.
func TestMarks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"done":        {nil, http.StatusNoContent},
		"passes":      {errors.New("kafka is away"), http.StatusInternalServerError},
		"catching up": {fmt.Errorf("look up: %w", models.ErrCatchingUp), http.StatusServiceUnavailable},
		"too large":   {fmt.Errorf("put it: %w", broker.ErrTooLarge), http.StatusUnprocessableEntity},
	} {
		h := functions.Handler(func(context.Context, event.Event) ([]event.Event, error) { return nil, marked(c.err) }, functions.Options{})
		if got := call(t, h, "x"); got != c.status {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// What is no run's end is passed over, and what cannot be read is a dead letter
// at once.
func TestOtherEvents(t *testing.T) {
	t.Parallel()
	h := functions.Handler(New(Options{Models: &models.Registrar{}}), functions.Options{})
	if got := call(t, h, "new-data"); got != http.StatusNoContent {
		t.Errorf("another event: %d", got)
	}
	if got := call(t, h, tidemill.TypeRunFinished); got != http.StatusUnprocessableEntity {
		t.Errorf("an end without a word: %d", got)
	}
}

func call(t *testing.T, h http.Handler, typ string) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": typ} {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}
