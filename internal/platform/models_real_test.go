//go:build real

package platform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/scoring/infer/ort"
)

// A scorer goes on by itself when ONNX Runtime is installed: the events that waited are scored, and
// the report about the champion is withdrawn. A model that ONNX Runtime cannot answer is refused
// by its trial.
func TestRealARuntimeIsInstalled(t *testing.T) {
	library := os.Getenv(ort.Variable)
	if library == "" {
		t.Fatalf("%s is not set: run make test-real, or export %s=$(.ci/onnxruntime-install)", ort.Variable, ort.Variable)
	}
	later := filepath.Join(t.TempDir(), "later.so")
	t.Setenv(ort.Variable, later)
	w := newScoringWorld(t, scorersOfTests+"engine: onnxruntime\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.must(w.Scorers(w.ctx(), ""))
	w.publishEvent("messages", "1", "bot-1")
	w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelUnloadable })
	w.must(os.Symlink(library, later))
	w.waitForEvents("scored", 1, isScored)
	w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelLoaded })

	ask := registry.ServingRequest{Model: "intent/bot-2", Key: "bot-2", Artifact: w.putFiles(map[string][]byte{"model.onnx": zipMapped(false)})}
	if got, err := w.tryModel(w.ctx(), ask); err != nil || !strings.Contains(got.Error, "zipmap=False") {
		t.Errorf("a ZipMap as its output: %+v, %v", got, err)
	}
}
