package dedupe_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev/broker/dedupe"
)

// testRedis connects to a Redis in memory, in virtual time, and can be cut.
type testRedis struct {
	redis *miniredis.Miniredis

	mu      sync.Mutex
	refuses bool // refuses connections
	hangs   bool // accepts connections and never answers
	conns   []net.Conn
}

func newWire(t *testing.T) *testRedis {
	w := &testRedis{redis: miniredis.NewMiniRedis()}
	w.redis.ClockTTL(true)
	t.Cleanup(w.redis.Close)
	return w
}

func (w *testRedis) client(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Dialer: w.dial, Addr: "127.0.0.1:0",
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func (w *testRedis) dial(context.Context, string, string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuses {
		return nil, errors.New("connection refused")
	}
	server, err := w.redis.Dial()
	if err != nil {
		return nil, err
	}
	c := &eagerConn{Conn: server, wire: w, out: make(chan []byte, 1024), closed: make(chan struct{})}
	go c.pump()
	w.conns = append(w.conns, c)
	return c, nil
}

func (w *testRedis) hang(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs = yes
}

func (w *testRedis) refuse(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = yes
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (w *testRedis) silent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hangs
}

// eagerConn reads written bytes at once, as a kernel does. net.Pipe has no buffer, so both ends
// would otherwise wait to write.
type eagerConn struct {
	net.Conn
	wire   *testRedis
	out    chan []byte
	closed chan struct{}
	once   sync.Once
}

func (c *eagerConn) Write(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case c.out <- bytes.Clone(b):
		return len(b), nil
	}
}

func (c *eagerConn) pump() {
	for {
		select {
		case <-c.closed:
			return
		case b := <-c.out:
			if !c.wire.silent() {
				_, _ = c.Conn.Write(b)
			}
		}
	}
}

func (c *eagerConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// inVirtualTime runs a test in virtual time.
func inVirtualTime(t *testing.T, test func(t *testing.T, w *testRedis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWire(t)) })
}

// watchedMemory is a Memory with its log and its metrics.
type watchedMemory struct {
	*dedupe.Memory
	registry *prometheus.Registry
	log      *logLines
}

// logLines is a log that can be read while it is written.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func watch(t testing.TB, o dedupe.Options) watchedMemory {
	t.Helper()
	w := watchedMemory{registry: prometheus.NewRegistry(), log: new(logLines)}
	o.Registerer, o.Logger = w.registry, slog.New(slog.NewTextHandler(w.log, nil))
	w.Memory = openMemory(t, o)
	return w
}

// expectMetric compares a counter or gauge, summed over its labels, with a value.
func (w watchedMemory) expectMetric(t *testing.T, name string, want float64) {
	t.Helper()
	families, err := w.registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		got := 0.0
		for _, m := range f.GetMetric() {
			got += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
		return
	}
	t.Errorf("there is no metric %s", name)
}

// countLogged counts the log lines that contain the words.
func (w watchedMemory) countLogged(words string) int { return strings.Count(w.log.String(), words) }
