package kube

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/internal/runs/agent"
)

func aJob(set func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "r-1", Labels: map[string]string{LabelAttempt: "r-1"}}}
	if set != nil {
		set(j)
	}
	return j
}

func podLike(set ...func(*corev1.Pod)) *corev1.Pod {
	p := aPod("r-1")
	for _, one := range set {
		one(p)
	}
	return p
}

func worker(index string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: index} }
}

func server(index string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		worker(index)(p)
		p.Labels[LabelPart] = partServer
	}
}

func unpullable(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerRun, Image: "r/t:3", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "i/o timeout"}}}}
}

func without(secret string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerRun, Image: "r/t:3", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "secret \"" + secret + "\" not found"}}}}
	}
}

func lingering(p *corev1.Pod) {
	isRunning(p)
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: agent.EnvLinger, Value: "1m"}}
}

// besideProxy ends the container of the agent in a pod whose other container goes on.
func besideProxy(reason string, exit int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		endsWith(reason, exit)(p)
		p.Status.Phase = corev1.PodRunning
	}
}

// Judgements of attempts under way.
func TestAttemptsUnderWay(t *testing.T) {
	t.Parallel()
	underWay := func(set func(*tidemill.Attempt)) knownRun {
		run := &tidemill.Run{ID: "r", State: tidemill.RunRunning, Attempts: []tidemill.Attempt{{Number: 1}}}
		if set != nil {
			set(&run.Attempts[0])
		}
		return knownRun{run, 1}
	}
	deadline := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded}}
	}
	exhausted := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonBackoffLimitExceeded, Message: "Job has reached the specified backoff limit"}}
	}
	suspended := func(j *batchv1.Job) {
		j.Spec.Suspend = new(true)
		j.Labels[labelQueue] = "ml"
	}
	preempted := func(p *corev1.Pod) {
		isRunning(p)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: "preempting"})
	}
	type told struct {
		pending string
		end     string // part of the end's reason; empty for no end
		kind    string
		again   bool
	}
	one := func(p *corev1.Pod) attemptView {
		return attemptView{jobs: []*batchv1.Job{aJob(nil)}, pods: []*corev1.Pod{p}}
	}
	long := func(s attemptView, kind trouble) attemptView {
		s.trouble, s.stuck = kind, noon.Add(-stuckFor)
		return s
	}
	for name, c := range map[string]struct {
		s    attemptView
		k    knownRun
		want told
	}{
		"its Job was just made":                             {attemptView{jobs: []*batchv1.Job{aJob(nil)}, first: noon}, underWay(nil), told{again: true}},
		"its Job gets no pod":                               {attemptView{jobs: []*batchv1.Job{aJob(nil)}, first: noon.Add(-podless)}, underWay(nil), told{pending: "its Job has no pod yet; kubectl describe job r-1 shows why, a quota perhaps"}},
		"it waits in a queue":                               {attemptView{jobs: []*batchv1.Job{aJob(suspended)}}, underWay(nil), told{pending: "it waits for its place in queue ml"}},
		"its queue took its place":                          {attemptView{jobs: []*batchv1.Job{aJob(suspended)}}, underWay(func(a *tidemill.Attempt) { a.Node = "gpu-1" }), told{kind: "preempted", end: "its queue has given its place to another"}},
		"so, and its pod was seen to go":                    {attemptView{jobs: []*batchv1.Job{aJob(suspended)}, gone: []*corev1.Pod{podLike(isRunning)}}, underWay(nil), told{kind: "preempted", end: "its queue has given its place to another"}},
		"it does not fit":                                   {one(podLike(unschedulable)), underWay(nil), told{pending: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu", again: true}},
		"it runs":                                           {one(podLike(isRunning)), underWay(nil), told{}},
		"its pod was deleted":                               {attemptView{jobs: []*batchv1.Job{aJob(exhausted)}, gone: []*corev1.Pod{podLike(isRunning)}}, underWay(nil), told{kind: "deleted", end: "its pod r-1-x was deleted, and not by us"}},
		"its pod was preempted, and went":                   {attemptView{jobs: []*batchv1.Job{aJob(exhausted)}, gone: []*corev1.Pod{podLike(preempted)}}, underWay(nil), told{kind: "preempted", end: "preempted on node gpu-1: preempting"}},
		"nobody saw its pod go":                             {attemptView{jobs: []*batchv1.Job{aJob(exhausted)}}, underWay(nil), told{kind: "deleted", end: "removed before a controller could see why"}},
		"it is late":                                        {attemptView{jobs: []*batchv1.Job{aJob(deadline)}}, underWay(nil), told{kind: "deadline", end: "it did not end within"}},
		"its image does not come":                           {one(podLike(unpullable)), underWay(nil), told{pending: "image r/t:3 cannot be pulled: i/o timeout", again: true}},
		"nor for long":                                      {long(one(podLike(unpullable)), troubleImage), underWay(nil), told{kind: "image", end: "image r/t:3 cannot be pulled: i/o timeout"}},
		"it lacks a Secret":                                 {one(podLike(without("hf"))), underWay(nil), told{pending: "its container cannot be made: secret \"hf\" not found", again: true}},
		"nobody makes it":                                   {long(one(podLike(without("hf"))), troubleConfig), underWay(nil), told{kind: "config", end: "secret \"hf\" not found"}},
		"its launcher made no Secret for its token":         {long(one(podLike(without("tidemill-attempt-r-1"))), troubleToken), underWay(nil), told{kind: "start", end: "secret \"tidemill-attempt-r-1\" not found"}},
		"another trouble is not as old":                     {long(one(podLike(without("hf"))), troubleImage), underWay(nil), told{pending: "its container cannot be made: secret \"hf\" not found", again: true}},
		"a worker has done its part":                        {attemptView{pods: []*corev1.Pod{podLike(worker("0"), isRunning), podLike(worker("1"), endsWith("Completed", 0))}}, underWay(nil), told{}},
		"its agent was killed, and a proxy goes on":         {one(podLike(besideProxy("OOMKilled", 137))), underWay(nil), told{kind: "out-of-memory", end: "the command was killed for memory"}},
		"its agent has left, and a proxy goes on":           {one(podLike(besideProxy("Completed", 0))), underWay(nil), told{kind: "silent", end: "exit status 0"}},
		"a worker has done its part, and a proxy goes on":   {attemptView{pods: []*corev1.Pod{podLike(worker("0"), isRunning), podLike(worker("1"), besideProxy("Completed", 0))}}, underWay(nil), told{}},
		"a worker was killed":                               {attemptView{pods: []*corev1.Pod{podLike(worker("1"), endsWith("OOMKilled", 137)), podLike(worker("0"), isRunning)}}, underWay(nil), told{kind: "out-of-memory", end: "worker 1: the command was killed for memory"}},
		"one is gone that had done its part, and the first": {attemptView{pods: []*corev1.Pod{podLike(worker("2"), isRunning)}, gone: []*corev1.Pod{podLike(worker("1"), endsWith("Completed", 0)), podLike(worker("0"), isRunning)}}, underWay(nil), told{kind: "deleted", end: "was deleted, and not by us"}},
		"a server is gone":                                  {attemptView{pods: []*corev1.Pod{podLike(worker("0"), isRunning)}, gone: []*corev1.Pod{podLike(server("0"), isRunning)}}, underWay(nil), told{kind: "deleted", end: "parameter server 0: its pod"}},
		"a server waits":                                    {attemptView{pods: []*corev1.Pod{podLike(server("0"), unschedulable), podLike(worker("0"), isRunning)}}, underWay(nil), told{pending: "parameter server 0: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu", again: true}},
		"the scheduler counts anew":                         {attemptView{pods: []*corev1.Pod{podLike(unschedulable)}, said: noon}, underWay(func(a *tidemill.Attempt) { a.Pending = "0/2 nodes" }), told{pending: "0/2 nodes", again: true}},
	} {
		j := conclude(c.s, c.k, noon)
		got := told{again: j.again > 0}
		if j.seen != nil {
			got.pending = j.seen.Pending
		}
		if j.end != nil {
			got.kind, got.end = j.end.kind, j.end.reason
		}
		if !strings.Contains(got.end, c.want.end) || (got.end == "") != (c.want.end == "") {
			t.Errorf("%s: it has ended: %q, want %q", name, got.end, c.want.end)
		}
		if c.want.end = got.end; got != c.want || len(j.remove) > 0 {
			t.Errorf("%s:\n%+v, want\n%+v; removed are %d", name, got, c.want, len(j.remove))
		}
	}
}

// Judgements of attempts that have ended: only unused Jobs are removed.
func TestAttemptsThatAreOver(t *testing.T) {
	t.Parallel()
	ended := func(o tidemill.Outcome, ago time.Duration) knownRun {
		return knownRun{&tidemill.Run{ID: "r", State: tidemill.RunSucceeded, Attempts: []tidemill.Attempt{{Number: 1, Ended: noon.Add(-ago), Outcome: o}}}, 1}
	}
	with := func(pods ...*corev1.Pod) attemptView { return attemptView{jobs: []*batchv1.Job{aJob(nil)}, pods: pods} }
	taken := with()
	taken.shared = map[string]bool{"r-1": true}
	leaves := with(podLike(isRunning))
	leaves.jobs[0].DeletionTimestamp = &metav1.Time{Time: noon}
	known1 := attemptView{jobs: []*batchv1.Job{aJob(nil)}, first: noon.Add(-time.Second)}
	forgotten := attemptView{jobs: []*batchv1.Job{aJob(nil)}, first: noon.Add(-unborn)}
	for name, c := range map[string]struct {
		s              attemptView
		k              knownRun
		remove, orphan bool
		again          bool
	}{
		"its pod has ended":                {with(podLike(endsWith("Completed", 0))), ended("succeeded", 0), true, false, false},
		"its pod is on its way out":        {with(podLike(isRunning)), ended("succeeded", 0), true, false, false},
		"one of several is on its way out": {with(podLike(worker("0"), isRunning)), ended("succeeded", time.Second), false, false, true},
		"one of several does not go":       {with(podLike(worker("0"), isRunning)), ended("succeeded", leaving), true, true, false},
		"its pod lingers":                  {with(podLike(lingering)), ended("succeeded", 50*time.Second), false, false, true},
		"its pod has lingered for long":    {with(podLike(lingering)), ended("failed", time.Minute+leaving), true, true, false},
		"it was lost, and its pod is well": {with(podLike(isRunning)), ended("lost", 0), true, true, false},
		"its pod does another attempt":     {taken, ended("succeeded", time.Hour), false, true, false},
		"its pod was not heard of yet":     {with(), ended("succeeded", 0), false, false, true},
		"its pod never began":              {with(podLike(unpullable)), ended("failed", 0), true, false, false},
		"it is being removed":              {leaves, ended("succeeded", time.Hour), false, false, false},
		"a worker is left":                 {with(podLike(worker("0"), endsWith("Completed", 0)), podLike(worker("1"), isRunning)), ended("succeeded", 0), true, false, false},
		"the first worker is left":         {with(podLike(worker("1"), endsWith("Error", 1)), podLike(worker("0"), isRunning)), ended("failed", 0), false, false, true},
		"nobody knows of it yet":           {known1, knownRun{number: 1}, false, false, true},
		"nobody knows of it":               {forgotten, knownRun{number: 1}, true, true, false},
		"an attempt that has not begun":    {forgotten, knownRun{&tidemill.Run{ID: "r"}, 1}, true, true, false},
	} {
		j := conclude(c.s, c.k, noon)
		if (len(j.remove) > 0) != c.remove || j.orphan != c.orphan || (j.again > 0) != c.again || j.end != nil {
			t.Errorf("%s: %d are removed, orphans: %t, again in %s, end %+v", name, len(j.remove), j.orphan, j.again, j.end)
		}
	}
}
