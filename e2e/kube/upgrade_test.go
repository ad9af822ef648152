//go:build cluster

package kube

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const upgradeBots = 20

// Every pod of ours is replaced while events come in.
func TestAnUpgradeUnderLoadLosesNothing(t *testing.T) {
	w := cluster(t)
	w.whole(t)
	before := map[types.UID]bool{}
	for _, p := range w.seen.livePods(ours) {
		before[p.Last.UID] = true
	}
	l := w.under(t, "upgrade", upgradeBots, func(ctx context.Context, _ *load) error {
		return w.upgrade(ctx, configFile, "--set-string", "pods.annotations.upgraded=yes")
	})
	for _, p := range w.seen.livePods(func(p *corev1.Pod) bool {
		return ours(p) && p.DeletionTimestamp == nil && p.Annotations["upgraded"] != "yes"
	}) {
		if before[p.Last.UID] && components()[p.Last.Labels[labelComponent]] > 0 {
			t.Errorf("the upgrade has not replaced %s", p.Name)
		}
	}
	w.judge(t, "upgrade", l)
	w.whole(t)
}
