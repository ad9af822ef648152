package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// The environment variables of a child.
const (
	envName = "TIDEMILL_CHAOS_CHILD" // role-index
	envLife = "TIDEMILL_CHAOS_LIFE"  // number of earlier starts
	envDir  = "TIDEMILL_CHAOS_DIR"
	envAddr = "TIDEMILL_CHAOS_ADDR"
	envRand = "TIDEMILL_CHAOS_RAND"
)

const (
	streamIn   = "in"
	streamOut  = "out"
	groupRead  = "readers"
	groupCopy  = "copiers"
	partitions = 6
)

// TestMain lets the test binary start itself as its children.
func TestMain(m *testing.M) {
	if name := os.Getenv(envName); name != "" {
		os.Exit(runChild(name))
	}
	os.Exit(m.Run())
}

// child is a process that may be killed at any moment.
type child struct {
	name  string
	index int
	life  int
	dir   string
	addr  string
	seed  uint64
	j     *journal
	log   *slog.Logger
}

func runChild(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // ends this process when the parent has died
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(4)
	}()
	c, err := newChild(name)
	if err == nil {
		err = c.roles()[strings.Split(name, "-")[0]](ctx)
	}
	if errors.Is(err, errEarly) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	c.j.note("end")
	return 0
}

func newChild(name string) (*child, error) {
	c := &child{name: name, dir: os.Getenv(envDir), addr: os.Getenv(envAddr),
		log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	_, index, _ := strings.Cut(name, "-")
	var err error
	if c.index, err = strconv.Atoi(index); err != nil {
		return nil, err
	}
	if c.life, err = strconv.Atoi(os.Getenv(envLife)); err != nil {
		return nil, err
	}
	if c.seed, err = strconv.ParseUint(os.Getenv(envRand), 10, 64); err != nil {
		return nil, err
	}
	c.j, err = openJournal(c.dir, fmt.Sprintf("%s.%d", name, c.life))
	return c, err
}

func (c *child) roles() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"broker": c.serve, "publisher": c.publish, "consumer": c.consume, "processor": c.process,
		"redis": c.redis, "gateway": c.gateway, "sender": c.sendHTTP, "controller": c.controller, "dispatcher": c.dispatch,
		"scorer": c.score, "hanger": c.hang,
	}
}

// errEarly means that a child was told to end before it had begun.
var errEarly = errors.New("ended before the broker answered")

// open opens the broker, and retries while the broker is down.
func (c *child) open(ctx context.Context) (*broker.Broker, error) {
	return openBroker(ctx, c.addr, c.log)
}

func openBroker(ctx context.Context, addr string, log *slog.Logger) (*broker.Broker, error) {
	names, err := tidemill.NewNames("chaos")
	if err != nil {
		return nil, err
	}
	for {
		b, err := broker.Open(ctx, broker.Options{Addr: addr, Names: names, Logger: log})
		if err == nil {
			return b, nil
		}
		if wait(ctx, 50*time.Millisecond) != nil {
			return nil, fmt.Errorf("%w: %w", errEarly, err)
		}
	}
}

// consumer opens a consumer. It retries, because the broker may be down again.
func (c *child) consumer(ctx context.Context, b *broker.Broker, o broker.ConsumerOptions) (*broker.Consumer, error) {
	for {
		from, err := b.Consumer(ctx, o)
		if err == nil {
			return from, nil
		}
		if wait(ctx, 50*time.Millisecond) != nil {
			return nil, fmt.Errorf("%w: %w", errEarly, err)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
