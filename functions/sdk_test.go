package functions

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	oracle "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// Events from sdk-go's client arrive unchanged in both modes, and the client can read
// the function's replies.
func TestTheOracleCalls(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(Handler(func(_ context.Context, e event.Event) ([]event.Event, error) {
		if e.Type() != "order-placed" {
			return nil, Permanent(errors.New("no order"))
		}
		e = e.Clone()
		e.SetType("invoice-due")
		return []event.Event{e}, nil
	}, Options{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(server.Close)
	c, err := client.NewHTTP(oracle.WithTarget(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	e := event.New()
	e.SetID("1")
	e.SetSource("https://shop.example/?a=1")
	e.SetType("order-placed")
	e.SetSubject("merchant-7") // has no characters that a header must encode, because sdk-go does not decode them
	e.SetTime(time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC))
	e.SetDataSchema("https://shop.example/order/1")
	e.SetExtension("partitionkey", "k")
	if err := e.SetData("application/json", map[string]any{"total": 12.5}); err != nil {
		t.Fatal(err)
	}
	want := e.Clone()
	want.SetType("invoice-due")
	for name, ctx := range map[string]context.Context{"binary": binding.WithForceBinary(t.Context()), "structured": binding.WithForceStructured(t.Context())} {
		got, result := c.Request(ctx, e)
		if !protocol.IsACK(result) || got == nil || got.String() != want.String() {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, result, got, want)
		}
	}
	e.SetType("order-cancelled")
	var status *oracle.Result
	if _, result := c.Request(t.Context(), e); !protocol.ResultAs(result, &status) || status.StatusCode != 422 {
		t.Errorf("a refusal is %v", result)
	}
}
