package cli

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/internal/cli/show"
)

// A warning shows the last error of the gateway, and says that the command retries.
func TestWhatIsTriedInVainIsTold(t *testing.T) {
	t.Parallel()
	for args, what := range map[string]string{
		"publish a":        "; sending the event; retrying for up to 2 minutes. Last error: ",
		"publish --file -": "; sending 1 event; retrying for up to 2 minutes. Last error: ",
		"streams":          "; retrying for up to 10 seconds. Last error: ",
		"tail events -n 1": "; retrying for up to 10 seconds. Last error: ",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var told syncBuffer
			var asked atomic.Bool
			url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/healthz":
				case !strings.Contains(told.String(), what):
					asked.Store(true)
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, `{"type":"https://tidemill.dev/problems/unavailable","status":503,"detail":"Kafka is away"}`)
				default:
					w.WriteHeader(http.StatusNotFound) // ends the retries
				}
			})
			err := run(t.Context(), append(strings.Fields(args), "--url", url), strings.NewReader(`{"specversion":"1.0","id":"1","source":"/x","type":"a"}`), io.Discard, &told)
			if err == nil || !asked.Load() || strings.Contains(err.Error(), "outcome unknown") {
				t.Error(err)
			}
			mention(t, "stderr", told.String(), "No answer for 5s", what+"Kafka is away\n")
			if strings.Contains(told.String(), "Is it running?") {
				t.Errorf("it answers, and is asked for:\n%s", &told)
			}
		})
	}
}

func TestWorryIsToldOnceOfEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out syncBuffer
		var met atomic.Pointer[error]
		w := show.Worry{Who: "the gateway", Trouble: func() error {
			if err := met.Load(); err != nil {
				return *err
			}
			return nil
		}}
		stop := w.Watch(&out, "wait")
		time.Sleep(time.Minute)
		err := errors.New("503")
		met.Store(&err)
		time.Sleep(time.Minute)
		stop()
		if want := "No answer from the gateway for 5s; wait. Is it running?\nNo answer for 5s; wait. Last error: 503\n"; out.String() != want {
			t.Errorf("got %s, want %s", &out, want)
		}
	})
}
