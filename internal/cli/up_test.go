package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/platform"
)

func TestPublishTailStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	published := ok(t, "publish", "--data", dir, "bot-created", "--subject", "bot-42", "-d", `{"name": "Ada"}`, "--ext", "branch=main", "--id", "first")
	mention(t, "publish", published, "published bot-created first to events, partition ")
	ok(t, "--data", dir, "publish", "bot-deleted", "--subject=bot-42", "--id=second")
	all := ok(t, "tail", "events", "--data", dir, "--from", "beginning", "--no-follow")
	mention(t, "tail", all, "bot-created", "bot-42", "branch=main", `{"name":"Ada"}`, "bot-deleted")
	if strings.Index(all, "first") > strings.Index(all, "second") {
		t.Errorf("tail shows them out of the order of time:\n%s", all)
	}
	one := ok(t, "tail", "events", "--data", dir, "--from", "-1h", "-n", "1", "-o", "json", "--where", "type = 'bot-deleted'")
	var v broker.View
	if err := broker.UnmarshalStructured([]byte(one), &v); err != nil || v.ID != "second" || v.Source != "/cli" {
		t.Errorf("tail -o json gave %q: %v", one, err)
	}
	streams := ok(t, "streams", "--data", dir)
	mention(t, "streams", streams, "STREAM", "events                 12       2 ", "dead-letters", "facts", "progress")
	mention(t, "streams -o json", ok(t, "streams", "--data", dir, "-o", "json"), `"name": "events"`, `"records": 2`, `"retentionSeconds": null`)
}

const poison = "hello, is this the printer?"

// writePoison writes a record that is not an event, as another Kafka client can.
func writePoison(ctx context.Context, dir, address string, names tidemill.Names) (broker.Position, error) {
	password, err := os.ReadFile(embedded.KafkaPasswordFile(dir))
	if err != nil {
		return broker.Position{}, err
	}
	login, err := scram.Mechanism(scram.SHA256, embedded.UserName, strings.TrimSpace(string(password)))
	if err != nil {
		return broker.Position{}, err
	}
	client := kafka.Client{Addr: kafka.TCP(address), Transport: &kafka.Transport{SASL: login}}
	res, err := client.Produce(ctx, &kafka.ProduceRequest{
		Topic: names.Topic(tidemill.StreamEvents), RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(poison))}),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return broker.Position{}, err
	}
	return broker.Position{Stream: tidemill.StreamEvents, Offset: res.BaseOffset}, nil
}

func TestTailShowsWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startUp(t, dir)
	names, err := tidemill.NewNames(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	at, err := writePoison(t.Context(), s.dir, s.Kafka, names)
	if err != nil {
		t.Fatal(err)
	}
	mention(t, "tail", ok(t, "tail", "events", "--data", dir, "--from", "0", "--no-follow", "--where", "type = 'x'"),
		"not an event", fmt.Sprintf("partition %d, offset %d", at.Partition, at.Offset), poison)
	o := call(t, "", "tail", "events", "--data", dir, "--from", "beginning", "--no-follow", "-o", "json")
	if o.out != "" || o.code != 0 {
		t.Errorf("as JSON, what is no event was printed as one: %q, exit %d", o.out, o.code)
	}
	mention(t, "tail -o json", o.err, "not an event")
}

func TestKilledUpComesBackWithItsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spawnUp(t, dir)
	ok(t, "publish", "bot-created", "--data", dir, "-s", "bot-1", "--id", "kept")
	s.kill(t)
	o := call(t, "", "tail", "events", "--data", dir, "--no-follow")
	if o.code != exitFailed {
		t.Errorf("tail on a dead Kafka exits with %d", o.code)
	}
	mention(t, "the error", o.err, "refused", platform.AddressFile(dir), "does it still run?")
	spawnUp(t, dir)
	mention(t, "tail", ok(t, "tail", "events", "--data", dir, "--from", "beginning", "--no-follow"), "bot-created", "kept")
}

func TestSecondUpOnTheSameFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startUp(t, dir)
	o := call(t, "", upArgs(dir, nil)...)
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, dir, "is in use by process", "another folder")
	if code, body := s.get(t, "/readyz"); code != 200 {
		t.Errorf("the first is not ready any more: %s", body)
	}
	mention(t, "what others find", ok(t, "streams", "--data", dir), "events")
}

func TestInterruptedUpDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spawnUp(t, dir)
	var acknowledged atomic.Int64
	stop := publishUntil(t, s, &acknowledged)
	eventually(t, func() bool { return acknowledged.Load() > 500 })
	s.stop()
	<-s.done
	stop()
	if s.err != nil {
		t.Fatalf("up ended with %v\n%s", s.err, s.stderr)
	}
	mention(t, "the log", s.stderr.String(), "up: stopping; live runs continue")
	if _, found, err := platform.Find(dir); found || err != nil {
		t.Errorf("the addresses are still there: %v", err)
	}
	spawnUp(t, dir)
	there := map[string]bool{}
	for line := range strings.Lines(ok(t, "tail", "events", "--data", dir, "--from", "beginning", "--no-follow", "-o", "json")) {
		var v broker.View
		if err := broker.UnmarshalStructured([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		there[v.ID] = true
	}
	if n := acknowledged.Load(); int64(len(there)) < n {
		t.Errorf("%d events were acknowledged and %d are there", n, len(there))
	}
}

// publishUntil publishes in the background until stop, and counts the acknowledged events.
func publishUntil(t *testing.T, s *server, acknowledged *atomic.Int64) (stop func()) {
	t.Helper()
	names, _ := tidemill.NewNames(s.Name)
	security, _ := platform.EmbeddedSecurity(s.dir)
	b, err := broker.Open(t.Context(), broker.Options{Addr: s.Kafka, Names: names, Security: security})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Producer(broker.ProducerOptions{MaxBuffered: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			v := broker.View{ID: fmt.Sprint(i), Source: "/test", Type: "t", Subject: fmt.Sprint("bot-", i%50)}
			p.Send(ctx, "events", &v, func(_ broker.Receipt, err error) {
				if err == nil {
					acknowledged.Add(1)
				}
			})
		}
	})
	return func() {
		cancel()
		publishing.Wait()
		_ = p.Close(ctx) // the server has gone; the unanswered events stay unanswered
		_ = b.Close()
	}
}

func TestChangedConfigApplies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\n", dir, "tidemill.yaml")
	data := filepath.Join(dir, "data")
	s := startUp(t, data, "-f", file)
	ready := func(status int, wanted ...string) func() bool {
		return func() bool {
			code, body := s.get(t, "/readyz")
			return code == status && !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(body, w) })
		}
	}
	eventually(t, ready(200, `"8 as the config wants them"`))

	leave(t, "version: 1\nstreams: {messages: {types: [message]}, events: {retention: 3d}}\n", file)
	eventually(t, ready(200, `"9 as the config wants them"`))
	mention(t, "publish", ok(t, "publish", "message", "--data", data), "to messages, partition")
	eventually(t, func() bool { return strings.Contains(ok(t, "streams", "--data", data), "     3d") }) // the gateway uses a survey for a second

	leave(t, "version: 1\nstreams: {massages: {tipes: [message]}}\n", file)
	eventually(t, ready(200, `"degraded"`, "stays in force", file+":2: streams.massages.tipes", `"9 as the config wants them"`))
	mention(t, "the log", s.stderr.String(), "config: the change is invalid", "streams.massages.tipes")

	leave(t, "version: 1\nname: other\n", file)
	eventually(t, ready(200, "restart to use it"))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, ready(200, "does not exist"))

	leave(t, "version: 1\nstreams: {messages: {types: [message]}, events: {retention: 3d}}\n", file)
	eventually(t, func() bool { _, body := s.get(t, "/readyz"); return !strings.Contains(body, "degraded") })
}

func TestUpRefusesAnInvalidConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, "version: 1\nstreams: {a: {partitons: 3}}\n", dir, "c.yaml")
	o := call(t, "", upArgs(filepath.Join(dir, "data"), []string{"-f", file})...)
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, file+":2: streams.a.partitons: ", "partitions")
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("it made its data folder all the same")
	}
}

// A refused start creates nothing.
func TestARefusedStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	bad := leave(t, "version: 1\ntokens: 7\n", dir, "access.yaml")
	cert, _ := selfSigned(t, dir, "")
	_, key := selfSigned(t, t.TempDir(), "")
	kafka := servers(t, embedded.Options{Dir: t.TempDir()})
	for flags, says := range map[string]string{
		"--listen 0.0.0.0:0":                        "make a token with `tidemill token new` and name its file with --access",
		"--access " + bad:                           bad + ":2: tokens",
		"--access " + dir + "/none":                 "no such file",
		"--tls-cert " + cert + " --tls-key " + key:  "load the gateway's certificate " + cert,
		"--tls-cert " + cert + " --tls-key " + data: "no such file",
	} {
		o := call(t, "", upArgs(data, strings.Fields(flags))...)
		if o.code != exitFailed || o.out != "" {
			t.Errorf("up %s: exit %d, %s", flags, o.code, o.out)
		}
		mention(t, "up "+flags, o.err, says)
		if _, err := os.Stat(data); err == nil {
			t.Errorf("up %s made its data folder", flags)
		}
		o = call(t, "", append(append([]string{"serve", "gateway", "--listen", "127.0.0.1:0"}, kafka...), strings.Fields(flags)...)...)
		if o.code != exitFailed || o.out != "" {
			t.Errorf("serve gateway %s: exit %d, %s", flags, o.code, o.out)
		}
		mention(t, "serve gateway "+flags, o.err, says)
	}
	mention(t, "the streams", call(t, "", append([]string{"streams"}, kafka...)...).err, "There are no streams yet")
}

// With servers of its own up leaves its addresses too, and keeps a second one from its data folder. A
// start logs one line about all streams.
func TestUpOnOtherServers(t *testing.T) {
	t.Parallel()
	dir, there := t.TempDir(), servers(t, embedded.Options{})
	conf := filepath.Join(dir, "conf.yaml") // the parked streams of its trigger are completed once they exist
	if err := os.WriteFile(conf, []byte("version: 1\ntriggers:\n  tell: {when: {type: hello}, to: {url: \"http://127.0.0.1:9/\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startUp(t, dir, append(there, "--config", conf)...)
	mention(t, "streams", ok(t, "streams", "--data", dir), "events")
	mention(t, "runs", call(t, "", "runs", "--data", dir).err, "There are no runs yet")
	o := call(t, "", upArgs(dir, there)...)
	if o.code != exitFailed || !strings.Contains(o.err, fmt.Sprintf("the data folder %s is in use by process %d", dir, os.Getpid())) {
		t.Errorf("the second: %+v", o)
	}
	ok(t, "triggers", "pause", "tell", "--data", dir)
	mention(t, "the log", s.stderr.String(), "gateway: command", "key=tell by=anonymous")
	if log := s.stderr.String(); strings.Count(log, "config: stream") != 1 || strings.Contains(log, "altered") || !strings.Contains(log, "config: streams created") {
		t.Errorf("it logs\n%s", log)
	}
}

func TestUpBesideAnotherKafka(t *testing.T) {
	t.Parallel()
	first := startUp(t, t.TempDir())
	o := call(t, "", "up", "--kafka", first.Kafka, "--data", t.TempDir())
	if o.code != exitUsage {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, "--kafka and --redis")
}

func TestUpPromisesNoSecurityThatIsNotThere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	o := call(t, "", upArgs(dir, []string{"--kafka-sasl", "SCRAM-SHA-512", "--kafka-user", "u"})...)
	if o.code != exitUsage {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "the error", o.err, "the embedded servers have no TLS")
	if _, err := os.Stat(dir); err == nil {
		t.Error("it made its data folder all the same")
	}
}

func TestHealthz(t *testing.T) {
	t.Parallel()
	s := startUp(t, t.TempDir())
	if code, body := s.get(t, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
}
