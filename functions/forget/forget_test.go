package forget

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions"
	"tidemill.dev/internal/models/erase"
)

// desk records requests.
type desk struct {
	asks   []erase.Ask
	orders []erase.Order
	fails  error
}

func (d *desk) Ask(_ context.Context, a erase.Ask) (string, error) {
	d.asks = append(d.asks, a)
	return "id", d.fails
}

func (d *desk) Forget(_ context.Context, o erase.Order) (tidemill.KeyForgotten, error) {
	d.orders = append(d.orders, o)
	return tidemill.KeyForgotten{}, d.fails
}

// status returns the answer that the dispatcher gets.
func (d *desk) status(t *testing.T, event string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(event))
	r.Header.Set("Content-Type", "application/cloudevents+json")
	w := httptest.NewRecorder()
	functions.ViewHandler(New(d), functions.Options{}).ServeHTTP(w, r)
	return w.Code, w.Header().Get("Retry-After")
}

const (
	deleted    = `{"specversion":"1.0","id":"1","source":"/crm","type":"bot-deleted","subject":"bot-42","authid":"ada"}`
	forgetting = `{"specversion":"1.0","id":"f","source":"/tidemill/x/gateway","type":"tidemill.key.forgetting","subject":"bot-42","authid":"ada","correlationid":"c","time":"2026-11-22T08:00:00Z","data":{"reason":"he left"}}`
)

func TestWhatIsHeard(t *testing.T) {
	t.Parallel()
	d := &desk{}
	for _, event := range []string{deleted, forgetting} {
		if code, _ := d.status(t, event); code != http.StatusNoContent {
			t.Errorf("answered %d", code)
		}
	}
	if len(d.asks) != 1 || d.asks[0].Key != "bot-42" || d.asks[0].By != "ada" || d.asks[0].Cause != (tidemill.Cause{Source: "/crm", ID: "1"}) || d.asks[0].Correlation != "1" {
		t.Errorf("asked %+v", d.asks)
	}
	if len(d.orders) != 1 || d.orders[0].ID != "f" || d.orders[0].Reason != "he left" || d.orders[0].By != "ada" || d.orders[0].At.Hour() != 8 || d.orders[0].Correlation != "c" {
		t.Errorf("ordered %+v", d.orders)
	}
}

func TestWhatComesAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		code  int
		after string
	}{
		{erase.ErrLive, http.StatusServiceUnavailable, "5"},
		{erase.ErrCatchingUp, http.StatusServiceUnavailable, "5"},
		{erase.ErrKey, http.StatusUnprocessableEntity, ""},
		{broker.ErrInDoubt, http.StatusInternalServerError, ""},
		{errors.New("away"), http.StatusInternalServerError, ""},
	} {
		if code, after := (&desk{fails: c.err}).status(t, forgetting); code != c.code || after != c.after {
			t.Errorf("%v: answered %d, after %q", c.err, code, after)
		}
	}
}
