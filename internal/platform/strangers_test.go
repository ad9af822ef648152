package platform

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/telemetry"
)

// A browser here that was led to our port by a name of somebody else's says that
// name as the host.
func TestOurFunctionsAreCalledByUsAlone(t *testing.T) {
	t.Parallel()
	calls := 0
	p := open(t, Options{Embedded: &embedded.Options{}, OwnStreams: true, Functions: map[string]functions.Func{
		"count": func(context.Context, event.Event) ([]event.Event, error) { calls++; return nil, nil }}})
	if err := p.openFunctions(t.Context()); err != nil {
		t.Fatal(err)
	}
	to, err := p.resolve(t.Context(), config.Target{Function: "count"})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{to.Host: http.StatusNoContent, "evil.example": http.StatusForbidden, "evil.example:" + to.Port(): http.StatusForbidden, "localhost:" + to.Port(): http.StatusForbidden} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to.String(), strings.NewReader(`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Content-Type", "application/cloudevents+json")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", host, res.StatusCode, want)
		}
	}
	if calls != 1 {
		t.Errorf("it was called %d times", calls)
	}
}

// Probes have no tokens, and readiness knows where Kafka is.
func TestProbesTellNoDetails(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Embedded: &embedded.Options{}, OwnStreams: true, Telemetry: &telemetry.Options{}})
	at, err := p.Probes(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + at + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var state api.Readiness
	if err := json.NewDecoder(res.Body).Decode(&state); err != nil || len(state.Checks) == 0 {
		t.Fatalf("%+v, %v", state, err)
	}
	for _, c := range state.Checks {
		if c.Detail != "" || c.Name == "" || c.Status == "" {
			t.Errorf("anybody is told %+v", c)
		}
	}
}
