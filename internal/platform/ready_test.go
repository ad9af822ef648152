package platform

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
)

// If the ledger has stopped, a gateway still takes events, and is ready for them. Its routes of runs
// and models give the reason. A process that only decides is not ready.
func TestAStoppedLedgerDoesNotStopPublishing(t *testing.T) {
	t.Parallel()
	s := serve(t, embedded.Options{})
	o := Options{Addresses: config.Addresses{Kafka: s.Kafka(), Redis: s.Redis(), Store: filepath.Join(t.TempDir(), "store")}, OwnStreams: true,
		Config: parse(t, "version: 1\nrecipes: {intent: {when: {type: a}, run: {dir: ., command: [train]}}}\n")}
	growFacts(t, open(t, withRuns(o)))
	controller := open(t, withRuns(o))
	gateway := openGatewayWith(t, withRuns(o))
	t.Cleanup(gateway.close)
	waitStopped(t, controller)
	waitStopped(t, gateway.Platform)

	const reason = "so their order is lost"
	if r := controller.Ready(t.Context()); r.Status != api.Failed || check(r, "runs").Status != api.Failed || !strings.Contains(check(r, "runs").Detail, reason) {
		t.Errorf("the controller: %+v", r)
	}
	if r := gateway.Ready(t.Context()); r.Status != api.Degraded || check(r, "runs").Status != api.Degraded || !strings.Contains(check(r, "runs").Detail, reason) {
		t.Errorf("the gateway: %+v", r)
	}
	if status, _ := gateway.ask(http.MethodGet, "/readyz", ""); status != http.StatusOK {
		t.Errorf("the gateway's /readyz answers %d", status)
	}
	gateway.publish()
	for _, path := range []string{"/api/v1/runs", "/api/v1/models", "/api/v1/recipes", "/api/v1/model?model=intent/bot-1"} {
		gateway.wantStopped(reason, http.MethodGet, path, "")
	}
	gateway.wantStopped(reason, http.MethodPost, "/api/v1/runs", `{"recipe":"intent","keys":["bot-1"]}`)
	gateway.wantStopped(reason, http.MethodPost, "/api/v1/data/gc", `{}`)
}

func withRuns(o Options) Options {
	o.Runs = &RunsOptions{}
	o.Telemetry = &telemetry.Options{Getenv: func(string) string { return "" }}
	return o
}

// growFacts gives the stream of facts more partitions once the ledger knows it.
func growFacts(t *testing.T, p *Platform) {
	t.Helper()
	if err := p.Ledger().CaughtUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := kafka.Client{Addr: kafka.TCP(p.Addresses().Kafka)}
	_, err := client.CreatePartitions(t.Context(), &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: p.Names().Topic(tidemill.StreamFacts), Count: 100}}})
	if err != nil {
		t.Fatal(err)
	}
}

func waitStopped(t *testing.T, p *Platform) {
	t.Helper()
	for tick := time.NewTicker(5 * time.Millisecond); !p.Ledger().Status().Stopped; {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the ledger goes on")
		}
	}
}

func (d *gatewayProcess) ask(method, path, body string) (int, string) {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		d.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (d *gatewayProcess) wantStopped(reason, method, path, body string) {
	d.Helper()
	if status, text := d.ask(method, path, body); status != http.StatusServiceUnavailable || !strings.Contains(text, reason) || !strings.Contains(text, "runbooks/") {
		d.Errorf("%s %s answers %d: %s", method, path, status, text)
	}
}
