//go:build cluster

package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev/e2e/kube/images"
)

const (
	cardLabel = "e2e.tidemill.dev/card"
	cardsEach = 4 // number of cards per node
)

// Of two nodes with free GPUs, an urgent run gets the newer card, and a patient run gets the older
// card. If the older card is taken, the patient run gets the newer card. The nodes are kwok's,
// because the test checks only where the scheduler puts pods, not whether they run there.
func TestCardsAreChosenByHowUrgentARunIs(t *testing.T) {
	w := cluster(t)
	if !w.sandbox.Own() {
		t.Skip("nodes are made up for this test, which is for a sandbox of ours")
	}
	w.madeUp(t, "card-new", "new")
	w.madeUp(t, "card-old", "old")
	for _, c := range []struct {
		recipe, key, node string
		taken             string // node that other pods fill before
	}{
		{"urgent", "cards-0", "card-new", ""},
		{"patient", "cards-1", "card-old", ""},
		{"patient", "cards-2", "card-new", "card-old"},
	} {
		if c.taken != "" {
			w.takeAllCards(t, c.taken)
		}
		w.mustPublish(t, c.recipe+"-asked", c.key, "")
		var node string
		w.seen.waitUntil(t, "a place for "+c.key, func() (string, bool) {
			pods := w.seen.allPods(func(p *corev1.Pod) bool { return podsOf(c.recipe)(p) && p.Annotations[annotationKey] == c.key })
			if len(pods) == 0 {
				return "it has no pod", false
			}
			node = pods[0].Last.Spec.NodeName
			return fmt.Sprintf("pod %s is on no node", pods[0].Name), node != ""
		})
		if node != c.node {
			t.Errorf("the %s run for %s is on %s, and not on %s", c.recipe, c.key, node, c.node)
		}
	}
	for _, c := range []string{"urgent", "patient"} {
		w.cancelAll(t, c)
	}
}

// madeUp creates a node that kwok simulates. A pod on such a node seems to run for ever.
func (w *world) madeUp(t *testing.T, name, card string) {
	t.Helper()
	has := corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(cardsEach, resource.DecimalSI),
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("20")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		Labels: map[string]string{cardLabel: card, "e2e.tidemill.dev/cards": "yes", "kubernetes.io/hostname": name}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "kwok.x-k8s.io/node", Value: "fake", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: has, Capacity: has}}
	must(t, create(t.Context(), w.server.core, "", "nodes", n))
	t.Cleanup(func() {
		if err := w.server.core.Delete().Resource("nodes").Name(name).Do(cleanupContext(t)).Error(); err != nil {
			t.Errorf("remove the node %s: %v", name, err)
		}
	})
	eventually(t, "the node "+name, func(ctx context.Context) error {
		found, err := find(ctx, w.server.core, "", "nodes", name, &corev1.Node{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(found.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("its conditions are %v", found.Status.Conditions)
		}
		if len(found.Spec.Taints) != 1 { // a new node is tainted until its readiness has been reported
			return fmt.Errorf("its taints are %v", found.Spec.Taints)
		}
		return nil
	})
}

// takeAllCards takes all cards of a node, without the scheduler.
func (w *world) takeAllCards(t *testing.T, node string) {
	t.Helper()
	all := corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(cardsEach, resource.DecimalSI)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "fills-" + node}, Spec: corev1.PodSpec{NodeName: node,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:  []corev1.Container{{Name: "fills", Image: images.Job, Resources: corev1.ResourceRequirements{Limits: all, Requests: all}}}}}
	must(t, create(t.Context(), w.server.core, "default", "pods", p))
	p.Namespace = "default"
	t.Cleanup(func() {
		if err := w.server.kill(cleanupContext(t), p); err != nil {
			t.Error(err)
		}
	})
}
