//go:build real

package realservers

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	plainsasl "github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

func TestRealKafkaKeepsWhatKcatWrites(t *testing.T) {
	ctx := limit(t)
	k := startKafka(t, KafkaOptions{})
	create(t, k.Addr(), 1)
	kcat(t, "one\ntwo\n", "-P", "-b", k.Addr(), "-t", "a", "-X", "acks=all")
	for _, end := range []func() error{k.Stop, k.Kill} {
		must(t, end())
		began := time.Now()
		must(t, k.Restart(ctx))
		t.Logf("restarted within %v", time.Since(began))
		if got := kcat(t, "", "-C", "-b", k.Addr(), "-t", "a", "-o", "beginning", "-e", "-q"); got != "one\ntwo\n" {
			t.Errorf("read back %q", got)
		}
	}
}

func TestRealThreeBrokersOutliveOne(t *testing.T) {
	ctx := limit(t)
	k := startKafka(t, KafkaOptions{Brokers: 3})
	create(t, k.Addr(), 3)
	kcat(t, "one\n", "-P", "-b", k.Addr(), "-t", "a", "-X", "acks=all")
	must(t, k.Nodes()[0].Kill())
	kcat(t, "two\n", "-P", "-b", k.Addr(), "-t", "a", "-X", "acks=all")
	if got := kcat(t, "", "-C", "-b", k.Addr(), "-t", "a", "-o", "beginning", "-e", "-q"); got != "one\ntwo\n" {
		t.Errorf("read back %q", got)
	}
	must(t, k.Nodes()[0].Start())
	must(t, k.Ready(ctx))
}

func TestRealSecureListeners(t *testing.T) {
	k := startKafka(t, KafkaOptions{Secure: true, Users: map[string]string{"ada": "secret"}})
	tr := &kafka.Transport{TLS: k.ClientTLS()}
	defer tr.CloseIdleConnections()
	_, err := (&kafka.Client{Addr: kafka.TCP(k.MutualTLSAddr()), Transport: tr}).
		Metadata(limit(t), &kafka.MetadataRequest{})
	must(t, err)
	ca := "ssl.ca.location=" + filepath.Join(k.dir, caPEM)
	if out, err := kcatTry(t, "", "-L", "-m", "1", "-b", k.MutualTLSAddr(), "-X", "security.protocol=ssl", "-X", ca); err == nil {
		t.Errorf("mutual TLS let in a client without a certificate: %s", out)
	}
	for _, password := range []string{"secret", "wrong"} {
		for name, mechanism := range mechanisms(t, password) {
			for addr, secured := range map[string]*tls.Config{k.SASLAddr(): nil, k.SASLTLSAddr(): k.ClientTLS()} {
				tr := &kafka.Transport{TLS: secured, SASL: mechanism}
				_, err := (&kafka.Client{Addr: kafka.TCP(addr), Transport: tr}).Metadata(limit(t), &kafka.MetadataRequest{})
				tr.CloseIdleConnections()
				if (err == nil) != (password == "secret") {
					t.Errorf("%s over TLS %v with the %s password: %v", name, secured != nil, password, err)
				}
			}
		}
	}
}

// mechanisms come from kafka-go: Debian 12's librdkafka reuses a nonce in SCRAM, which
// Kafka 4 refuses (fixed in librdkafka 2.6.1).
func mechanisms(t *testing.T, password string) map[string]sasl.Mechanism {
	t.Helper()
	short, err := scram.Mechanism(scram.SHA256, "ada", password)
	must(t, err)
	long, err := scram.Mechanism(scram.SHA512, "ada", password)
	must(t, err)
	return map[string]sasl.Mechanism{"PLAIN": plainsasl.Mechanism{Username: "ada", Password: password},
		"SCRAM-SHA-256": short, "SCRAM-SHA-512": long}
}

func TestRealRedisAnswers(t *testing.T) {
	ctx := limit(t)
	began := time.Now()
	r, err := StartRedis(ctx)
	must(t, err)
	defer r.Close()
	t.Logf("started within %v", time.Since(began))
	c := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer c.Close()
	must(t, c.Ping(ctx).Err())
	must(t, r.Kill())
	must(t, r.Restart(ctx))
	must(t, c.Ping(ctx).Err())
}

// Pods cannot reach the loopback of the machine on which their sandbox runs.
func TestRealServersOnAnotherAddress(t *testing.T) {
	ctx := limit(t)
	const host = "127.0.0.2"
	r, err := StartRedisOn(ctx, host)
	must(t, err)
	defer r.Close()
	s, err := StartS3On(ctx, host)
	must(t, err)
	defer s.Close()
	k := startKafka(t, KafkaOptions{Host: host, Secure: true, Users: map[string]string{"ada": "secret"}})
	create(t, k.Addr(), 1)
	tr := &kafka.Transport{TLS: k.ClientTLS()}
	defer tr.CloseIdleConnections()
	_, err = (&kafka.Client{Addr: kafka.TCP(k.MutualTLSAddr()), Transport: tr}).Metadata(ctx, &kafka.MetadataRequest{})
	must(t, err)
	for _, addr := range []string{r.Addr(), s.addr, k.Addr()} {
		if at, _, _ := strings.Cut(addr, ":"); at != host {
			t.Errorf("something listens on %s", addr)
		}
	}
}

func startKafka(t *testing.T, o KafkaOptions) *Kafka {
	t.Helper()
	began := time.Now()
	k, err := StartKafka(limit(t), o)
	must(t, err)
	t.Cleanup(func() { must(t, k.Close()) })
	t.Logf("started within %v", time.Since(began))
	return k
}

func create(t *testing.T, addr string, replicas int) {
	t.Helper()
	tr := &kafka.Transport{}
	defer tr.CloseIdleConnections()
	r, err := (&kafka.Client{Addr: kafka.TCP(strings.Split(addr, ",")...), Transport: tr}).CreateTopics(limit(t),
		&kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "a", NumPartitions: 1, ReplicationFactor: replicas}}})
	must(t, err)
	must(t, r.Errors["a"])
}

func kcat(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, err := kcatTry(t, in, args...)
	if err != nil {
		t.Fatalf("kcat %v: %v: %s", args, err, out)
	}
	return out
}

func kcatTry(t *testing.T, in string, args ...string) (string, error) {
	// By default kcat waits 5 s for a broker's answer.
	cmd := exec.CommandContext(limit(t), "kcat", append([]string{"-m", "120"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), err
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
