package infer

import (
	"errors"
	"testing"

	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/sandbox/sandboxtest"
)

// TestBeTheChild is ONNX Runtime's process in tests that end it.
func TestBeTheChild(t *testing.T) { sandboxtest.Be(t) }

// The attack: a model took the process away while another one made its trial request, and that other
// one was refused for good.
func TestAProcessThatIsLostDuringATrialIsNotTheModelsFault(t *testing.T) {
	t.Parallel()
	child := sandboxtest.New(t)
	c, err := Open(Options{Fetch: fetchByArtifact(map[string][]byte{"a": simple("Relu")}), Child: child.Command()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := &Ref{Model: "intent/bot", Version: 1, Artifact: "a", Engine: EngineONNXRuntime}
	child.Limit(sandboxtest.Starts, 1)
	child.Limit(sandboxtest.Runs, 0)
	if _, err := c.Load(t.Context(), r); !errors.Is(err, ErrAway) || unfit(err) {
		t.Errorf("the trial at a load: %v", err)
	}
	child.Limit(sandboxtest.Starts, 1)
	child.Limit(sandboxtest.Runs, 1)
	m := loadWhenBack(t, c, r)
	defer m.Release()
	if n, err := m.Try(); !errors.Is(err, ErrAway) || unfit(err) {
		t.Errorf("the trial of generated rows: %d answers, %v", n, err)
	}
	child.Limit(sandboxtest.Starts, -1)
	child.Limit(sandboxtest.Runs, -1)
	for { // the pool waits a moment before it starts a child again
		n, err := m.Try()
		if err == nil && n == trialRows {
			break
		} else if !errors.Is(err, ErrAway) {
			t.Fatalf("%d answers, %v", n, err)
		}
	}
}

// loadWhenBack loads a model, and tries again while the process is away.
func loadWhenBack(t *testing.T, c *Cache, r *Ref) *Model {
	t.Helper()
	for {
		m, err := c.Load(t.Context(), r)
		if err == nil {
			return m
		}
		if !errors.Is(err, sandbox.ErrAway) {
			t.Fatal(err)
		}
	}
}
