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
	// stuckFor is how long what an attempt cannot get out of by itself may last:
	// a registry that does not answer, a Secret that nobody has made yet.
	stuckFor = 2 * time.Minute
	// unborn is how long a Job is left alone although nobody knows of its run: the
	// fact that began it may not have been read here.
	unborn = 10 * time.Second
	// leaving is how long a pod may go on after its attempt has ended, beyond its
	// linger: its agent is on its way out.
	leaving = 10 * time.Second
	// podless is how long a Job may be without a pod before that is worth a word.
	podless = 5 * time.Second
	// steady is how long words stand before others take their place: the scheduler
	// counts nodes anew whenever one comes or goes.
	steady = 10 * time.Second
)

// sight is what there is of an attempt in the cluster, and what this watcher
// remembers of it.
type sight struct {
	jobs   []*batchv1.Job  // labelled so, or of its pods
	pods   []*corev1.Pod   // labelled so, whichever Job they are of
	gone   []*corev1.Pod   // as they were when they were seen last
	shared map[string]bool // Jobs that pods of other attempts live in

	first   time.Time // it was seen
	stuck   time.Time // its trouble began; zero without one
	trouble trouble
	said    time.Time // of its newest words
}

// known is what the ledger says of the attempt.
type known struct {
	run    *tidemill.Run // nil: it knows none
	number int
}

// attempt is the one that is meant, if it has begun.
func (k known) attempt() *tidemill.Attempt {
	if k.run == nil || k.number < 1 || k.number > len(k.run.Attempts) {
		return nil
	}
	return &k.run.Attempts[k.number-1]
}

// underWay reports whether the attempt counts.
func (k known) underWay() bool {
	return k.run != nil && k.run.Attempt() != nil && k.run.Attempt().Number == k.number
}

// judgement is what is to be done about an attempt.
type judgement struct {
	end      *ending
	where    tidemill.Where
	doubtful bool              // the end holds only if nobody has heard of the agent lately
	seen     *tidemill.RunSeen // said unless it is known
	trouble  trouble           // to be remembered, and since when
	remove   []*batchv1.Job
	orphan   bool          // what is removed has been forgotten by everybody else
	again    time.Duration // to be looked at then, though nothing happens; 0 is not
}

// conclude decides by what there is now and nothing else, so that it does not matter
// what was missed, who looks, or how often.
func conclude(s sight, k known, now time.Time) judgement {
	switch {
	case k.underWay():
		return s.live(k, now)
	case k.attempt() == nil:
		return s.unknown(now)
	}
	return s.ended(k.attempt(), now)
}

// unknown is a Job of no run. It may be one that has only just begun.
func (s *sight) unknown(now time.Time) judgement {
	if left := unborn - now.Sub(s.first); left > 0 {
		return judgement{again: left}
	}
	return judgement{remove: s.removable(), orphan: true}
}

// ended is an attempt that counts no more. Its pod may linger, and then be another
// attempt's; it may be on its way out. What is over is removed at once.
func (s *sight) ended(a *tidemill.Attempt, now time.Time) judgement {
	j := judgement{where: s.where()}
	if j.where.Node != "" || j.where.Image != "" {
		j.seen = &tidemill.RunSeen{Where: j.where}
	}
	lost, done := a.Outcome == tidemill.OutcomeLost, s.allOver(now)
	if !lost {
		done = done || s.hasSaidAll()
	}
	stays := a.Ended.Add(s.lingers() + leaving)
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

// hasSaidAll reports whether the agent of an attempt that has ended has nothing
// left to do. The end is what it tells last, once the output and the log have been
// brought away: then nobody needs to wait for its node to see it leave and tell so,
// which takes a second. Of several workers others may still have something to say,
// and a pod that lingers waits for another attempt.
func (s *sight) hasSaidAll() bool {
	together := slices.ContainsFunc(s.pods, func(p *corev1.Pod) bool { return partOf(p) != "" })
	return !together && len(s.pods) > 0 && s.lingers() == 0
}

// live is an attempt under way.
func (s *sight) live(k known, now time.Time) judgement {
	j := judgement{where: s.where()}
	words := ""
	for _, p := range s.inOrder() {
		r := read(p, now)
		if e := ofPart(p, &r); e != nil {
			j.end, j.doubtful = e, r.doubtful
			return j
		}
		if words == "" && r.pending != "" {
			words, j.trouble = partly(p, r.pending), r.trouble
		}
		j.again = max(j.again, r.again)
	}
	if j.end = s.withoutPods(k, now); j.end != nil {
		return j
	}
	if len(s.pods) == 0 {
		words, j.again = s.noPods(now)
	}
	s.impatience(&j, words, now)
	if j.end == nil {
		s.say(&j, k.attempt(), words, now)
	}
	return j
}

// ofPart is the end that one pod's end is to the whole attempt. Workers but the
// first go when they have done their part, without a word.
func ofPart(p *corev1.Pod, r *reading) *ending {
	if r.end == nil || p.Status.Phase == corev1.PodSucceeded && !leads(p) {
		return nil
	}
	e := *r.end
	e.reason = partly(p, e.reason)
	return &e
}

// partly names the part of an attempt that words are of, where it has several.
func partly(p *corev1.Pod, words string) string {
	if part := partOf(p); part != "" && !leads(p) {
		return part + ": " + words
	}
	return words
}

// partOf is a worker's or a server's name, as its log lines have it.
func partOf(p *corev1.Pod) string {
	switch index := p.Annotations[batchv1.JobCompletionIndexAnnotation]; {
	case p.Labels[LabelPart] == partServer:
		return "parameter server " + index
	case index != "":
		return "worker " + index
	}
	return ""
}

// leads reports whether a pod is the one whose agent speaks for the attempt.
func leads(p *corev1.Pod) bool {
	index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
	return p.Labels[LabelPart] != partServer && (index == "" || index == "0")
}

// inOrder are the pods, the first worker's first and the servers' last.
func (s *sight) inOrder() []*corev1.Pod {
	rank := func(p *corev1.Pod) int {
		index, _ := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
		if p.Labels[LabelPart] == partServer {
			index += 1 << 20
		}
		return index
	}
	return slices.SortedFunc(slices.Values(s.pods), func(a, b *corev1.Pod) int { return rank(a) - rank(b) })
}

// withoutPods is how an attempt has ended that has lost a pod. Of one that is gone
// the last that was seen of it tells why; if nobody saw it go, the Job tells that
// it had one.
func (s *sight) withoutPods(k known, now time.Time) *ending {
	for _, job := range s.jobs {
		if c := failed(job); c != nil && c.Reason == batchv1.JobReasonDeadlineExceeded {
			return late("the deadline of its Job")
		}
	}
	if e := s.suspended(k); e != nil {
		return e
	}
	for _, p := range s.gone {
		if e := ofPart(p, &reading{end: removed(p, now)}); e != nil {
			return e
		}
	}
	if len(s.pods) > 0 {
		return nil
	}
	for _, job := range s.jobs {
		if c := failed(job); c != nil {
			return lost("deleted", "its pod was removed before anybody could see why: Job %s: %s", job.Name, says(c.Reason, c.Message))
		}
	}
	return nil
}

// suspended is an attempt whose place Kueue has given to another: it suspends the
// Job, which loses its pods. A Job that has yet to get its place had none.
func (s *sight) suspended(k known) *ending {
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

// removed is why a pod is gone.
func removed(p *corev1.Pod, now time.Time) *ending {
	if e := taken(p); e != nil {
		return e
	}
	if r := read(p, now); r.end != nil && !r.doubtful {
		return r.end
	}
	return lost("deleted", "its pod %s was deleted, and not by us", p.Name)
}

// noPods says why a Job has no pod.
func (s *sight) noPods(now time.Time) (words string, again time.Duration) {
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
		return fmt.Sprintf("its Job has no pod yet; kubectl describe job %s tells why, a quota perhaps", s.jobs[0].Name), 0
	}
	return "", 0
}

// impatience ends what has been in a trouble for too long that may pass, and does
// not.
func (s *sight) impatience(j *judgement, words string, now time.Time) {
	if j.trouble != troubleImage && j.trouble != troubleConfig {
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
		j.end = unusable("config", words)
	default:
		j.end = lost("image", "%s", words)
	}
}

// say says what the attempt waits for and where it is. Words that only count anew
// are held back for a while.
func (s *sight) say(j *judgement, a *tidemill.Attempt, words string, now time.Time) {
	j.seen = &tidemill.RunSeen{Pending: words, Where: j.where}
	if left := steady - now.Sub(s.said); words != "" && a.Pending != "" && words != a.Pending && left > 0 {
		j.seen.Pending, j.again = a.Pending, left
	}
	if len(s.pods) == 0 && words == "" { // there is nothing to be seen
		j.seen = nil
	}
	if j.trouble == troubleRoom && j.again == 0 {
		j.again = time.Second // somebody may begin to linger meanwhile
	}
}

// where is where the attempt's first worker is.
func (s *sight) where() tidemill.Where {
	for _, p := range slices.Concat(s.inOrder(), s.gone) {
		if leads(p) {
			return whereOf(p)
		}
	}
	return tidemill.Where{}
}

// allOver reports whether no agent is at work that speaks for the attempt: its pod
// has ended, cannot begin, or is gone. The others follow it. One that is said to
// begin may be at work for a while already: its kubelet tells of it later than the
// agent does. And of one that was never seen it may be that the pods are heard of
// later than the Jobs.
func (s *sight) allOver(now time.Time) bool {
	if !slices.ContainsFunc(s.pods, leads) {
		return len(s.gone) > 0 || len(s.jobs) == 0 || slices.ContainsFunc(s.jobs, over)
	}
	return !slices.ContainsFunc(s.pods, func(p *corev1.Pod) bool {
		if !leads(p) || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return false
		}
		r := read(p, now)
		return r.end == nil && r.trouble == ""
	})
}

// lingers is how long the pod waits for another attempt.
func (s *sight) lingers() time.Duration {
	for _, p := range s.pods {
		for i := range p.Spec.Containers {
			for _, v := range p.Spec.Containers[i].Env {
				if v.Name == agent.EnvLinger {
					d, _ := time.ParseDuration(v.Value) // our launcher has written it
					return d
				}
			}
		}
	}
	return 0
}

// removable are the Jobs in which nothing else lives, and which nobody removes yet.
func (s *sight) removable() (all []*batchv1.Job) {
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
