//go:build real

package kcat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
)

const perCodec = 50

// kafka starts an Apache Kafka and makes the streams that the tests use.
func kafka(t *testing.T, streams ...string) (*broker.Broker, tidemill.Names, string) {
	t.Helper()
	server, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Open(t.Context(), broker.Options{Addr: server.Addr(), Names: names})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	specs := []broker.StreamSpec{{Name: tidemill.StreamDeadLetters, Partitions: 1}}
	for _, s := range streams {
		specs = append(specs, broker.StreamSpec{Name: s, Partitions: 3})
	}
	if _, err := b.EnsureStreams(t.Context(), specs, broker.EnsureOptions{}); err != nil {
		t.Fatal(err)
	}
	return b, names, server.Addr()
}

func kcat(ctx context.Context, stdin string, args ...string) (string, error) {
	// Without -m, kcat waits only 5 s for a broker's answer.
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-m", "120"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kcat %s: %w\n%s", strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}

// message is kcat -J's output for a record. Headers are name, value, name, …
type message struct {
	Key     *string  `json:"key"`
	Payload *string  `json:"payload"`
	Headers []string `json:"headers"`
}

func (m *message) header(name string) string {
	for i := 0; i+1 < len(m.Headers); i += 2 {
		if m.Headers[i] == name {
			return m.Headers[i+1]
		}
	}
	return ""
}

func TestRealKcatReadsWhatWeWrite(t *testing.T) {
	b, names, addr := kafka(t, "ours")
	want := map[string]*broker.View{}
	for _, c := range []broker.Compression{broker.Uncompressed, broker.LZ4, broker.Zstd} {
		p, err := b.Producer(broker.ProducerOptions{Compression: c})
		if err != nil {
			t.Fatal(err)
		}
		for i := range perCodec {
			v := &broker.View{ID: fmt.Sprintf("%s-%d", c, i), Source: "/we", Type: "new-data", Subject: fmt.Sprintf("bot-%d", i%7),
				DataContentType: "text/plain", Extensions: []broker.Attribute{{Name: "branch", Value: "größer"}},
				Data: []byte(strings.Repeat("kcat reads this ", 20)), Foreign: []broker.Header{{Key: "x-foreign", Value: []byte("carried along")}}}
			if i == 0 {
				v.Data, v.Subject = nil, ""
			}
			want[v.ID] = v
			p.Send(t.Context(), "ours", v, func(_ broker.Receipt, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	out, err := kcat(t.Context(), "", "-C", "-q", "-b", addr, "-t", names.Topic("ours"), "-o", "beginning", "-e", "-J", "-X", "check.crcs=true")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		var m message
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		v := want[m.header("ce_id")]
		if v == nil {
			t.Fatalf("kcat read what we did not write, or twice: %s", line)
		}
		delete(want, v.ID)
		compare(t, &m, v)
	}
	if len(want) > 0 {
		t.Errorf("kcat missed %d events", len(want))
	}
}

func compare(t *testing.T, m *message, v *broker.View) {
	t.Helper()
	for name, value := range map[string]string{"ce_specversion": "1.0", "ce_source": v.Source, "ce_type": v.Type, "ce_subject": v.Subject,
		"content-type": v.DataContentType, "ce_branch": "größer", "x-foreign": "carried along"} {
		if got := m.header(name); got != value {
			t.Errorf("event %s: header %s is %q, want %q", v.ID, name, got, value)
		}
	}
	if v.Data == nil != (m.Payload == nil) || m.Payload != nil && *m.Payload != string(v.Data) {
		t.Errorf("event %s: payload %v", v.ID, m.Payload)
	}
	if v.Subject == "" != (m.Key == nil) || m.Key != nil && *m.Key != v.Subject {
		t.Errorf("event %s: key %v, want its subject %q", v.ID, m.Key, v.Subject)
	}
}

func TestRealWeReadWhatKcatWrites(t *testing.T) {
	b, names, addr := kafka(t, "theirs")
	want := map[string]bool{}
	kcatWrites(t, addr, names.Topic("theirs"), "none", "no event\n", "-k", "bot-7") // first record on the partition of all other records
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		binary, structured := "binary-"+codec, "structured-"+codec
		kcatWrites(t, addr, names.Topic("theirs"), codec, strings.Repeat("hello\n", perCodec),
			"-k", "bot-7", "-H", "ce_specversion=1.0", "-H", "ce_id="+binary, "-H", "ce_source=/kcat", "-H", "ce_type=order-placed",
			"-H", "ce_subject=bot-7", "-H", "ce_branch=main", "-H", "content-type=text/plain", "-H", "x-foreign=kept")
		kcatWrites(t, addr, names.Topic("theirs"), codec, strings.Repeat(`{"specversion":"1.0","id":"`+structured+`","source":"/kcat","type":"order-placed","subject":"bot-7","branch":"main","datacontenttype":"text/plain","data":"hello"}`+"\n", perCodec),
			"-k", "bot-7", "-H", "content-type=application/cloudevents+json; charset=utf-8", "-H", "x-foreign=kept")
		want[binary], want[structured] = true, true
	}

	got := read(t, b, "theirs", "g", perCodec*len(want))
	for id := range want {
		if got[id] != perCodec {
			t.Errorf("%d of %d events %s arrived", got[id], perCodec, id)
		}
	}
	if letters := read(t, b, tidemill.StreamDeadLetters, "", 1); len(letters) != 1 {
		t.Errorf("the record that is no event left %d dead letters", len(letters))
	}
}

func kcatWrites(t *testing.T, addr, topic, codec, text string, args ...string) {
	t.Helper()
	if _, err := kcat(t.Context(), text, append([]string{"-P", "-b", addr, "-t", topic, "-z", codec}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// read checks n events, and counts them by id.
func read(t *testing.T, b *broker.Broker, stream, group string, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Group: group, Streams: []string{stream}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	got := map[string]int{}
	for n > 0 {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d events of stream %s are missing: %v", n, stream, err)
		}
		for i := range d.Events {
			e := &d.Events[i]
			got[strings.Clone(e.ID)]++
			check(t, e, stream)
		}
		n -= len(d.Events)
		d.Done()
	}
	return got
}

func check(t *testing.T, e *broker.Incoming, stream string) {
	t.Helper()
	if e.Err != nil || stream == tidemill.StreamDeadLetters {
		if e.Err != nil || e.Type != tidemill.TypeEventDeadLettered {
			t.Errorf("%s: %v", e.Type, e.Err)
		}
		return
	}
	branch, _ := e.Attribute("branch")
	foreign := len(e.Foreign) == 1 && e.Foreign[0].Key == "x-foreign" && string(e.Foreign[0].Value) == "kept"
	if e.Source != "/kcat" || e.Type != "order-placed" || e.Subject != "bot-7" || branch != "main" || string(e.Data) != "hello" || string(e.Key) != "bot-7" || !foreign {
		t.Errorf("event %s was read as %+v", e.ID, e.View)
	}
}
