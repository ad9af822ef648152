package platform

import (
	"errors"
	"testing"

	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/sandbox/sandboxtest"
)

// TestBeTheChild is ONNX Runtime's process in tests that end it.
func TestBeTheChild(t *testing.T) { sandboxtest.Be(t) }

// The attack: a model took ONNX Runtime's process away while a new version of another model was tried,
// and that version was refused for good.
func TestATrialIsRepeatedIfTheProcessIsAway(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTrials)
	if _, err := w.modelCache(w.ctx()); err != nil {
		t.Fatal(err)
	}
	child := sandboxtest.New(t)
	cache, err := infer.Open(infer.Options{Fetch: w.scores.fetchFile, Child: child.Command(), Logger: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.must(w.scores.cache.Close())
	w.scores.cache = cache
	ask := registry.ServingRequest{Model: "runtime/bot-1", Key: "bot-1", Artifact: w.putFiles(map[string][]byte{"model.onnx": twoLabels(true)})}
	for _, runs := range []int{0, 1} { // the process is lost by the trial of a load, and by the rows after it
		child.Limit(sandboxtest.Starts, 1)
		child.Limit(sandboxtest.Runs, runs)
		if got, err := w.tryModel(w.ctx(), ask); !errors.Is(err, infer.ErrAway) || got != nil && got.Error != "" {
			t.Errorf("the process is lost after %d runs: %+v, %v", runs, got, err)
		}
		child.Limit(sandboxtest.Starts, -1)
		child.Limit(sandboxtest.Runs, -1)
		for { // the pool waits a moment before it starts a child again
			got, err := w.tryModel(w.ctx(), ask)
			if err == nil && got.Error == "" && got.Rows == 8 {
				break
			} else if !errors.Is(err, infer.ErrAway) {
				t.Fatalf("the process is back: %+v, %v", got, err)
			}
		}
		child.Kill()
	}
}
