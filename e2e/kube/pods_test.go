//go:build cluster

package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// The labels that the tests use. Users rely on these labels, so the tests do not take them from the
// product's code.
const (
	labelComponent = "app.kubernetes.io/component"
	labelRelease   = "app.kubernetes.io/instance"
	labelRun       = "tidemill.dev/run"
	labelAttempt   = "tidemill.dev/attempt"
	labelRecipe    = "tidemill.dev/recipe"
	labelScorer    = "tidemill.dev/scorer"
	labelFunction  = "serving.knative.dev/service"

	annotationKey = "tidemill.dev/key"
)

// components returns the components of the chart that always run, with their numbers of pods.
func components() map[string]int {
	return map[string]int{"gateway": 2, "dispatcher": 2, "controller": 2}
}

// hasLabel matches objects with a label: with this value, or with any value if value is empty.
func hasLabel[T interface{ GetLabels() map[string]string }](name, value string) func(T) bool {
	return func(o T) bool {
		v, ok := o.GetLabels()[name]
		return ok && (value == "" || v == value)
	}
}

func component(name string) func(*corev1.Pod) bool {
	return hasLabel[*corev1.Pod](labelComponent, name)
}

func jobsOf(recipe string) func(*batchv1.Job) bool {
	return hasLabel[*batchv1.Job](labelRecipe, recipe)
}

func podsOf(recipe string) func(*corev1.Pod) bool { return hasLabel[*corev1.Pod](labelRecipe, recipe) }

// isReleasePod matches the pods of the release.
func isReleasePod(p *corev1.Pod) bool { return p.Labels[labelRelease] == release }

// isIdle reports whether only the components that always run are left. Knative keeps a pod that it
// has taken out of service for half a minute; that pod does not count.
func (w *world) isIdle() (string, bool) {
	var more []string
	for _, p := range w.seen.livePods(func(p *corev1.Pod) bool {
		return components()[p.Labels[labelComponent]] == 0 && p.DeletionTimestamp == nil
	}) {
		more = append(more, p.Name)
	}
	return "there are still " + strings.Join(more, ", "), len(more) == 0
}

// atRest waits until no pods of functions, runs and scorers are left.
func (w *world) atRest(t *testing.T) {
	t.Helper()
	w.seen.waitUntil(t, "functions, runs and scorers to go back to zero", w.isIdle)
}

// waitAllReady waits until every component has all its pods ready.
func (w *world) waitAllReady(t *testing.T) {
	t.Helper()
	w.seen.waitUntil(t, "all components to be ready", func() (string, bool) {
		for _, name := range slices.Sorted(maps.Keys(components())) {
			ready := 0
			for _, p := range w.seen.livePods(component(name)) {
				if isReady(p.Last) && p.Last.DeletionTimestamp == nil {
					ready++
				}
			}
			if want := components()[name]; ready != want {
				return fmt.Sprintf("%d of %d of %s are ready", ready, want, name), false
			}
		}
		return "", true
	})
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
