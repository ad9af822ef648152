//go:build real

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker/brokertest/realservers"
)

// The commands on a real Kafka and Redis: `up` creates the streams and reports the state of both
// servers. Each way to log in can publish and read.
func TestRealServersServeTheCommands(t *testing.T) {
	kafka, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Secure: true, Users: map[string]string{"ada": "correct-horse"}})
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	redis, err := realservers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	dir := t.TempDir()
	at := upOn(t, dir, kafka.Addr(), redis.Addr())
	ready(t, at, api.OK)

	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("correct-horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, pair := kafka.ClientFiles()
	tls := []string{"--kafka-tls", "--kafka-ca", ca}
	login := []string{"--kafka-user", "ada", "--kafka-password-file", password, "--kafka-sasl"}
	ways := map[string][]string{
		"plaintext":             {"--kafka", kafka.Addr()},
		"mutual TLS":            append([]string{"--kafka", kafka.MutualTLSAddr(), "--kafka-cert", pair, "--kafka-key", pair}, tls...),
		"PLAIN over TLS":        append(append([]string{"--kafka", kafka.SASLTLSAddr()}, tls...), append(login, "PLAIN")...),
		"SCRAM-SHA-256":         append([]string{"--kafka", kafka.SASLAddr()}, append(login, "SCRAM-SHA-256")...),
		"SCRAM-SHA-512 and TLS": append(append([]string{"--kafka", kafka.SASLTLSAddr()}, tls...), append(login, "SCRAM-SHA-512")...),
	}
	for way, flags := range ways {
		id := strings.ReplaceAll(way, " ", "-")
		ok(t, append([]string{"publish", "bot-created", "--subject", "bot-42", "--id", id, "-d", "{}", "--data", dir}, flags...)...)
		mention(t, "tail by "+way, ok(t, append([]string{"tail", "events", "--from", "beginning", "--no-follow", "--data", dir}, flags...)...), id)
		mention(t, "streams by "+way, ok(t, append([]string{"streams", "--data", dir}, flags...)...), "events", "dead-letters")
	}

	wrong := filepath.Join(dir, "wrong")
	if err := os.WriteFile(wrong, []byte("battery staple"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := call(t, "", "streams", "--data", dir, "--kafka", kafka.SASLAddr(), "--kafka-sasl", "SCRAM-SHA-256", "--kafka-user", "ada", "--kafka-password-file", wrong)
	if refused.code == 0 || strings.Contains(refused.err, "battery") {
		t.Errorf("with a wrong password: exit %d, %s", refused.code, refused.err)
	}
	mention(t, "the refusal", refused.err, "ada", "SCRAM-SHA-256")

	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	ready(t, at, api.Degraded)
	if err := redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, at, api.OK)
}

// Two replicas of the gateway on one real Kafka and Redis: each recognises the events of the other,
// both give the same answers, and callers do not notice a restart.
func TestRealReplicasOfTheGateway(t *testing.T) {
	kafka, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	redis, err := realservers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	servers := []string{"--kafka", kafka.Addr(), "--redis", redis.Addr()}
	flags := append(servers, "--listen", "127.0.0.1:0", "-f", leave(t, "version: 1\nstreams: {messages: {types: [message]}}\n", t.TempDir(), "c.yaml"))
	a, b := startGateway(t, flags...), startGateway(t, flags...)

	mention(t, "publish to a", ok(t, "publish", "message", "--id", "1", "-s", "bot-42", "--url", a.url), "published message 1 to messages")
	eventually(t, func() bool {
		return strings.Contains(ok(t, "publish", "message", "--id", "1", "-s", "bot-42", "--url", b.url), "exists already")
	})
	for _, r := range []*replica{a, b} {
		mention(t, "tail", ok(t, "tail", "messages", "--from", "beginning", "--no-follow", "--url", r.url), "message", "bot-42")
		mention(t, "streams", ok(t, "streams", "--url", r.url), "messages", "dead-letters")
	}
	restartUnderCallers(t, servers)

	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	mention(t, "publish without Redis", ok(t, "publish", "message", "--id", "2", "--url", a.url), "published message 2 to messages")
}

// upOn runs `up` on external servers and returns the address of its gateway.
func upOn(t *testing.T, dir, kafka, redis string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var out syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"up", "--data", dir, "--kafka", kafka, "--redis", redis, "--listen", "127.0.0.1:0"}, strings.NewReader(""), &out, io.Discard)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("up: %v", err)
		}
	})
	var at []string
	eventually(t, func() bool {
		select {
		case err := <-ended:
			t.Fatalf("up: %v", err)
		default:
		}
		at = httpAt.FindStringSubmatch(out.String())
		return at != nil
	})
	return strings.TrimPrefix(at[1], "http://")
}

// ready waits for a status of readyz, with code 200: without Redis the gateway is degraded, but
// serves. A server that is slow on a busy machine counts as away.
func ready(t *testing.T, at string, want api.Status) {
	t.Helper()
	eventually(t, func() bool {
		got, code := readiness(t, at)
		if got == want && code != http.StatusOK {
			t.Errorf("readyz says %s with %d", got, code)
		}
		return got == want
	})
}

func readiness(t *testing.T, at string) (api.Status, int) {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://%s/readyz", at))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var r api.Readiness
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r.Status, res.StatusCode
}
