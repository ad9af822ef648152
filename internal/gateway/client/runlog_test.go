package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
)

// logHandler answers with a part of a log, and may break the connection after it.
func logHandler(text string, cut bool, wants map[string]string, t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for name, want := range wants {
			if got := r.URL.Query().Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		w.Header().Set(api.HeaderAttempt, "3")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, text)
		if cut {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

// After a break, the log continues at the same byte of the same attempt.
func TestALogThatIsCutOffGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, asked := inOrder(
			logHandler("hel", true, map[string]string{"attempt": "", "skip": "", "follow": "true", "timestamps": "true"}, t),
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			logHandler("", true, map[string]string{"attempt": "3", "skip": "3"}, t),
			logHandler("lo\n", false, map[string]string{"attempt": "3", "skip": "3"}, t))
		g := gatewayOf(t, handler)
		var text strings.Builder
		if err := g.RunLog(t.Context(), "aaaaaaaa", LogOptions{Follow: true, Timestamps: true}, &text); err != nil || text.String() != "hello\n" || *asked != 4 {
			t.Errorf("%q after %d requests: %v", text.String(), *asked, err)
		}
	})
}

// A permanent error is returned at once, and an unreachable gateway after a while.
func TestALogThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		asked  int // number of requests; 0 for several
		says   string
	}{
		"no such run": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"type":"`+api.ProblemBase+api.UnknownRun+`","title":"t","status":404,"detail":"no run begins so"}`)
		}, 1, "read the log of run aaaaaaaa: no run begins so"},
		"away": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, 0, "tried for"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler, asked := inOrder(c.answer)
				err := gatewayOf(t, handler).RunLog(t.Context(), "aaaaaaaa", LogOptions{}, io.Discard)
				if err == nil || !strings.Contains(err.Error(), c.says) || c.asked > 0 && *asked != c.asked || *asked == 0 {
					t.Errorf("%v after %d requests", err, *asked)
				}
			})
		})
	}
}

// A gateway that takes the request and never answers is asked again, and then reported. A follower waits for lines as long
// as it takes.
func TestALogWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := gatewayOf(t, neverAnswer).RunLog(t.Context(), "aaaaaaaa", LogOptions{}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "the gateway does not answer") {
			t.Error(err)
		}
		quiet := func(w http.ResponseWriter, r *http.Request) {
			logHandler("", false, nil, t)(w, r)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "hello")
		}
		var text strings.Builder
		handler, asked := inOrder(neverAnswer, quiet)
		if err := gatewayOf(t, handler).RunLog(t.Context(), "aaaaaaaa", LogOptions{Follow: true}, &text); err != nil || text.String() != "hello" || *asked != 2 {
			t.Errorf("%q after %d requests: %v", text.String(), *asked, err)
		}
	})
}

// A page of another server is no log.
func TestALogIsNoPage(t *testing.T) {
	var text strings.Builder
	err := gatewayOf(t, htmlHandler(200, "<html>please sign in")).RunLog(t.Context(), "aaaaaaaa", LogOptions{}, &text)
	if err == nil || !strings.Contains(err.Error(), "is it one? The answer: <html>please sign in") || text.Len() > 0 {
		t.Errorf("%q, %v", text.String(), err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// After a write error or the end of the context, there is no further request.
func TestALogThatNobodyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, asked := inOrder(logHandler("hello", true, nil, t))
		g := gatewayOf(t, handler)
		if err := g.RunLog(t.Context(), "aaaaaaaa", LogOptions{Follow: true}, full{}); !errors.Is(err, io.ErrShortWrite) || *asked != 1 {
			t.Errorf("%v after %d requests", err, *asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.RunLog(ctx, "aaaaaaaa", LogOptions{Follow: true}, io.Discard); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
