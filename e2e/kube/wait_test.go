//go:build cluster

package kube

import (
	"context"
	"testing"
	"time"
)

// askEvery is the interval of polling for conditions without a watch.
const askEvery = 50 * time.Millisecond

// eventually calls ask until it returns no error.
func eventually(t *testing.T, what string, ask func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := retryUntil(ctx, ask); err != nil {
		t.Fatalf("waited %v for %s: %v", patience, what, err)
	}
}

// retryUntil calls ask until it returns no error. When time is up, it returns the last error.
func retryUntil(ctx context.Context, ask func(ctx context.Context) error) error {
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// await waits for a condition, and checks it at each change. word describes what is still missing.
// As long as word changes, await goes on.
func await(t *testing.T, what string, next func() <-chan struct{}, met func() (word string, ok bool)) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for last := ""; ; {
		changed := next()
		word, ok := met()
		if ok {
			return
		}
		if word != last {
			last = word
			late.Reset(patience)
		}
		select {
		case <-changed:
		case <-late.C:
			t.Fatalf("waited %v for %s: %s", patience, what, word)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cleanupContext returns a context for clean-ups after a test's end.
func cleanupContext(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
