package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/platform"
)

// A local user without the data folder reads and writes no stream of a tidemill up. This was an
// attack: a forged fact made Tidemill run a command as the user of tidemill up.
func TestOthersCannotReachTheStreamsOfUp(t *testing.T) {
	t.Parallel()
	s := startUp(t, t.TempDir())
	names, err := tidemill.NewNames(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := broker.Open(t.Context(), broker.Options{Addr: s.Kafka, Names: names}); err == nil {
		b.Close()
		t.Fatal("Kafka let a client in that knows no password")
	}
	elsewhere := t.TempDir()
	for _, args := range [][]string{{"publish", "x", "-s", "k"}, {"tail", "facts", "--no-follow"}, {"streams"}} {
		o := call(t, "", append(args, "--kafka", s.Kafka, "--data", elsewhere)...)
		if o.code != exitFailed || !strings.Contains(o.err, "tidemill kafka-config prints those of a tidemill up") {
			t.Errorf("%v from another folder: exit %d, %s", args, o.code, o.err)
		}
		ok(t, append(args, "--kafka", s.Kafka, "--data", s.dir)...)
		ok(t, append(args, "--kafka", strings.Replace(s.Kafka, "127.0.0.1", "localhost", 1), "--data", s.dir)...)
	}
}

// Each form of the settings connects.
func TestKafkaConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's data")
	s := startUp(t, dir)
	var c struct{ Kafka, Redis, SecurityProtocol string }
	if err := json.Unmarshal([]byte(ok(t, "kafka-config", "--data", dir, "-o", "json")), &c); err != nil {
		t.Fatal(err)
	}
	if c.Kafka != s.Kafka || c.Redis != s.Redis || c.SecurityProtocol != "SASL_PLAINTEXT" {
		t.Errorf("%+v", c)
	}
	all := ok(t, "kafka-config", "--data", dir)
	for _, form := range []string{"kcat", "java", "env"} {
		mention(t, "the output", all, ok(t, "kafka-config", "--data", dir, "--for", form), "(--for "+form+")")
	}

	kcat := map[string]string{}
	for line := range strings.Lines(ok(t, "kafka-config", "--data", dir, "--for", "kcat")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		kcat[name] = value
	}
	mustList(t, kcat["bootstrap.servers"], kcat["sasl.username"], kcat["sasl.password"])
	java := ok(t, "kafka-config", "--data", dir, "--for", "java")
	login := regexp.MustCompile(`ScramLoginModule required username="(.*)" password="(.*)";\n`).FindStringSubmatch(java)
	if login == nil {
		t.Fatal(java)
	}
	mustList(t, s.Kafka, login[1], login[2])

	for line := range strings.Lines(ok(t, "kafka-config", "--data", dir, "--for", "env")) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		t.Setenv(name, shellWords(t, strings.ReplaceAll(value, `'\''`, `'"'"'`))[0])
	}
	mention(t, "streams", ok(t, "streams", "--data", t.TempDir()), "events")
	p, err := platform.Open(t.Context(), platform.Options{Addresses: config.Addresses{Kafka: os.Getenv("TIDEMILL_KAFKA"), Redis: os.Getenv("TIDEMILL_REDIS")},
		Security:      broker.Security{Mechanism: os.Getenv("TIDEMILL_KAFKA_SASL"), User: os.Getenv("TIDEMILL_KAFKA_USER"), PasswordFile: os.Getenv("TIDEMILL_KAFKA_PASSWORD_FILE")},
		RedisSecurity: platform.RedisSecurity{PasswordFile: os.Getenv("TIDEMILL_REDIS_PASSWORD_FILE")}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.WithoutCancel(t.Context()))
	if err := p.Redis().Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestKafkaConfigWithoutAnEmbeddedKafka(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := call(t, "", "kafka-config", "--data", dir)
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "without an up", o.err, "no tidemill up runs on the data folder "+dir)
	if err := (platform.Running{PID: 1, Kafka: "kafka.example:9092"}).Write(dir); err != nil {
		t.Fatal(err)
	}
	mention(t, "with another Kafka", call(t, "", "kafka-config", "--data", dir).err, "uses the Kafka at kafka.example:9092, which is not embedded")
	for args, says := range map[string]string{"--for perl": "give kcat, java or env", "--for env -o json": "leave one out", "x": "one argument too many"} {
		if o := call(t, "", append([]string{"kafka-config"}, strings.Fields(args)...)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %s", args, o.code, o.err)
		}
	}
}

// mustList lists the topics as a client of another library does.
func mustList(t *testing.T, addr, user, password string) {
	t.Helper()
	m, err := scram.Mechanism(scram.SHA256, user, password)
	if err != nil {
		t.Fatal(err)
	}
	tr := &kafka.Transport{SASL: m}
	defer tr.CloseIdleConnections()
	meta, err := (&kafka.Client{Addr: kafka.TCP(addr), Transport: tr, Timeout: patience}).Metadata(t.Context(), &kafka.MetadataRequest{})
	if err != nil || len(meta.Topics) == 0 {
		t.Errorf("%v, %v", meta, err)
	}
}
