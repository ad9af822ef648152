package platform

import (
	"context"
	"net/http"
	"testing"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
)

// A 202 means that the event is on the stream, even if the stream was deleted and Redis or the
// gateway still remembers its old events.
func TestAStreamMadeAnewHasNoRepeats(t *testing.T) {
	t.Parallel()
	s := serve(t, embedded.Options{})
	first := openDoor(t, s)
	if first.publish() {
		t.Fatal("the first is a repeat")
	}
	if !first.publish() {
		t.Fatal("the second is none, so nothing is tested here")
	}
	first.loseEvents()
	if err := first.applyConfig(t.Context(), parse(t, "version: 1\nstreams: {other: {}}\n")); err != nil {
		t.Fatal(err)
	}
	if first.publish() {
		t.Error("an event was answered with 202 and stands nowhere; the gateway made the stream anew")
	}
	first.close()
	first.loseEvents()
	second := openDoor(t, s)
	if second.publish() {
		t.Error("an event was answered with 202 and stands nowhere; the stream was made when the gateway started")
	}
	second.close()
}

// After a restart, a laptop's Redis is empty, and repeats are recognised by the log.
func TestRepeatsAreKnownAgainAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for life := range 3 {
		s, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		d := openDoor(t, s)
		if repeated := d.publish(); repeated != (life > 0) {
			t.Errorf("life %d: repeated %t", life, repeated)
		}
		d.close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// gatewayProcess is a platform with a running gateway.
type gatewayProcess struct {
	*testing.T
	*Platform
	url    string
	served chan error
}

func openDoor(t *testing.T, s *embedded.Servers) *gatewayProcess {
	t.Helper()
	return openGatewayWith(t, Options{Addresses: config.Addresses{Kafka: s.Kafka(), Redis: s.Redis()}, OwnStreams: true,
		Telemetry: &telemetry.Options{Getenv: func(string) string { return "" }}})
}

func openGatewayWith(t *testing.T, o Options) *gatewayProcess {
	t.Helper()
	p, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	d := &gatewayProcess{T: t, Platform: p, url: "http://" + g.Addr(), served: make(chan error, 1)}
	go func() { d.served <- g.Serve(context.WithoutCancel(t.Context())) }()
	return d
}

func (d *gatewayProcess) close() {
	d.Helper()
	if err := d.Platform.Close(context.WithoutCancel(d.Context())); err != nil {
		d.Error(err)
	}
	if err := <-d.served; err != nil {
		d.Error(err)
	}
}

// publish publishes the same event each time, and reports whether it was recognised as a repeat.
func (d *gatewayProcess) publish() (repeated bool) {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), http.MethodPost, d.url+"/events", nil)
	if err != nil {
		d.Fatal(err)
	}
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "t"} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		d.Error(res.Status)
	}
	return res.Header.Get(api.HeaderRepeated) == "true"
}

// loseEvents deletes the topic directly in Kafka.
func (d *gatewayProcess) loseEvents() {
	d.Helper()
	client := kafka.Client{Addr: kafka.TCP(d.Addresses().Kafka)}
	topic := d.Names().Topic(tidemill.StreamEvents)
	if _, err := client.DeleteTopics(d.Context(), &kafka.DeleteTopicsRequest{Topics: []string{topic}}); err != nil {
		d.Fatal(err)
	}
}
