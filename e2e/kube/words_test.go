//go:build cluster

package kube

import (
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// A run's state explains the faults that no agent can report.
func TestWhatNoAgentCanSayIsSaid(t *testing.T) {
	w := cluster(t)
	for _, c := range []struct {
		recipe string
		ends   bool     // the run ends by itself
		says   []string // texts that the run must contain
	}{
		{"hungry", true, []string{"64", "memory"}},
		{"nowhere", false, []string{"nobody-has-this"}},
		{"giant", false, []string{"nvidia.com/gpu"}},
	} {
		t.Run(c.recipe, func(t *testing.T) {
			key := c.recipe + "-0"
			w.mustPublish(t, c.recipe+"-asked", key, "")
			r := w.run(t, "words", c.recipe, key, func(r api.RunShown) bool {
				return containsAll(r, c.says) && (!c.ends || r.State.Ended())
			})
			t.Logf("%s: %s", c.recipe, spoken(r))
			w.cancelRun(t, r)
			w.noLetters(t, []string{key})
		})
	}
}

// containsAll reports whether a run's state contains all of these texts.
func containsAll(r api.RunShown, words []string) bool {
	for _, word := range words {
		if !strings.Contains(spoken(r), word) {
			return false
		}
	}
	return true
}

// spoken returns a run's text about its past or present fault.
func spoken(r api.RunShown) string {
	if r.Reason != "" {
		return r.Reason
	}
	if len(r.Attempts) == 0 {
		return ""
	}
	last := r.Attempts[len(r.Attempts)-1]
	if last.Reason != "" {
		return last.Reason
	}
	return last.Pending
}

// cancelRun cancels a run that has not ended, and waits until its pods have gone.
func (w *world) cancelRun(t *testing.T, r api.RunShown) {
	t.Helper()
	if r.State.Ended() {
		return
	}
	_, err := w.door.CancelRuns(t.Context(), api.RunsSelected{Runs: []string{r.ID}, Reason: "the test has seen enough"})
	must(t, err)
	w.run(t, "its end", r.Recipe, r.Key, func(r api.RunShown) bool { return r.State == tidemill.RunCancelled })
}

// cancelAll cancels every run of a recipe that has not ended.
func (w *world) cancelAll(t *testing.T, recipe string) {
	t.Helper()
	states := []tidemill.RunState{tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunRetrying}
	_, err := w.door.CancelRuns(t.Context(), api.RunsSelected{Recipe: recipe, States: states, Reason: "the test has seen enough"})
	must(t, err)
	w.seen.waitUntil(t, "the pods of "+recipe+" to go", func() (string, bool) {
		left := w.seen.livePods(podsOf(recipe))
		return fmt.Sprint(len(left), " are there"), len(left) == 0
	})
}
