package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/cloudevents/sdk-go/v2/event"
	oracle "github.com/cloudevents/sdk-go/v2/protocol/http"

	"tidemill.dev/functions"
)

// invoice is a user's function.
func invoice(n int) functions.Func {
	return func(_ context.Context, e event.Event) ([]event.Event, error) {
		var replies []event.Event
		for i := range n {
			r := event.New()
			r.SetType("invoice-due")
			r.SetSource("/billing")
			r.SetSubject(fmt.Sprint(e.Subject(), " ", i))
			replies = append(replies, r)
		}
		return replies, nil
	}
}

func failing(err error) functions.Func {
	return func(context.Context, event.Event) ([]event.Event, error) { return nil, err }
}

// The dispatcher understands the adapter's answers as the function meant them.
func TestFunctionsAreSubscribers(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		f       functions.Func
		want    verdict
		replies int
		after   time.Duration
	}{
		"nothing":   {invoice(0), delivered, 0, 0},
		"one":       {invoice(1), delivered, 1, 0},
		"several":   {invoice(3), delivered, 3, 0},
		"too many":  {invoice(maxReplies + 1), refused, 0, 0},
		"an error":  {failing(boom), again, 0, 0},
		"later":     {failing(functions.RetryAfter(boom, 7*time.Second)), again, 0, 7 * time.Second},
		"permanent": {failing(functions.Permanent(boom)), refused, 0, 0},
		"a panic":   {func(context.Context, event.Event) ([]event.Event, error) { panic("boom") }, again, 0, 0},
	} {
		server := httptest.NewServer(functions.Handler(c.f, functions.Options{Logger: slog.New(slog.DiscardHandler)}))
		t.Cleanup(server.Close)
		o := newPoster(t, triggerTo(server.URL), subscriberOptions{}).post(t.Context(), posted(), 1)
		if o.kind != c.want || len(o.replies) != c.replies || o.after != c.after {
			t.Errorf("%s: %s with %d replies, after %s: %+v", name, o.kind, len(o.replies), o.after, o.attempt)
		}
		for i, r := range o.replies {
			if want := fmt.Sprint("merchant-7 ", i); r.Subject != want || r.Source != "/billing" {
				t.Errorf("%s: reply %d is %+v", name, i, r)
			}
		}
		if o.kind != delivered && c.replies == 0 && name != "too many" && o.attempt.Answer != "boom\n" && o.attempt.Answer != "the function panicked: boom\n" {
			t.Errorf("%s: the answer is %q", name, o.attempt.Answer)
		}
	}
}

// A subscriber written with sdk-go gets the unchanged event, and the dispatcher
// understands its answers as sdk-go means them.
func TestTheOracleSubscribes(t *testing.T) {
	t.Parallel()
	var answer func(event.Event) (*event.Event, error)
	p, err := oracle.New()
	if err != nil {
		t.Fatal(err)
	}
	handler, err := client.NewHTTPReceiveHandler(t.Context(), p, func(_ context.Context, e event.Event) (*event.Event, error) { return answer(e) })
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s := newPoster(t, triggerTo(server.URL), subscriberOptions{})

	sent := posted()
	sent.Extensions = sent.Extensions[1:] // the key has a space, and sdk-go does not decode the percent-encoding that a header needs
	answer = func(e event.Event) (*event.Event, error) {
		want, err := sent.Event()
		if err != nil || e.String() != want.String() {
			t.Errorf("%v, it gets\n%s\nwant\n%s", err, e, want)
		}
		e = e.Clone()
		e.SetType("invoice-due")
		return &e, nil
	}
	o := s.post(t.Context(), sent, 1)
	expect(t, o, delivered)
	if len(o.replies) != 1 || o.replies[0].Type != "invoice-due" || string(o.replies[0].Data) != string(posted().Data) {
		t.Errorf("the replies are %+v", o.replies)
	}
	for want, err := range map[verdict]error{delivered: nil, again: oracle.NewResult(503, "temporarily unavailable"), refused: oracle.NewResult(422, "never")} {
		answer = func(event.Event) (*event.Event, error) { return nil, err }
		if o := s.post(t.Context(), posted(), 1); o.kind != want || o.replies != nil {
			t.Errorf("%v is %s: %+v", err, o.kind, o.attempt)
		}
	}
}
