//go:build slow

package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/runs/local"
)

// The environment variables of the stopped process.
const (
	envDir   = "TIDEMILL_CRASH_DIR"
	envKafka = "TIDEMILL_CRASH_KAFKA"
	envRedis = "TIDEMILL_CRASH_REDIS"

	envStoreAt = "TIDEMILL_CRASH_STORE_AT" // number of the store's note at which to stop
	envStoreDo = "TIDEMILL_CRASH_STORE_DO" // two booleans: kill and flush
	storeNotes = "writes"                  // file with all of the store's notes
	armedFile  = "armed"                   // exists once the writes are counted
	sprungFile = "sprung"                  // exists once the point was reached
)

func storeOf(dir string) string { return "file://" + filepath.Join(dir, "store") }

// TestMain lets the test binary be the stopped process, or its guard.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == local.GuardArgument:
		os.Exit(exit(local.Guard(context.Background())))
	case os.Getenv(envDir) != "":
		os.Exit(exit(laptop()))
	}
	os.Exit(m.Run())
}

func exit(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// laptop runs everything except the servers, wired like `tidemill up`. It prints its URL and serves
// until its standard input ends.
func laptop() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir := os.Getenv(envDir)
	conf, err := config.Load(filepath.Join(dir, "tidemill.yaml"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{}, Logger: log,
		Addresses: config.Addresses{Kafka: os.Getenv(envKafka), Redis: os.Getenv(envRedis), Store: storeOf(dir)},
		Runs: &platform.RunsOptions{Recipes: dir, Data: filepath.Join(dir, "work"), Secrets: filepath.Join(dir, "secrets"), Launch: true, Alone: true,
			Watched: (&watch{dir: dir}).told}})
	if err != nil {
		return err
	}
	go func() { // the parent died, or closed the input to end this process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return errors.Join(serve(ctx, p), p.Close(context.WithoutCancel(ctx)))
}

func serve(ctx context.Context, p *platform.Platform) error {
	d, err := p.Dispatcher(ctx)
	if err == nil {
		err = d.Ready(ctx)
	}
	if err == nil {
		_, err = p.Controller(ctx)
	}
	if err != nil {
		return err
	}
	g, err := p.Gateway(ctx, platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.WithoutCancel(ctx)) }()
	fmt.Println(g.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// watch counts the store's notes of its writes, and ends the process at one of them.
type watch struct {
	dir string
	mu  sync.Mutex
	n   int
}

func (w *watch) told(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := os.Stat(filepath.Join(w.dir, armedFile)); err != nil {
		return
	}
	w.n++
	if f, err := os.OpenFile(filepath.Join(w.dir, storeNotes), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		fmt.Fprintln(f, key)
		f.Close()
	}
	if os.Getenv(envStoreAt) != fmt.Sprint(w.n) {
		return
	}
	if os.WriteFile(filepath.Join(w.dir, sprungFile), nil, 0o644) != nil {
		return
	}
	kill, flush := false, false
	fmt.Sscan(os.Getenv(envStoreDo), &kill, &flush)
	if flush {
		c := redis.NewClient(&redis.Options{Addr: os.Getenv(envRedis)})
		c.FlushAll(context.Background())
		c.Close()
	}
	if kill {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}
