package platform

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/telemetry"
)

func quiet() *telemetry.Options {
	return &telemetry.Options{Getenv: func(string) string { return "" }}
}

// The gateway uses the connections of the platform. The stop order closes the gateway first.
func TestGatewayIsWiredAndStopped(t *testing.T) {
	t.Parallel()
	p, err := Open(t.Context(), Options{Embedded: &embedded.Options{Dir: t.TempDir()}, OwnStreams: true, Telemetry: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background()) }()
	req, _ := http.NewRequest(http.MethodPost, "http://"+g.Addr()+"/events", nil)
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/x", "Ce-Type": "t"} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if at := res.Header.Get(api.HeaderPosition); res.StatusCode != http.StatusAccepted || !strings.HasPrefix(at, "events/") {
		t.Errorf("%s, %q", res.Status, at)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestGatewayRefuses(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Embedded: &embedded.Options{}, OwnStreams: true})
	if _, err := p.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "without telemetry") {
		t.Errorf("without telemetry: %v", err)
	}
	for says, o := range map[string]GatewayOptions{
		"not a loopback address": {Listen: "0.0.0.0:0"},
		"read the access file":   {Listen: "127.0.0.1:0", AccessFile: "/none/access.yaml"},
		"/none/tls.pem":          {Listen: "127.0.0.1:0", CertFile: "/none/tls.pem", KeyFile: "/none/tls.key"},
		"listen on \"x\"":        {Listen: "x"},
	} {
		p := open(t, Options{Embedded: &embedded.Options{}, OwnStreams: true, Telemetry: quiet()})
		if _, err := p.Gateway(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
}

// The lag of the group of a scorer that was removed grows for ever, because Kafka is kept from forgetting the group. No alert may
// go by it.
func TestLagsOfRemovedScorers(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTests)
	w.publishEvent("messages", "1", "bot-1")
	_, err := w.Gateway(w.ctx(), GatewayOptions{Listen: "127.0.0.1:0"})
	w.must(err)
	for _, group := range []string{"scorer.intents", "scorer.old", "outcomes.intents", "triggers.messages"} {
		c, err := w.broker.Consumer(w.ctx(), broker.ConsumerOptions{Group: group, Streams: []string{"messages"}, Start: broker.Earliest()})
		w.must(err)
		d, err := c.Poll(w.ctx())
		w.must(err)
		d.Done()
		w.must(c.Close(w.ctx()))
	}
	families, err := w.telemetry.Registry().Gather()
	w.must(err)
	var groups []string
	for _, f := range families {
		if f.GetName() == "tidemill_stream_lag" {
			for _, m := range f.GetMetric() {
				groups = append(groups, m.GetLabel()[0].GetValue())
			}
		}
	}
	if !slices.Contains(groups, "scorer.intents") || !slices.Contains(groups, "triggers.messages") || slices.Contains(groups, "scorer.old") || slices.Contains(groups, "outcomes.intents") {
		t.Errorf("the groups with a lag are %q", groups)
	}
}
