//go:build cluster

package kube

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const upgradeBots = 20

// An upgrade replaces every pod of the release while events come in.
func TestAnUpgradeUnderLoadLosesNothing(t *testing.T) {
	w := cluster(t)
	w.waitAllReady(t)
	before := map[types.UID]bool{}
	for _, p := range w.seen.livePods(isReleasePod) {
		before[p.Last.UID] = true
	}
	l := w.publishDuring(t, "upgrade", upgradeBots, func(ctx context.Context, _ *load) error {
		return w.upgrade(ctx, configFile, "--set-string", "pods.annotations.upgraded=yes")
	})
	// helm has waited for the new pods, but not until the last old pod has been told to end.
	w.seen.waitUntil(t, "the upgrade to replace all pods", func() (string, bool) {
		left := w.seen.livePods(func(p *corev1.Pod) bool {
			return before[p.UID] && p.DeletionTimestamp == nil && p.Annotations["upgraded"] != "yes" && components()[p.Labels[labelComponent]] > 0
		})
		return fmt.Sprint(len(left), " are those of before"), len(left) == 0
	})
	w.judge(t, "upgrade", l)
	w.waitAllReady(t)
}
