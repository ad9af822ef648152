package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
)

// reading is the meaning of a pod's status.
type reading struct {
	pending  string        // reason why the container does not run yet; empty if it runs or starts normally
	trouble  trouble       // kind of the reason in pending
	end      *ending       // end of the pod; nil while it may run
	doubtful bool          // whether the end is reported only if the agent sent no beat lately
	again    time.Duration // time until the next check without an event
	where    tidemill.Where
}

// trouble is a state that a pod may not leave by itself.
type trouble string

// The troubles.
const (
	troubleRoom   trouble = "room"   // no node has room for the pod now
	troubleImage  trouble = "image"  // the pod's image cannot be pulled
	troubleConfig trouble = "config" // an object that the pod names does not exist
	troubleToken  trouble = "token"  // the Secret with the attempt's token does not exist
)

// ending is the end of an attempt, as read from its pod.
type ending struct {
	kind      string // label of the metric
	outcome   tidemill.Outcome
	permanent bool
	reason    string
	result    tidemill.Result
}

// slowStart is how long a container may take to start before the watcher reports it.
const slowStart = 5 * time.Second

// read returns the meaning of a pod's status. It reads one moment only; the caller measures how
// long a state has lasted.
func read(p *corev1.Pod, now time.Time) reading {
	r := reading{where: whereOf(p)}
	switch p.Status.Phase {
	case corev1.PodFailed:
		r.end = endOf(p)
	case corev1.PodSucceeded:
		r.end = silentEnding(0)
	case corev1.PodUnknown:
		r.end = lost("node-lost", "its node %s does not answer any more", p.Spec.NodeName)
	case corev1.PodRunning:
		r.running(p)
	default:
		r.begin(p, now)
	}
	return r
}

// running reads a pod with a container that runs. That may be one that the cluster has added, such as a proxy. The
// attempt ends when the container of the agent ends.
//
// If a node does not answer, the cluster sets its pods to not ready, without a reason, but leaves their containers
// ready. A kubelet gives a reason. The agent may be alive on a partitioned network and still send beats, so the
// end is doubtful.
func (r *reading) running(p *corev1.Pod) {
	run := statusOf(p.Status.ContainerStatuses, containerRun)
	if run != nil && run.State.Terminated != nil {
		r.end = endOf(p)
		return
	}
	ready := conditionOf(p, corev1.PodReady)
	if run != nil && run.Ready && ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason == "" {
		r.end, r.doubtful = lost("node-lost", "its node %s does not answer any more", p.Spec.NodeName), true
	}
}

// begin reads a pod whose container does not run yet.
func (r *reading) begin(p *corev1.Pod, now time.Time) {
	scheduled := conditionOf(p, corev1.PodScheduled)
	if scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		r.pending = scheduleMessage(scheduled)
		if strings.Contains(scheduled.Message, "Insufficient") {
			r.trouble = troubleRoom
		}
		return
	}
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			if w := statuses[i].State.Waiting; w != nil && r.readWaiting(&statuses[i], w) {
				return
			}
		}
	}
	if scheduled == nil {
		return
	}
	if left := slowStart - now.Sub(scheduled.LastTransitionTime.Time); left > 0 {
		r.again = left
	} else {
		r.pending = fmt.Sprintf("its container is being made on %s: its image is pulled, or its volumes are attached", cmp.Or(p.Spec.NodeName, "its node"))
	}
}

// scheduleMessage returns the first sentence of the scheduler's message. The rest is about preemption
// and claims.
func scheduleMessage(c *corev1.PodCondition) string {
	if c.Reason == corev1.PodReasonSchedulingGated {
		return "scheduling gates block it: " + firstSentence(c.Message)
	}
	return cmp.Or(firstSentence(c.Message), "the scheduler has found no node yet")
}

func firstSentence(s string) string {
	s, _, _ = strings.Cut(s, ". ")
	s, _, _ = strings.Cut(s, " preemption: ")
	return shortened(strings.TrimSuffix(strings.TrimSpace(s), "."))
}

// maxWords is the longest message in characters, because a cluster's message may list all nodes.
const maxWords = 400

func shortened(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxWords {
		return string(r[:maxWords]) + "…"
	}
	return s
}

// endOf reads a failed pod. An action of the cluster, such as an eviction, explains more than the
// state of the containers.
func endOf(p *corev1.Pod) *ending {
	if e := podEnding(p); e != nil {
		return e
	}
	for i := range p.Status.InitContainerStatuses {
		if e := initEnding(&p.Status.InitContainerStatuses[i]); e != nil {
			return e
		}
	}
	if run := statusOf(p.Status.ContainerStatuses, containerRun); run != nil && run.State.Terminated != nil {
		return terminatedEnding(p, run.State.Terminated)
	}
	return lost("failed", "its pod failed: %s", messageOf(p.Status.Reason, p.Status.Message))
}

// initEnding reads the container that copies the agent.
func initEnding(s *corev1.ContainerStatus) *ending {
	t := s.State.Terminated
	if t == nil || t.ExitCode == 0 {
		return nil
	}
	return lost("install", "the agent could not be put into its pod: container %s: %s", s.Name, messageOf(fmt.Sprintf("exit status %d", t.ExitCode), cmp.Or(t.Message, t.Reason)))
}

// terminatedEnding reads a container that has ended without a report of its agent.
func terminatedEnding(p *corev1.Pod, t *corev1.ContainerStateTerminated) *ending {
	switch t.Reason {
	case "OOMKilled":
		return &ending{kind: "out-of-memory", outcome: tidemill.OutcomeFailed, reason: outOfMemory(p), result: killed}
	case "StartError", "ContainerCannotRun":
		return &ending{kind: "start", outcome: tidemill.OutcomeFailed, reason: "its container could not be started: " + shortened(t.Message),
			result: tidemill.Result{Exit: int(t.ExitCode)}}
	case "DeadlineExceeded":
		return deadlineEnding("its deadline")
	}
	return silentEnding(int(t.ExitCode))
}

var killed = tidemill.Result{Exit: -1, Signal: "SIGKILL"} // read only

// silentEnding returns the end of an attempt whose agent exited without a report.
func silentEnding(exit int) *ending {
	e := lost("silent", "its agent left without reporting its end (exit status %d)", exit)
	if exit == 137 {
		e.reason, e.result = "its agent was killed (SIGKILL) before it could report its end", killed
	}
	return e
}

// outOfMemory returns the reason for a command that was killed for memory.
func outOfMemory(p *corev1.Pod) string {
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == containerRun {
			if limit, there := c.Resources.Limits[corev1.ResourceMemory]; there {
				return "the command was killed for memory: its limit is " + limit.String() + " (run.memory); give it more, or have it use less"
			}
		}
	}
	return fmt.Sprintf("the command was killed for memory: node %s had none left; set run.memory, so that it is kept for it", p.Spec.NodeName)
}

// isOverDisk reports whether the kubelet evicted a pod because the pod used more disk than its own
// limit. If the node's disk is full, the message is another, and the attempt is lost.
func isOverDisk(message string) bool {
	return strings.Contains(message, "exceed") &&
		(strings.Contains(message, "ephemeral local storage") || strings.Contains(message, "local ephemeral storage") || strings.Contains(message, "EmptyDir volume"))
}

// overDisk returns the reason for a pod that used more disk than its limit.
func overDisk(p *corev1.Pod) string {
	limit := ""
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == containerRun && !c.Resources.Limits.StorageEphemeral().IsZero() {
			limit = " of " + c.Resources.Limits.StorageEphemeral().String()
		}
	}
	return fmt.Sprintf("the command used more disk than its limit%s (run.disk) on node %s: raise it, use a volume, or write less: %s", limit, p.Spec.NodeName, messageOf("", p.Status.Message))
}

// deadlineEnding returns the end of an attempt that the cluster ended at a deadline.
func deadlineEnding(deadline string) *ending {
	return &ending{kind: "deadline", outcome: tidemill.OutcomeFailed, reason: "it did not end within " + deadline, result: tidemill.Result{Exit: -1}}
}

func lost(kind, format string, args ...any) *ending {
	return &ending{kind: kind, outcome: tidemill.OutcomeLost, reason: fmt.Sprintf(format, args...), result: tidemill.Result{Exit: -1}}
}

// messageOf returns a message of the cluster in one line, or the reason if there is no message.
func messageOf(reason, message string) string {
	if message == "" {
		return cmp.Or(reason, "the cluster does not say why")
	}
	return shortened(message)
}

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

func statusOf(all []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// whereOf returns the node of a pod and the digest of its image.
func whereOf(p *corev1.Pod) tidemill.Where {
	w := tidemill.Where{Node: p.Spec.NodeName}
	if run := statusOf(p.Status.ContainerStatuses, containerRun); run != nil {
		w.Image = digestOf(run.ImageID)
	}
	return w
}

// digestOf returns the digest in a runtime's image id. Some runtimes write
// docker-pullable://registry/name@sha256:…, some registry/name@sha256:…, and some only the id if
// the image has no digest of a registry.
func digestOf(imageID string) string {
	if _, digest, found := strings.Cut(imageID, "@"); found {
		return digest
	}
	if i := strings.LastIndex(imageID, "sha256:"); i >= 0 {
		return imageID[i:]
	}
	return imageID
}

// podEnding returns the end of a pod that the cluster has ended, for example by an eviction; else
// nil. Such an end is not the command's fault, so another attempt continues from the checkpoint.
func podEnding(p *corev1.Pod) *ending {
	if c := conditionOf(p, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		if e := disruptionEnding(p, c); e != nil {
			return e
		}
	}
	message := p.Status.Message
	switch p.Status.Reason {
	case "Evicted":
		if isOverDisk(message) {
			return &ending{kind: "disk", outcome: tidemill.OutcomeFailed, reason: overDisk(p), result: killed}
		}
		return lost("evicted", "it was evicted from node %s: %s", p.Spec.NodeName, messageOf("", message))
	case "NodeLost":
		return lost("node-lost", "its node %s does not answer any more", p.Spec.NodeName)
	case "Preempting":
		return lost("preempted", "it was preempted on node %s: %s", p.Spec.NodeName, messageOf("", message))
	case "Shutdown", "Terminated", "NodeShutdown":
		return lost("node-lost", "its node %s was shut down: %s", p.Spec.NodeName, messageOf("", message))
	case "DeadlineExceeded":
		return deadlineEnding("its deadline")
	case "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "TopologyAffinityError":
		return lost("refused", "node %s would not take it: %s", p.Spec.NodeName, messageOf(p.Status.Reason, message))
	}
	if strings.HasPrefix(p.Status.Reason, "OutOf") { // OutOfcpu, OutOfmemory, OutOfnvidia.com/gpu
		return lost("refused", "node %s had no room for it after all: %s", p.Spec.NodeName, messageOf(p.Status.Reason, message))
	}
	return nil
}

// disruptionEnding reads the condition in which Kubernetes announces the end of a pod.
func disruptionEnding(p *corev1.Pod, c *corev1.PodCondition) *ending {
	node := p.Spec.NodeName
	switch c.Reason {
	case corev1.PodReasonPreemptionByScheduler:
		return lost("preempted", "it was preempted on node %s: %s", node, messageOf("a pod of a higher priority needs its place", c.Message))
	case "EvictionByEvictionAPI":
		return lost("evicted", "it was evicted from node %s, as when a node is drained", node)
	case "DeletionByTaintManager":
		return lost("node-lost", "its node %s was tainted, as when it does not answer any more: %s", node, messageOf("", c.Message))
	case "DeletionByPodGC":
		return lost("node-lost", "its node %s no longer exists: %s", node, messageOf("", c.Message))
	case corev1.PodReasonTerminationByKubelet: // the pod's own message names the resource that ran out
		return lost("evicted", "node %s has ended it: %s", node, messageOf("", cmp.Or(p.Status.Message, c.Message)))
	}
	return lost("evicted", "it was taken from node %s: %s", node, messageOf(c.Reason, c.Message))
}

// readWaiting reads why a container does not start. It returns false if the start is normal.
func (r *reading) readWaiting(s *corev1.ContainerStatus, w *corev1.ContainerStateWaiting) bool {
	whose, ours := "image "+s.Image, s.Name == containerInstall
	if ours { // our image: not the run's fault, and the next upgrade may name an image that exists
		whose = "our own image " + s.Image
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		r.pending, r.trouble = whose+" cannot be pulled: "+pullMessage(w.Message), troubleImage
		if isHopeless(w.Message) && !ours {
			r.end = permanentEnding("image", r.pending)
		}
	case "InvalidImageName":
		r.end = permanentEnding("image", whose+" is not the name of an image: "+pullMessage(w.Message))
	case "ErrImageNeverPull":
		r.end = permanentEnding("image", whose+" is not on the node, and its pull policy is never to pull it")
	case "CreateContainerConfigError":
		r.pending, r.trouble = "its container cannot be made: "+shortened(w.Message), troubleConfig
		if strings.Contains(w.Message, secretPrefix) { // its launcher stopped before it made the Secret
			r.trouble = troubleToken
		}
	case "CreateContainerError", "RunContainerError", "CreatePodSandboxError":
		r.pending, r.trouble = "its container cannot be started: "+shortened(w.Message), troubleImage
	case "CrashLoopBackOff":
		r.pending = "its container fails again and again: " + shortened(w.Message)
	default: // ContainerCreating, PodInitializing
		return false
	}
	return true
}

// permanentEnding returns an end that every other attempt would repeat.
func permanentEnding(kind, reason string) *ending {
	return &ending{kind: kind, outcome: tidemill.OutcomeFailed, permanent: true, reason: reason, result: tidemill.Result{Exit: -1}}
}

// pullMessage returns the useful part of a runtime's message. Runtimes wrap that part, for example:
// rpc error: code = NotFound desc = failed to pull and unpack image "x": failed to resolve
// reference "x": x: not found. A back-off message repeats the last error.
func pullMessage(message string) string {
	if _, why, found := strings.Cut(message, ": ErrImagePull: "); found {
		message = why
	}
	if _, why, found := strings.Cut(message, " desc = "); found {
		message = why
	}
	for _, wrapped := range []string{"failed to pull and unpack image ", "failed to resolve reference "} {
		if rest, found := strings.CutPrefix(message, wrapped); found {
			if _, why, found := strings.Cut(rest, "\": "); found {
				message = why
			}
		}
	}
	if message == "" {
		return "the runtime does not say why"
	}
	return shortened(message)
}

// isHopeless reports whether a registry answered that the image does not exist or is not
// accessible. After other errors, a retry may succeed: a runtime also says "not found" if it has lost a layer or
// one of its snapshots.
func isHopeless(message string) bool {
	m := strings.ToLower(message)
	has := func(words string) bool { return strings.Contains(m, words) }
	if has("not found") && slices.ContainsFunc([]string{"failed to resolve reference", "manifest for", "reading manifest"}, has) {
		return true
	}
	return slices.ContainsFunc([]string{"manifest unknown", "name unknown", "repository does not exist", "unauthorized", "authentication required",
		"access denied", "insufficient_scope", "denied:", "403 forbidden", "no basic auth credentials", "no match for platform"}, has)
}
