//go:build cluster

package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

const (
	stepsBefore = 14 // half a second each, and checkpoints are looked for every three seconds
	mayBeKilled = 3
)

// The command saves each of its steps, and says at its end from which it went on.
func TestARunGoesOnFromItsCheckpoint(t *testing.T) {
	w := cluster(t)
	w.say(t, "steps-asked", "steps-0", "")
	var r api.RunShown
	for attempt := 1; attempt <= mayBeKilled; attempt++ {
		r = w.run(t, fmt.Sprintf("attempt %d at step %d, or the end", attempt, stepsBefore), "steps", "steps-0", func(r api.RunShown) bool {
			return r.State.Ended() || resumed(r) || r.Progress != nil && r.Progress.Attempt == attempt && r.Progress.Step >= stepsBefore
		})
		if r.State.Ended() || resumed(r) {
			break
		}
		name := fmt.Sprintf("%s-%d", r.ID, attempt)
		pods := w.seen.livePods(labelled[*corev1.Pod](labelAttempt, name))
		if len(pods) != 1 {
			t.Fatalf("attempt %s has %d pods", name, len(pods))
		}
		must(t, w.server.kill(t.Context(), pods[0].Last))
	}
	r = w.succeeds(t, "steps", "steps-0")
	last := r.Attempts[len(r.Attempts)-1]
	if last.ResumedFrom == "" {
		t.Errorf("the last of %d attempts had no checkpoint: %s", len(r.Attempts), inWords(r))
	}
	if !strings.Contains(last.Image, "sha256:") {
		t.Errorf("the last attempt says that its image was %q, which is no digest", last.Image)
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

// resumed reports whether the newest attempt was given a checkpoint.
func resumed(r api.RunShown) bool {
	return len(r.Attempts) > 0 && r.Attempts[len(r.Attempts)-1].ResumedFrom != ""
}
