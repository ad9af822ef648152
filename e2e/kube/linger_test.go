//go:build cluster

package kube

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A pod that has ended its run takes the next run of the same shape, and its waiting time is
// counted.
func TestAWarmPodTakesTheNextRun(t *testing.T) {
	w := cluster(t)
	w.mustPublish(t, "warm-asked", "warm-0", "")
	w.succeeds(t, "warm", "warm-0")
	eventually(t, "a pod that waits", func(ctx context.Context) error {
		pools, err := w.door.Pools(ctx)
		if err != nil {
			return err
		}
		for _, p := range pools.Pools {
			if p.Name == "warm" && p.Lingering > 0 {
				return nil
			}
		}
		return fmt.Errorf("the pools are %+v", pools.Pools)
	})
	w.mustPublish(t, "warm-asked", "warm-1", "")
	second := w.succeeds(t, "warm", "warm-1")
	if jobs := w.seen.allJobs(jobsOf("warm")); len(jobs) != 1 {
		t.Errorf("two runs had %d Jobs", len(jobs))
	}
	pods := map[types.UID]bool{}
	for _, p := range w.seen.allPods(podsOf("warm")) {
		pods[p.Last.UID] = true
	}
	if len(pods) != 1 {
		t.Errorf("two runs had %d pods", len(pods))
	}
	if len(second.Attempts) != 1 || second.Attempts[0].Node == "" {
		t.Errorf("the second run's attempts: %+v", second.Attempts)
	}
	w.seen.waitUntil(t, "the warm pod to leave", func() (string, bool) {
		left := w.seen.livePods(podsOf("warm"))
		return fmt.Sprint(len(left), " are there"), len(left) == 0
	})
	pools, err := w.door.Pools(t.Context())
	must(t, err)
	for _, p := range pools.Pools {
		if p.Name == "warm" && p.IdleSeconds <= 0 {
			t.Errorf("the pool has counted %v idle GPU seconds", p.IdleSeconds)
		}
	}
	w.noLetters(t, []string{"warm-0", "warm-1"})
}
