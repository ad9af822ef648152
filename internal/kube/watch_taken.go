package kube

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// taken reads what the cluster has done to a pod: nil if nothing. It is no fault
// of the command, so the run gets another attempt, which goes on from the
// checkpoint.
func taken(p *corev1.Pod) *ending {
	if c := conditionOf(p, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		if e := disrupted(p, c); e != nil {
			return e
		}
	}
	message := p.Status.Message
	switch p.Status.Reason {
	case "Evicted":
		return lost("evicted", "it was evicted from node %s: %s", p.Spec.NodeName, says("", message))
	case "NodeLost":
		return lost("node-lost", "its node %s does not answer any more", p.Spec.NodeName)
	case "Preempting":
		return lost("preempted", "it was preempted on node %s: %s", p.Spec.NodeName, says("", message))
	case "Shutdown", "Terminated", "NodeShutdown":
		return lost("node-lost", "its node %s was shut down: %s", p.Spec.NodeName, says("", message))
	case "DeadlineExceeded":
		return late("its deadline")
	case "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "TopologyAffinityError":
		return lost("refused", "node %s would not take it: %s", p.Spec.NodeName, says(p.Status.Reason, message))
	}
	if strings.HasPrefix(p.Status.Reason, "OutOf") { // OutOfcpu, OutOfmemory, OutOfnvidia.com/gpu
		return lost("refused", "node %s had no room for it after all: %s", p.Spec.NodeName, says(p.Status.Reason, message))
	}
	return nil
}

// disrupted reads the condition by which Kubernetes says that a pod is to go.
func disrupted(p *corev1.Pod, c *corev1.PodCondition) *ending {
	node := p.Spec.NodeName
	switch c.Reason {
	case corev1.PodReasonPreemptionByScheduler:
		return lost("preempted", "it was preempted on node %s: %s", node, says("a pod of a higher priority needs its place", c.Message))
	case "EvictionByEvictionAPI":
		return lost("evicted", "it was evicted from node %s, as when a node is drained", node)
	case "DeletionByTaintManager":
		return lost("node-lost", "its node %s was tainted, as when it does not answer any more: %s", node, says("", c.Message))
	case "DeletionByPodGC":
		return lost("node-lost", "its node %s is no more: %s", node, says("", c.Message))
	case corev1.PodReasonTerminationByKubelet: // the pod's own message names the resource that ran out
		return lost("evicted", "node %s has ended it: %s", node, says("", cmp.Or(p.Status.Message, c.Message)))
	}
	return lost("evicted", "it was taken from node %s: %s", node, says(c.Reason, c.Message))
}
