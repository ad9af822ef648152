package kube

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// view is what this process sees of the attempts in the cluster, where it watches
// them.
type view struct {
	pods *gathered[*corev1.Pod]
	jobs *gathered[*batchv1.Job]
}

// has reports whether an attempt is seen to be where it may be at work. Nothing is
// seen while a watch is broken off: what has gone meanwhile would stay for ever.
func (v *view) has(name string) bool {
	if !v.pods.whole.Load() || !v.jobs.whole.Load() {
		return false
	}
	if slices.ContainsFunc(v.pods.of(ofAttempt+name), func(p *corev1.Pod) bool { return goesOn(*p) }) {
		return true
	}
	job, there := v.jobs.get(name)
	return there && !over(job) && !slices.ContainsFunc(v.pods.of(inJob+name), func(p *corev1.Pod) bool { return p.Labels[LabelAttempt] != name })
}
