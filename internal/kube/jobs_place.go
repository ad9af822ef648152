package kube

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/config"
)

// place says which nodes take a pod of a pool, and which of them it likes best.
func place(spec *corev1.PodSpec, plan tidemill.Plan, p config.Pool) {
	spec.NodeSelector = maps.Clone(p.Nodes)
	for _, t := range p.Tolerations {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator),
			Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	order := slices.Clone(p.Cards.NewestFirst)
	if plan.Priority <= 0 {
		slices.Reverse(order) // who has time leaves the newest to who has none
	}
	if likes := weights(p.Cards.Label, order); len(likes) > 0 {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: likes}}
	}
}

// weights like the first card best, and each that follows evenly less. They are
// wishes: what is free is taken.
func weights(label string, order []string) (all []corev1.PreferredSchedulingTerm) {
	const most, least = 100, 1 // as Kubernetes has them
	for i, card := range order {
		weight := most
		if last := len(order) - 1; last > 0 {
			weight = most - i*(most-least)/last
		}
		all = append(all, prefer(weight, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{card}}))
	}
	return all
}

// keepOff has a pod that needs no GPU leave the nodes with cards to others, as
// long as there are others.
func keepOff(spec *corev1.PodSpec, p config.Pool) {
	if p.Cards.Label == "" {
		return
	}
	away := prefer(100, corev1.NodeSelectorRequirement{Key: p.Cards.Label, Operator: corev1.NodeSelectorOpDoesNotExist})
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{away}}}
}

func prefer(weight int, what corev1.NodeSelectorRequirement) corev1.PreferredSchedulingTerm {
	return corev1.PreferredSchedulingTerm{Weight: int32(weight), Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{what}}}
}
