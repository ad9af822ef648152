//go:build cluster

package kube

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Two workers and a parameter server find each other by their variables; otherwise the command
// fails. No object of the run is left.
func TestWorkersAndAServerMeet(t *testing.T) {
	w := cluster(t)
	w.mustPublish(t, "pair-asked", "pair-0", "")
	r := w.succeeds(t, "pair", "pair-0")

	if m := r.Result.Metrics; m["workers"] != 2 || m["servers"] != 1 || m["sum"] != 3 {
		t.Errorf("they have come to %v", m)
	}
	onGPU, off := 0, 0
	for _, p := range w.seen.allPods(hasLabel[*corev1.Pod](labelRun, r.ID)) {
		if q := p.Last.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]; q.IsZero() {
			off++
		} else {
			onGPU++
		}
	}
	if onGPU != 2 || off != 1 {
		t.Errorf("it had %d pods with a GPU and %d without; there are two workers and a server", onGPU, off)
	}
	w.seen.waitUntil(t, "the pods to go", func() (string, bool) {
		left := w.seen.livePods(hasLabel[*corev1.Pod](labelRun, r.ID))
		return fmt.Sprint(len(left), " are there"), len(left) == 0
	})
	eventually(t, "its Service to go", func(ctx context.Context) error {
		services, err := list(ctx, w.server.core, namespace, "services", &corev1.ServiceList{})
		if err != nil {
			return err
		}
		for _, s := range services.Items {
			if s.Labels[labelRun] == r.ID {
				return fmt.Errorf("%s is there", s.Name)
			}
		}
		return nil
	})
	w.noLetters(t, []string{"pair-0"})
}
