package functions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu    sync.Mutex
	b     bytes.Buffer
	wrote chan struct{} // may be nil
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.b.Write(p)
}

// await waits until the log contains a text.
func (l *lines) await(text string) {
	for !strings.Contains(l.String(), text) {
		<-l.wrote
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// call posts an event to a function.
func call(t *testing.T, f Func, o Options, headers map[string]string, body string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	log := new(lines)
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	Handler(f, o).ServeHTTP(w, r)
	return w, log.String()
}

func binary() map[string]string {
	return map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "order-placed", "content-type": "application/json"}
}

func reply1(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/f")
	e.SetType("invoice-due")
	return e
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	broken := reply1("x")
	broken.SetSource("")
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		replies []event.Event
		err     error
		status  int
		headers map[string]string
		body    string
	}{
		{"nothing", nil, nil, 204, nil, ""},
		{"one", []event.Event{reply1("a")}, nil, 200, map[string]string{"Ce-Id": "a", "Ce-Type": "invoice-due", "Content-Type": ""}, ""},
		{"one without an id", []event.Event{reply1("")}, nil, 200, map[string]string{"Ce-Id": tidemill.Cause{Source: "/s", ID: "1"}.Derive("reply", "0")}, ""},
		{"two", []event.Event{reply1("a"), reply1("b")}, nil, 200, map[string]string{"Content-Type": "application/cloudevents-batch+json"},
			`[{"specversion":"1.0","id":"a","source":"/f","type":"invoice-due"},{"specversion":"1.0","id":"b","source":"/f","type":"invoice-due"}]`},
		{"no event", []event.Event{reply1("a"), broken}, nil, 422, nil, "the function's reply 1 is not a CloudEvent: attribute source: is missing\n"},
		{"an empty one", []event.Event{{}}, nil, 422, nil, ""},
		{"an error", []event.Event{reply1("a")}, boom, 500, map[string]string{"Content-Type": "text/plain; charset=utf-8", "Retry-After": ""}, "boom\n"},
		{"a permanent one", nil, fmt.Errorf("order 1: %w", Permanent(boom)), 422, nil, "order 1: boom\n"},
		{"a joined one", nil, errors.Join(boom, Permanent(boom)), 422, nil, "boom\nboom\n"},
		{"later", nil, RetryAfter(boom, 1500*time.Millisecond), 503, map[string]string{"Retry-After": "2"}, "boom\n"},
		{"long gone", nil, RetryAfter(boom, -time.Hour), 503, map[string]string{"Retry-After": "0"}, ""},
		{"both", nil, RetryAfter(Permanent(boom), time.Second), 422, map[string]string{"Retry-After": ""}, ""},
	} {
		w, log := call(t, func(context.Context, event.Event) ([]event.Event, error) { return c.replies, c.err }, Options{}, binary(), "{}")
		if w.Code != c.status || c.body != "" && w.Body.String() != c.body || c.status == 204 && w.Body.Len() > 0 {
			t.Errorf("%s: %d %s, want %d %s", c.name, w.Code, w.Body, c.status, c.body)
		}
		for name, want := range c.headers {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: header %s is %q, want %q", c.name, name, got, want)
			}
		}
		if failed := c.status >= 400; failed != strings.Contains(log, "event=1 type=order-placed reason=") || strings.Count(log, "\n") > 1 {
			t.Errorf("%s: the log says %q", c.name, log)
		}
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	of := func(contentType string) map[string]string { return map[string]string{"content-type": contentType} }
	const whole = `{"specversion":"1.0","id":"1","source":"/s","type":"order-placed","data":{"a":1}}`
	for _, c := range []struct {
		name    string
		headers map[string]string
		body    string
		status  int
		says    string
	}{
		{"binary", binary(), `{"a":1}`, 204, ""},
		{"structured", of("application/cloudevents+json"), whole, 204, ""},
		{"a batch", of("application/cloudevents-batch+json"), "[" + whole + "]", 415, "one event in a request"},
		{"another format", of("application/cloudevents+avro"), "x", 415, "avro"},
		{"no event", of("application/json"), "{}", 400, "specversion"},
		{"no source", of("application/cloudevents+json"), strings.Replace(whole, "/s", "", 1), 400, "attribute source"},
		{"bad JSON", of("application/cloudevents+json"), whole[1:], 400, "JSON"},
		{"too large", binary(), strings.Repeat("x", 101), 413, "too large"},
		{"just not", binary(), strings.Repeat("x", 100), 204, ""},
	} {
		called := false
		w, _ := call(t, func(_ context.Context, e event.Event) ([]event.Event, error) {
			called = true
			if e.ID() != "1" || e.Type() != "order-placed" || len(e.Data()) == 0 {
				t.Errorf("%s: it gets %s", c.name, e)
			}
			return nil, nil
		}, Options{MaxBody: 100}, c.headers, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) || called != (c.status == 204) {
			t.Errorf("%s: %d %s, want %d %q; called: %t", c.name, w.Code, w.Body, c.status, c.says, called)
		}
	}
}

func TestOtherMethods(t *testing.T) {
	t.Parallel()
	h := Handler(nil, Options{})
	for method, want := range map[string]int{http.MethodOptions: 204, http.MethodGet: 405, http.MethodPut: 405} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/", nil))
		if w.Code != want || w.Header().Get("Allow") != "POST, OPTIONS" {
			t.Errorf("%s: %d, allowed is %q", method, w.Code, w.Header().Get("Allow"))
		}
	}
}

func TestAPanicIsAnError(t *testing.T) {
	t.Parallel()
	w, log := call(t, func(context.Context, event.Event) ([]event.Event, error) { panic("ouch") }, Options{}, binary(), "")
	if w.Code != 500 || w.Body.String() != "the function panicked: ouch\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "func_test.go") || strings.Count(log, "\n") != 1 {
		t.Errorf("the log says %s", log)
	}
	defer func() {
		if cause := recover(); cause != http.ErrAbortHandler {
			t.Errorf("to hang up is not passed on: %v", cause)
		}
	}()
	call(t, func(context.Context, event.Event) ([]event.Event, error) { panic(http.ErrAbortHandler) }, Options{}, binary(), "")
}

func TestTheTimeIsBounded(t *testing.T) {
	t.Parallel()
	w, _ := call(t, func(ctx context.Context, _ event.Event) ([]event.Event, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, Options{Timeout: time.Millisecond}, binary(), "")
	if w.Code != 500 || !strings.Contains(w.Body.String(), "deadline") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A function's context ends when the caller closes the connection.
func TestTheCallerHangsUp(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan error, 1)
	server := httptest.NewServer(Handler(func(ctx context.Context, _ event.Event) ([]event.Event, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}, Options{Logger: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range binary() {
		req.Header.Set(name, value)
	}
	go func() { <-began; cancel() }()
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		t.Errorf("it was answered %d", res.StatusCode)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the function ended with %v", err)
	}
}

func TestMarksOfNothingAreNothing(t *testing.T) {
	t.Parallel()
	if Permanent(nil) != nil || RetryAfter(nil, time.Second) != nil {
		t.Error("nothing is an error")
	}
	boom := errors.New("boom")
	if !errors.Is(Permanent(boom), boom) || !errors.Is(RetryAfter(boom, 0), boom) || Permanent(boom).Error() != "boom" {
		t.Error("a marked error is another")
	}
}
