package platform

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/deliver"
)

// Events for a missing service wait. Events for a service in another namespace fail with an error,
// because the service would never be found.
func TestAServiceOfAnotherNamespaceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := config.Parse("c.yaml", []byte("version: 1\ntriggers: {t: {when: {type: a}, to: {service: shop/prices}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, Options{Config: conf, Embedded: &embedded.Options{}, OwnStreams: true, Cluster: &ClusterOptions{Kubeconfig: kubeconfig, Namespace: "ml"}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := p.openServices(ctx); err != nil {
		t.Fatal(err)
	}
	for service, waits := range map[string]bool{"prices": true, "ml/prices": true, "shop/prices": false} {
		at, err := p.resolveURL(t.Context(), config.Target{Service: service})
		if err == nil || errors.Is(err, deliver.ErrNotYet) != waits {
			t.Errorf("%s: %v, %v", service, at, err)
		}
		if !waits && !strings.Contains(err.Error(), "give the trigger its url, such as http://prices.shop.svc.cluster.local") {
			t.Errorf("%s: %v", service, err)
		}
	}
}

// Every user of a machine can reach the port of our functions, and a web page can make a browser call
// it. So only the token of the dispatcher opens it.
func TestOurFunctionsAreCalledByUsAlone(t *testing.T) {
	t.Parallel()
	calls := 0
	p := open(t, Options{Embedded: &embedded.Options{}, OwnStreams: true, Functions: map[string]functions.Func{
		"count": func(context.Context, event.Event) ([]event.Event, error) { calls++; return nil, nil }}})
	if err := p.openFunctions(t.Context()); err != nil {
		t.Fatal(err)
	}
	to, err := p.resolveURL(t.Context(), config.Target{Function: "count"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := p.dispatcherToken()
	if err != nil {
		t.Fatal(err)
	}
	for authorization, want := range map[string]int{"Bearer " + token: http.StatusNoContent, "": http.StatusUnauthorized, "Bearer ": http.StatusUnauthorized, "Bearer x" + token: http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to.String(), strings.NewReader(`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", authorization)
		r.Header.Set("Content-Type", "application/cloudevents+json")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %d, want %d", authorization, res.StatusCode, want)
		}
	}
	if calls != 1 {
		t.Errorf("it was called %d times", calls)
	}
}

// Probes need no token, so they must not return the address of Kafka.
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
