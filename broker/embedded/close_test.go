package embedded

import (
	"bytes"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// After Close returns no goroutine of the servers runs, even with clients still connected.
func TestCloseLeavesNothingRunning(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		s := start(t, Options{Dir: dir, Brokers: 2})
		must(t, createTopic(t, kafkaClient(t, s.Kafka()), "a"))
		idle, err := net.Dial("tcp", s.Kafka())
		must(t, err)
		defer idle.Close()
		r := redis.NewClient(&redis.Options{Addr: s.Redis()})
		defer r.Close()
		must(t, r.Ping(t.Context()).Err())
		must(t, s.Close())
		must(t, s.Close()) // a second Close does nothing
		waitEffect(t, "all goroutines are gone", func() bool { return len(serverStacks()) == 0 })
	}
}

// serverStacks returns the stacks of the servers' goroutines. Close only tells kfake's main
// loop to end and does not wait for its last step.
func serverStacks() (stacks []string) {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "kfake.(") || strings.Contains(g, "miniredis") || strings.Contains(g, "embedded.(*") {
			stacks = append(stacks, g)
		}
	}
	return stacks
}

func TestLogIsBridged(t *testing.T) {
	var mu sync.Mutex
	var b bytes.Buffer
	w := writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	})
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, Options{Logger: log})
	conn, err := net.Dial("tcp", s.Kafka())
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("\x00\x00\x00\x0a\x00\x00\x00\x03\x00\x00\x00\x01\xff\xff")) // head of a produce request
	must(t, err)
	waitEffect(t, "a line is logged", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(b.String(), "level=DEBUG") && strings.Contains(b.String(), "server=kafka")
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestAddressesOutliveTheServers(t *testing.T) {
	s := start(t, Options{})
	kafka, redis := s.Kafka(), s.Redis()
	must(t, s.Close())
	if s.Kafka() != kafka || s.Redis() != redis {
		t.Errorf("%s and %s became %s and %s", kafka, redis, s.Kafka(), s.Redis())
	}
}
