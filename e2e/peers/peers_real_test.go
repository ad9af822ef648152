//go:build real

package peers

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

//go:embed testdata/events.json
var events []byte

// entry is an event that both libraries post.
type entry struct {
	Name       string         `json:"name"`
	Encodes    bool           `json:"encodes"` // a header of the event needs percent-encoding
	Attributes map[string]any `json:"attributes"`
	JSON       any            `json:"json"`
	Text       string         `json:"text"`
	Base64     string         `json:"base64"`
}

func TestRealPeersPostInAllModes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	p, url := gateway(ctx, t)
	python, err := realservers.Python(ctx, "testdata/post.py", url+"/events", "testdata/events.json")
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, python)
	accepted(t, nodeScript(ctx, t, "post.cjs", url+"/events", "events.json"))

	var entries []entry
	if err := json.Unmarshal(events, &entries); err != nil {
		t.Fatal(err)
	}
	got := stored(ctx, t, p.Broker())
	for _, peer := range []string{"python", "node"} {
		for _, mode := range []string{"binary", "structured", "batch"} {
			for _, e := range entries {
				id := fmt.Sprintf("%s-%s-%s", peer, mode, e.Name)
				v, ok := got[id]
				delete(got, id)
				if peer == "node" && mode == "binary" && e.Encodes {
					continue // npm's library does not percent-encode, so npm's library cannot post this event
				}
				if !ok {
					t.Errorf("%s did not arrive", id)
					continue
				}
				compare(t, peer, mode, e, v)
			}
		}
	}
	for id := range got {
		t.Errorf("%s arrived, and nobody posted it", id)
	}
}

// gateway opens a gateway with an Apache Kafka and a Redis.
func gateway(ctx context.Context, t *testing.T) (*platform.Platform, string) {
	t.Helper()
	kafka, err := realservers.StartKafka(ctx, realservers.KafkaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, kafka.Close()) })
	redis, err := realservers.StartRedis(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, redis.Close()) })
	p, err := platform.Open(ctx, platform.Options{OwnStreams: true, Telemetry: &telemetry.Options{}, Addresses: config.Addresses{Kafka: kafka.Addr(), Redis: redis.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, p.Close(context.Background())) })
	g, err := p.Gateway(ctx, platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(ctx) }() // the platform ends the server
	return p, "http://" + g.Addr()
}

func closes(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// accepted runs a peer and checks that it prints 202 for every answer.
func accepted(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd.Args[0], err, out, &errs)
	}
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) != "202" {
			t.Errorf("%s was answered %s", cmd.Args[0], line)
		}
	}
}

// stored returns the events on the stream, by id.
func stored(ctx context.Context, t *testing.T, b *broker.Broker) map[string]broker.View {
	t.Helper()
	ends, err := b.Ends(ctx, tidemill.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]broker.View{}
	for i := range ends {
		ends[i].Offset = 0
	}
	if _, err := b.ReadBack(ctx, ends, func(e *broker.Incoming) { got[strings.Clone(e.ID)] = e.View.Clone() }); err != nil {
		t.Fatal(err)
	}
	return got
}

// compare allows the attributes that the libraries add themselves: a time, and in npm's a content
// type.
func compare(t *testing.T, peer, mode string, e entry, v broker.View) {
	t.Helper()
	for name, value := range e.Attributes {
		want := fmt.Sprint(value)
		got, _ := v.Attribute(name)
		switch {
		case name == "time":
			a, err := time.Parse(time.RFC3339Nano, got)
			if b, _ := time.Parse(time.RFC3339Nano, want); err != nil || !a.Equal(b) {
				t.Errorf("%s: time is %s, want %s", v.ID, got, want)
			}
			continue
		case name == "urgent" && peer == "python" && mode == "binary":
			want = "True" // as Python prints it; the specification says true
		}
		if got != want {
			t.Errorf("%s: attribute %s is %q, want %q", v.ID, name, got, want)
		}
	}
	if err := data(e, v.Data); err != nil {
		t.Errorf("%s: %v", v.ID, err)
	}
}

func data(e entry, got []byte) error {
	want := []byte(e.Text)
	switch {
	case e.JSON != nil:
		var value any
		if err := json.Unmarshal(got, &value); err != nil || !reflect.DeepEqual(value, e.JSON) {
			return fmt.Errorf("data is %s, want %v: %w", got, e.JSON, err)
		}
		return nil
	case e.Base64 != "":
		want, _ = base64.StdEncoding.DecodeString(e.Base64)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("data is %q, want %q", got, want)
	}
	return nil
}
