//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// sharedWorld is the cluster of all tests. TestMain starts it.
var sharedWorld *world

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run removes everything that it has started, even if the tests fail or are interrupted.
func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w, err := open(ctx)
	defer func() {
		if err := w.close(); err != nil {
			fmt.Fprintln(os.Stderr, "tear down:", err)
			code = max(code, 1)
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		w.dump(context.WithoutCancel(ctx), os.Stderr)
		return 1
	}
	sharedWorld = w
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	select {
	case code := <-ended:
		return code
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted")
		return 1
	}
}

// cluster returns the cluster for a test, and dumps its state if the test fails.
func cluster(t *testing.T) *world {
	t.Helper()
	select {
	case <-sharedWorld.sandbox.Ended():
		t.Fatal(errors.New("the sandbox has ended"))
	default:
	}
	t.Cleanup(func() {
		if t.Failed() {
			sharedWorld.dump(context.WithoutCancel(t.Context()), t.Output())
		}
	})
	return sharedWorld
}
