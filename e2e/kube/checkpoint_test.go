//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/api"
)

const heldAt = 10 // step at which the first attempt waits to be killed

// The command saves each of its steps. At its end, it reports the step from which it resumed.
func TestARunGoesOnFromItsCheckpoint(t *testing.T) {
	w := cluster(t)
	w.mustPublish(t, "steps-asked", "steps-0", "")
	// Only a controller sees the image's digest, and only during a live run.
	r := w.run(t, fmt.Sprintf("step %d, and the digest of its image", heldAt), "steps", "steps-0", func(r api.RunShown) bool {
		return r.Progress != nil && r.Progress.Step == heldAt && strings.Contains(r.Attempts[0].Image, "sha256:")
	})
	w.waitForCheckpoint(t, r.ID)
	name := fmt.Sprintf("%s-%d", r.ID, r.Progress.Attempt)
	pods := w.seen.livePods(hasLabel[*corev1.Pod](labelAttempt, name))
	if len(pods) != 1 {
		t.Fatalf("attempt %s has %d pods", name, len(pods))
	}
	must(t, w.server.kill(t.Context(), pods[0].Last))
	r = w.succeeds(t, "steps", "steps-0")
	last := r.Attempts[len(r.Attempts)-1]
	if last.ResumedFrom == "" {
		t.Errorf("the last of %d attempts had no checkpoint: %s", len(r.Attempts), inWords(r))
	}
	for _, a := range r.Attempts[:len(r.Attempts)-1] {
		if a.Outcome != tidemill.OutcomeLost && a.Outcome != tidemill.OutcomeLeft || a.Reason == "" {
			t.Errorf("attempt %d, whose pod was killed, ended as %q: %s", a.Number, a.Outcome, a.Reason)
		}
	}
	if r.Result == nil || r.Result.Metrics["resumed"] < 1 {
		t.Errorf("the command does not say from which step it went on: %+v", r.Result)
	}
	w.noLetters(t, []string{"steps-0"})
}

// waitForCheckpoint waits until the store has a checkpoint of a run.
func (w *world) waitForCheckpoint(t *testing.T, run string) {
	t.Helper()
	eventually(t, "a checkpoint of "+run, func(context.Context) error {
		all, err := filepath.Glob(filepath.Join(w.s3.Folder(bucket), "*", run, "checkpoints", "*"))
		if err == nil && len(all) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}
