package kube

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
	"tidemill.dev/internal/runs/agent"
)

const (
	// stuckFor is the longest time of a trouble that the attempt cannot end by itself, such as a
	// registry that does not answer or a missing Secret.
	stuckFor = 2 * time.Minute
	// unborn is how long a Job of an unknown run is kept: this process may not have read the fact
	// that began the attempt.
	unborn = 10 * time.Second
	// leaving is how long a pod may run after the end of its attempt and its linger, because its
	// agent needs time to exit.
	leaving = 10 * time.Second
	// podless is how long a Job may have no pod before the watcher reports it.
	podless = 5 * time.Second
	// steady is the shortest time between two messages about an attempt, because the scheduler's
	// message changes with each node that comes or goes.
	steady = 10 * time.Second
)

// attemptView holds an attempt's objects in the cluster, and this watcher's memory of it.
type attemptView struct {
	jobs   []*batchv1.Job  // Jobs with the attempt's label, or that own its pods
	pods   []*corev1.Pod   // pods with the attempt's label, of any Job
	gone   []*corev1.Pod   // deleted pods in their last known state
	shared map[string]bool // Jobs that have pods of other attempts

	first   time.Time // time at which the attempt was first seen
	stuck   time.Time // time at which the attempt's trouble began; zero without a trouble
	trouble trouble
	said    time.Time // time of its last message
}

// knownRun is the attempt in the ledger.
type knownRun struct {
	run    *tidemill.Run // nil if the ledger does not know the run
	number int
}

// attempt returns the attempt; nil if it has not begun.
func (k knownRun) attempt() *tidemill.Attempt {
	if k.run == nil || k.number < 1 || k.number > len(k.run.Attempts) {
		return nil
	}
	return &k.run.Attempts[k.number-1]
}

// underWay reports whether the attempt is the current one of its run.
func (k knownRun) underWay() bool {
	return k.run != nil && k.run.Attempt() != nil && k.run.Attempt().Number == k.number
}

// judgement says what to do about an attempt.
type judgement struct {
	end     *ending
	where   tidemill.Where
	doubts  []doubt           // ends of which one is reported if its agent sent no beat lately
	seen    *tidemill.RunSeen // state to report, unless the run has it already
	trouble trouble           // trouble to store
	remove  []*batchv1.Job
	orphan  bool          // whether the removed Jobs did not end by themselves, or belong to no known run
	again   time.Duration // time until the next check without an event; 0 for no check
}

// doubt is an end of an attempt that its agent can refute by a beat.
type doubt struct {
	agent string // name of the agent's beats in the ledger
	end   *ending
}

// conclude decides only from the present state. So missed events, several controllers and repeated
// calls do not change the result.
func conclude(s attemptView, k knownRun, now time.Time) judgement {
	switch {
	case k.underWay():
		return s.judgeLive(k, now)
	case k.attempt() == nil:
		return s.judgeUnknown(now)
	}
	return s.judgeEnded(k.attempt(), now)
}

// judgeUnknown judges a Job of no known run. The run may have only just begun.
func (s *attemptView) judgeUnknown(now time.Time) judgement {
	if left := unborn - now.Sub(s.first); left > 0 {
		return judgement{again: left}
	}
	return judgement{remove: s.removable(), orphan: true}
}

// judgeEnded judges an attempt that has ended. Its pod may be exiting, or it may linger and then
// run another attempt. If the pod has ended, its Job is removed at once.
func (s *attemptView) judgeEnded(a *tidemill.Attempt, now time.Time) judgement {
	j := judgement{where: s.nodeAndImage()}
	if j.where.Node != "" || j.where.Image != "" {
		j.seen = &tidemill.RunSeen{Where: j.where}
	}
	lost, done := a.Outcome == tidemill.OutcomeLost, s.allOver(now)
	if !lost {
		done = done || s.agentDone()
	}
	stays := a.Ended.Add(s.lingerTime() + leaving)
	if lost || done || a.Ended.IsZero() {
		stays = now
	}
	if left := stays.Sub(now); left > 0 {
		j.again = left
		return j
	}
	j.remove, j.orphan = s.removable(), !done
	return j
}

// agentDone reports whether the agent of an ended attempt has nothing left to do. An agent reports
// the end last, after it has uploaded the output and the log. So the pod can be removed before its
// kubelet reports its end, which takes a second. It returns false for several workers, because
// other workers may still have to report, and for a pod that lingers.
func (s *attemptView) agentDone() bool {
	together := slices.ContainsFunc(s.pods, func(p *corev1.Pod) bool { return partOf(p) != "" })
	return !together && len(s.pods) > 0 && s.lingerTime() == 0
}

// judgeLive judges an attempt under way.
func (s *attemptView) judgeLive(k knownRun, now time.Time) judgement {
	j := judgement{where: s.nodeAndImage()}
	words := ""
	for _, p := range s.inOrder() {
		r := read(p, now)
		switch e := ofPart(p, &r); {
		case e != nil && r.doubtful:
			j.doubts = append(j.doubts, doubt{beatName(p), e})
		case e != nil:
			j.end = e
			return j
		}
		if words == "" && r.pending != "" {
			words, j.trouble = withPart(p, r.pending), r.trouble
		}
		j.again = max(j.again, r.again)
	}
	if j.end = s.withoutPods(k, now); j.end != nil {
		return j
	}
	if len(s.pods) == 0 {
		words, j.again = s.noPods(now)
	}
	s.giveUp(&j, words, now)
	if j.end == nil {
		s.setMessage(&j, k.attempt(), words, now)
	}
	return j
}

// ofPart returns the end of the attempt that follows from the end of one pod. It is nil if a worker
// other than the first exits with success, because the attempt goes on.
func ofPart(p *corev1.Pod, r *reading) *ending {
	if r.end == nil || hasSucceeded(p) && !isFirstWorker(p) {
		return nil
	}
	e := *r.end
	e.reason = withPart(p, e.reason)
	return &e
}

// hasSucceeded reports whether the agent of a pod has exited with success, even if another container still runs.
func hasSucceeded(p *corev1.Pod) bool {
	run := statusOf(p.Status.ContainerStatuses, containerRun)
	return p.Status.Phase == corev1.PodSucceeded ||
		p.Status.Phase == corev1.PodRunning && run != nil && run.State.Terminated != nil && run.State.Terminated.ExitCode == 0
}

// withPart adds the name of the worker or server to a message, unless it is the first worker.
func withPart(p *corev1.Pod, words string) string {
	if part := partOf(p); part != "" && !isFirstWorker(p) {
		return part + ": " + words
	}
	return words
}

// partOf returns the name of a worker or server, as in its log lines.
func partOf(p *corev1.Pod) string {
	switch index := p.Annotations[batchv1.JobCompletionIndexAnnotation]; {
	case p.Labels[LabelPart] == partServer:
		return "parameter server " + index
	case index != "":
		return "worker " + index
	}
	return ""
}

// beatName returns the name in the ledger of the beats of a pod's agent.
func beatName(p *corev1.Pod) string {
	attempt, index := p.Labels[LabelAttempt], p.Annotations[batchv1.JobCompletionIndexAnnotation]
	switch {
	case isFirstWorker(p):
		return attempt
	case p.Labels[LabelPart] == partServer:
		return attempt + "/ps" + index
	}
	return attempt + "/w" + index
}

// isFirstWorker reports whether a pod is the first worker, whose agent reports for the attempt.
func isFirstWorker(p *corev1.Pod) bool {
	index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
	return p.Labels[LabelPart] != partServer && (index == "" || index == "0")
}

// inOrder returns the pods with the first worker first and the servers last.
func (s *attemptView) inOrder() []*corev1.Pod {
	rank := func(p *corev1.Pod) int {
		index, _ := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
		if p.Labels[LabelPart] == partServer {
			index += 1 << 20
		}
		return index
	}
	return slices.SortedFunc(slices.Values(s.pods), func(a, b *corev1.Pod) int { return rank(a) - rank(b) })
}

// withoutPods returns the end of an attempt that has lost a pod. The last known state of a deleted
// pod gives the reason. If no deletion was seen, the failed Job shows that it had a pod.
func (s *attemptView) withoutPods(k knownRun, now time.Time) *ending {
	for _, job := range s.jobs {
		if c := failed(job); c != nil && c.Reason == batchv1.JobReasonDeadlineExceeded {
			return deadlineEnding("the deadline of its Job")
		}
	}
	if e := s.suspendedEnding(k); e != nil {
		return e
	}
	for _, p := range s.gone {
		if e := ofPart(p, &reading{end: deletionEnding(p, now)}); e != nil {
			return e
		}
	}
	if len(s.pods) > 0 {
		return nil
	}
	for _, job := range s.jobs {
		if c := failed(job); c != nil {
			return lost("deleted", "its pod was removed before a controller could see why: Job %s: %s", job.Name, messageOf(c.Reason, c.Message))
		}
	}
	return nil
}

// suspendedEnding returns the end of an attempt whose quota Kueue has given to another Job. Kueue
// suspends the attempt's Job, which then loses its pods. A suspended Job that never had a pod still
// waits for its quota.
func (s *attemptView) suspendedEnding(k knownRun) *ending {
	if len(s.pods) > 0 || k.attempt().Node == "" && len(s.gone) == 0 {
		return nil
	}
	for _, job := range s.jobs {
		if resting(job) {
			return lost("preempted", "its queue has given its place to another: Job %s was suspended", job.Name)
		}
	}
	return nil
}

func resting(job *batchv1.Job) bool { return job.Spec.Suspend != nil && *job.Spec.Suspend }

// deletionEnding returns the reason why a pod was deleted.
func deletionEnding(p *corev1.Pod, now time.Time) *ending {
	if e := podEnding(p); e != nil {
		return e
	}
	if r := read(p, now); r.end != nil && !r.doubtful {
		return r.end
	}
	return lost("deleted", "its pod %s was deleted, and not by us", p.Name)
}

// noPods returns the reason why a Job has no pod.
func (s *attemptView) noPods(now time.Time) (words string, again time.Duration) {
	for _, job := range s.jobs {
		if resting(job) {
			if queue := job.Labels[labelQueue]; queue != "" {
				return "it waits for its place in queue " + queue, 0
			}
			return "its Job is suspended", 0
		}
	}
	if left := podless - now.Sub(s.first); len(s.jobs) > 0 && left > 0 {
		return "", left
	} else if len(s.jobs) > 0 {
		return fmt.Sprintf("its Job has no pod yet; kubectl describe job %s shows why, a quota perhaps", s.jobs[0].Name), 0
	}
	return "", 0
}

// giveUp ends an attempt whose trouble has lasted longer than stuckFor.
func (s *attemptView) giveUp(j *judgement, words string, now time.Time) {
	if j.trouble == "" || j.trouble == troubleRoom {
		return
	}
	left := stuckFor
	if s.trouble == j.trouble {
		left -= now.Sub(s.stuck)
	}
	switch {
	case left > 0:
		j.again = left
	case j.trouble == troubleConfig:
		j.end = permanentEnding("config", words)
	case j.trouble == troubleToken:
		j.end = lost("start", "%s", words)
	default:
		j.end = lost("image", "%s", words)
	}
}

// setMessage sets the message about the attempt's wait and its node. A changed message is reported
// only after the time steady has passed since the last message.
func (s *attemptView) setMessage(j *judgement, a *tidemill.Attempt, words string, now time.Time) {
	j.seen = &tidemill.RunSeen{Pending: words, Where: j.where}
	if left := steady - now.Sub(s.said); words != "" && a.Pending != "" && words != a.Pending && left > 0 {
		j.seen.Pending, j.again = a.Pending, left
	}
	if len(s.pods) == 0 && words == "" { // nothing to report
		j.seen = nil
	}
	if j.trouble == troubleRoom && j.again == 0 {
		j.again = time.Second // a pod may begin to linger by then
	}
}

// nodeAndImage returns the node and image of the attempt's first worker.
func (s *attemptView) nodeAndImage() tidemill.Where {
	for _, p := range slices.Concat(s.inOrder(), s.gone) {
		if isFirstWorker(p) {
			return whereOf(p)
		}
	}
	return tidemill.Where{}
}

// allOver reports whether the first worker's agent is not running: its pod has ended, cannot begin,
// or was deleted. The other workers end with the first. A pod that is starting counts as running,
// because its kubelet reports later than its agent. A pod that was never seen counts as running
// too, because the watch of pods may be slower than that of Jobs.
func (s *attemptView) allOver(now time.Time) bool {
	if !slices.ContainsFunc(s.pods, isFirstWorker) {
		return len(s.gone) > 0 || len(s.jobs) == 0 || slices.ContainsFunc(s.jobs, hasEnded)
	}
	return !slices.ContainsFunc(s.pods, func(p *corev1.Pod) bool {
		if !isFirstWorker(p) || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return false
		}
		r := read(p, now)
		return r.end == nil && r.trouble == ""
	})
}

// lingerTime returns how long the pod waits for another attempt.
func (s *attemptView) lingerTime() time.Duration {
	for _, p := range s.pods {
		for i := range p.Spec.Containers {
			for _, v := range p.Spec.Containers[i].Env {
				if v.Name == agent.EnvLinger {
					d, _ := time.ParseDuration(v.Value) // valid, because our launcher has written it
					return d
				}
			}
		}
	}
	return 0
}

// removable returns the Jobs that have no pods of other attempts and are not being deleted.
func (s *attemptView) removable() (all []*batchv1.Job) {
	for _, job := range s.jobs {
		if job.DeletionTimestamp == nil && !s.shared[job.Name] {
			all = append(all, job)
		}
	}
	return all
}

func failed(job *batchv1.Job) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		c := &job.Status.Conditions[i]
		if (c.Type == batchv1.JobFailed || c.Type == batchv1.JobFailureTarget) && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
