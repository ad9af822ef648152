package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
)

const childDir = "TIDEMILL_EMBEDDED_CHILD"

// TestMain lets the test binary be the child process that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(serveUntilClosed(dir))
	}
	os.Exit(m.Run())
}

// serveUntilClosed serves the folder until its input is closed, which also happens if the test
// dies.
func serveUntilClosed(dir string) int {
	s, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println(s.Kafka())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startChild starts a child and returns a function that kills it, and its Kafka address.
func startChild(t *testing.T, dir string) (kill func(), addr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		kill()
		t.Fatalf("child: %v %s", err, line)
	}
	return kill, strings.TrimSpace(line)
}

func start(t *testing.T, o Options) *Servers {
	t.Helper()
	s, err := Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitLimit bounds waits; it only ends hangs.
const waitLimit = 2 * time.Minute

// waitEffect waits for an effect of other goroutines.
func waitEffect(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(waitLimit)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func kafkaClient(t *testing.T, addr string) *kafka.Client {
	t.Helper()
	tr := &kafka.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(addr), Transport: tr, Timeout: waitLimit}
}

func createTopic(t *testing.T, c *kafka.Client, topic string, configs ...kafka.ConfigEntry) error {
	t.Helper()
	r, err := c.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: configs}}})
	must(t, err)
	return r.Errors[topic]
}

func produce(ctx context.Context, c *kafka.Client, topic, value string) (offset int64, err error) {
	r, err := c.Produce(ctx, &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(value))})})
	if err != nil {
		return 0, err
	}
	return r.BaseOffset, r.Error
}

// readTopic returns the values of a topic from its start, by offset.
func readTopic(t *testing.T, addr, topic string) map[int64]string {
	t.Helper()
	conn, err := kafka.DialLeader(t.Context(), "tcp", addr, topic, 0)
	must(t, err)
	defer conn.Close()
	first, last, err := conn.ReadOffsets()
	must(t, err)
	_, err = conn.Seek(first, kafka.SeekAbsolute)
	must(t, err)
	got := map[int64]string{}
	for next := first; next < last; {
		m, err := conn.ReadMessage(1 << 20)
		must(t, err)
		got[m.Offset], next = string(m.Value), m.Offset+1
	}
	return got
}

func TestServersAnswer(t *testing.T) {
	s := start(t, Options{})
	c := kafkaClient(t, s.Kafka())
	must(t, createTopic(t, c, "a"))
	if _, err := produce(t.Context(), c, "a", "x"); err != nil {
		t.Fatal(err)
	}
	if got := readTopic(t, s.Kafka(), "a"); len(got) != 1 || got[0] != "x" {
		t.Errorf("read %v", got)
	}
	r := redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer r.Close()
	must(t, r.Ping(t.Context()).Err())
}

func TestStartWithEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{}); err == nil {
		t.Error("started")
	}
}
