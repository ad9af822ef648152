package promote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models/registry"
)

// The answer to the dispatcher decides whether the event comes again. The registrar's
// own tests run the function against a real one.
func TestMarks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"done":        {nil, http.StatusNoContent},
		"passes":      {errors.New("kafka is away"), http.StatusInternalServerError},
		"catching up": {fmt.Errorf("look up: %w", registry.ErrCatchingUp), http.StatusServiceUnavailable},
		"too large":   {fmt.Errorf("put it: %w", broker.ErrTooLarge), http.StatusUnprocessableEntity},
	} {
		h := functions.ViewHandler(func(context.Context, *broker.View) error { return marked(c.err) }, functions.Options{})
		if got := call(t, h, "x"); got != c.status {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// Other events are ignored. An event that cannot be read is a dead letter at once.
func TestOtherEvents(t *testing.T) {
	t.Parallel()
	h := functions.ViewHandler(New(Options{Models: &registry.Registrar{}}), functions.Options{})
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
