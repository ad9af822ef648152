//go:build real

package peers

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

var answerModes = []string{"binary", "structured", "batch"}

// Subscribers that use other libraries can read a dispatcher's requests. Their answers, in every
// mode, arrive on the stream with an id that derives from the cause.
func TestRealPeersSubscribe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	python, err := realservers.Python(ctx, "testdata/subscribe.py")
	if err != nil {
		t.Fatal(err)
	}
	b := dispatcher(ctx, t, map[string]string{"python": listening(t, python), "node": listening(t, nodeScript(ctx, t, "subscribe.cjs"))})

	var entries []entry
	if err := json.Unmarshal(events, &entries); err != nil {
		t.Fatal(err)
	}
	publish(ctx, t, b, entries)
	replies := awaitReplies(ctx, t, b, len(entries)*2*(len(answerModes)+1)) // a batch has two replies
	for _, peer := range []string{"python", "node"} {
		for _, mode := range answerModes {
			for _, e := range entries {
				checkReply(t, replies, peer, mode, e, 0)
				if mode == "batch" {
					checkReply(t, replies, peer, mode, e, 1)
				}
			}
		}
	}
	for id, v := range replies {
		t.Errorf("reply %s is nobody's: %+v", id, v)
	}
}

// listening starts a subscriber and returns the address that it prints.
func listening(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // fails because the process was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v does not say where it listens: %v", cmd.Args, err)
	}
	return strings.TrimSpace(line)
}

// nodeScript copies a script into a folder with node_modules, because Node looks for packages
// there.
func nodeScript(ctx context.Context, t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	modules, err := realservers.NodeModules(ctx)
	dir := t.TempDir()
	if err == nil {
		err = os.Symlink(modules, filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{name, "events.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, "node", append([]string{name}, args...)...)
	cmd.Dir = dir
	return cmd
}

// dispatcher opens a dispatcher on an Apache Kafka, with a trigger for each peer and mode, and
// waits until it is ready.
func dispatcher(ctx context.Context, t *testing.T, peers map[string]string) *broker.Broker {
	t.Helper()
	kafka, err := realservers.StartKafka(ctx, realservers.KafkaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, kafka.Close()) })
	file := "version: 1\nstreams: {echoes: {partitions: 3, types: [echo]}}\ntriggers:\n"
	for peer, addr := range peers {
		for _, mode := range answerModes {
			file += fmt.Sprintf("  %s-%s: {when: {stream: events}, to: {url: \"http://%s/%s\"}, delivery: {replies: {types: [echo], keys: any}}}\n", peer, mode, addr, mode)
		}
	}
	conf, err := config.Parse("peers", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{}, Addresses: config.Addresses{Kafka: kafka.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, p.Close(context.Background())) })
	d, err := p.Dispatcher(ctx)
	if err == nil {
		err = d.Ready(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.Broker()
}

func publish(ctx context.Context, t *testing.T, b *broker.Broker, entries []entry) {
	t.Helper()
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		v := broker.View{ID: e.Name, Data: []byte(e.Text)}
		switch {
		case e.JSON != nil:
			v.Data, err = json.Marshal(e.JSON)
		case e.Base64 != "":
			v.Data, err = base64.StdEncoding.DecodeString(e.Base64)
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range e.Attributes {
			if err := v.Set(name, fmt.Sprint(value)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Publish(ctx, tidemill.StreamEvents, &v); err != nil {
			t.Fatal(err)
		}
	}
	closes(t, p.Close(ctx))
}

// awaitReplies reads the stream of replies until it has that many, by id. It stops early if a dead
// letter shows that a reply will not come.
func awaitReplies(ctx context.Context, t *testing.T, b *broker.Broker, want int) map[string]broker.View {
	t.Helper()
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{"echoes", tidemill.StreamDeadLetters}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closes(t, c.Close(context.Background())) }()
	got := map[string]broker.View{}
	for len(got) < want {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of %d replies: %v", len(got), want, err)
		}
		for i := range d.Events {
			e := &d.Events[i]
			if d.Stream == tidemill.StreamDeadLetters {
				t.Fatalf("a dead letter: %s", e.Data)
			}
			if _, twice := got[e.ID]; twice {
				t.Errorf("reply %s stands twice, and nothing was killed", e.ID)
			}
			got[strings.Clone(e.ID)] = e.View.Clone()
		}
		d.Done()
	}
	return got
}

// checkReply removes a reply from the map, and checks its origin and the event that its subscriber
// has read.
func checkReply(t *testing.T, replies map[string]broker.View, peer, mode string, e entry, index int) {
	t.Helper()
	source := fmt.Sprint(e.Attributes["source"])
	name := peer + "-" + mode
	id := tidemill.Cause{Source: source, ID: e.Name}.Derive("reply", name, fmt.Sprint(index))
	v, ok := replies[id]
	delete(replies, id)
	if !ok {
		t.Errorf("%s: reply %d to %s did not arrive", name, index, e.Name)
		return
	}
	for attribute, want := range map[string]string{"source": "/peers/" + peer, "type": "echo", tidemill.AttrCausationID: e.Name,
		tidemill.AttrCausationSource: source, tidemill.AttrCorrelationID: e.Name, tidemill.AttrTrigger: name} {
		if got, _ := v.Attribute(attribute); got != want {
			t.Errorf("%s: the reply to %s has %s %q, want %q", name, e.Name, attribute, got, want)
		}
	}
	seen, err := readBack(v.Data, peer == "node")
	if err != nil {
		t.Errorf("%s: the reply to %s: %v", name, e.Name, err)
		return
	}
	compare(t, peer, "received", e, seen)
}

// readBack returns the event that a subscriber reports. npm's library leaves percent-encoding to
// its user.
func readBack(data []byte, encoded bool) (broker.View, error) {
	var read struct {
		Attributes map[string]string
		JSON       json.RawMessage
		Text       string
		Base64     []byte
	}
	v := broker.View{}
	if err := json.Unmarshal(data, &read); err != nil {
		return v, fmt.Errorf("read %s: %w", data, err)
	}
	for name, value := range read.Attributes {
		if encoded {
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				return v, err
			}
		}
		if err := v.Set(name, value); err != nil {
			return v, err
		}
	}
	switch {
	case read.JSON != nil:
		v.Data = read.JSON
	case read.Base64 != nil:
		v.Data = read.Base64
	default:
		v.Data = []byte(read.Text)
	}
	return v, nil
}
