package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/scheduler"
)

// launcher launches attempts as Jobs.
type launcher struct {
	c    *Cluster
	site site
}

var _ scheduler.Launcher = (*launcher)(nil)

// Launcher returns a launcher that starts attempts as Jobs.
func (c *Cluster) Launcher() scheduler.Launcher {
	return &launcher{c: c, site: site{names: c.o.Names, namespace: c.runs, gateway: c.o.Gateway, image: c.o.Image}}
}

// Slots returns the number in the config. If it is 0, only the cluster's scheduler limits the pods.
func (l *launcher) Slots(p config.Pool) int { return p.Slots }

// Launch gives an attempt to a waiting pod, or makes a Job for it.
func (l *launcher) Launch(ctx context.Context, a scheduler.Attempt) error {
	if err := check(a.Plan, l.c.o.Withheld); err != nil {
		return fmt.Errorf("%w: %w", err, scheduler.ErrUnlaunchable)
	}
	pool, ok := l.c.o.Config().Pool(a.Plan.Pool)
	if !ok {
		return fmt.Errorf("find the pool %s: it is no longer in the config: add it under pools, or name another in the recipe", a.Plan.Pool)
	}
	if l.c.o.Warm != nil && mayLinger(a.Plan, pool) {
		if taken, err := l.takeOver(ctx, a); taken || err != nil {
			return err
		}
	}
	job := l.site.job(a, pool)
	made, err := l.createJob(ctx, job)
	if err != nil {
		return withAdvice("make the Job", job.Name, err)
	}
	return l.createParts(ctx, a, pool, made)
}

// createJob makes a Job, or returns the Job of an earlier Launch.
func (l *launcher) createJob(ctx context.Context, job *batchv1.Job) (made *batchv1.Job, err error) {
	err = retryCall(ctx, func(ctx context.Context) error {
		made, err = l.c.clients.jobs.Create(ctx, job)
		if apierrors.IsAlreadyExists(err) {
			made, err = l.existingJob(ctx, job)
		}
		return err
	})
	return made, err
}

// existingJob returns the existing Job. It may belong to another install, because ids of runs derive from
// their causes, and two installs may receive the same event.
func (l *launcher) existingJob(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	there, err := l.c.clients.jobs.Get(ctx, job.Name)
	if err != nil {
		return nil, err
	}
	if !l.owns(there) {
		return nil, fmt.Errorf("it belongs to the install %q: give each install its own namespace: %w", there.Labels[LabelInstall], scheduler.ErrUnlaunchable)
	}
	return there, nil
}

// createParts makes the Secret with the attempt's token, and for several containers also their
// Service, their NetworkPolicy and the Job of servers. The attempt's Job exists before them and
// owns them. So deleting that Job removes all objects, even if a launch stopped halfway. The pod
// starts before its Secret exists, but its main container needs the Secret only after the agent's
// binary has been copied.
func (l *launcher) createParts(ctx context.Context, a scheduler.Attempt, pool config.Pool, owner *batchv1.Job) error {
	secret := l.site.secret(a, owner)
	err := withAdvice("make the Secret", secret.Name, ensure(ctx, &l.c.clients.secrets, secret))
	if err == nil && hasSeveralPods(a.Plan) {
		err = l.createMeeting(ctx, a, pool, owner)
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), callFor)
	defer cancel()
	return errors.Join(err, l.remove(undo, a.Name))
}

// createMeeting makes the objects through which several containers of an attempt meet.
func (l *launcher) createMeeting(ctx context.Context, a scheduler.Attempt, pool config.Pool, owner *batchv1.Job) error {
	policy := l.site.policy(a, owner)
	err := withAdvice("make the NetworkPolicy", policy.Name, ensure(ctx, &l.c.clients.policies, policy))
	if err == nil {
		service := l.site.service(a, owner)
		err = withAdvice("make the Service", service.Name, ensure(ctx, &l.c.clients.services, service))
	}
	if err == nil && a.Plan.Servers != nil {
		job := l.site.serverJob(a, pool, owner)
		err = withAdvice("make the Job of the servers", job.Name, ensure(ctx, &l.c.clients.jobs, job))
	}
	return err
}

// ensure makes an object unless it exists.
func ensure[T, L runtime.Object](ctx context.Context, k *kind[T, L], o T) error {
	return retryCall(ctx, func(ctx context.Context) error {
		_, err := k.Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

const (
	callFor    = 5 * time.Second  // timeout of a call to the API server
	patience   = 20 * time.Second // time for which calls are repeated during an outage
	firstPause = 100 * time.Millisecond
	laterPause = time.Second // longest pause between calls
)

// retryCall repeats a call until the API server accepts or refuses it. Without retries, a started
// attempt would be lost, which costs more than the wait. The calls treat an existing object as
// success, so a call can be repeated if its answer was lost.
func retryCall(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	backoff := retry.Backoff{First: firstPause, Cap: laterPause, Factor: int(laterPause / firstPause)}
	for {
		one, done := context.WithTimeout(ctx, callFor)
		err := call(one)
		done()
		again := isUndecided(err) || apierrors.IsConflict(err) // a conflict: two objects counted against one quota at the same moment
		if err == nil || !again || backoff.Sleep(ctx) != nil {
			return err
		}
	}
}

// An attempt exists if a pod has its label, in any Job: a pod that lingers runs attempts that its
// Job does not know. It also exists if a Job has its name, unless the pod of that Job has another
// attempt's label.

// Has reports whether an attempt may be running. If the watch shows the attempt, Has makes no call.
// Otherwise Has asks the API server, because a watch may lag and a missing attempt is declared
// lost. So silent attempts cost no calls while they wait, and a few calls each after they end.
func (l *launcher) Has(ctx context.Context, name string) (bool, error) {
	if v := l.c.view.Load(); v != nil && v.mayRun(name) {
		return true, nil
	}
	pods, err := l.pods(ctx, LabelAttempt+"="+name)
	if err != nil {
		return false, fmt.Errorf("look for the pods of attempt %s: %w", name, err)
	}
	if slices.ContainsFunc(pods, notOver) {
		return true, nil
	}
	job, err := l.c.clients.jobs.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the Job %s: %w", name, err)
	case hasEnded(job) || !l.owns(job):
		return false, nil
	}
	taken, err := l.takenBy(ctx, name)
	return taken == "", err
}

// Stop ends an attempt: it deletes the Jobs of its pods and its own Job.
func (l *launcher) Stop(ctx context.Context, name string) error {
	pods, err := l.pods(ctx, LabelAttempt+"="+name)
	if err != nil {
		return fmt.Errorf("look for the pods of attempt %s: %w", name, err)
	}
	jobs := []string{}
	for i := range pods {
		if job := pods[i].Labels[batchv1.JobNameLabel]; job != "" && job != serversName(name) {
			jobs = append(jobs, job)
		}
	}
	own, err := l.ownsAttempt(ctx, name)
	if own {
		jobs = append(jobs, name)
	}
	slices.Sort(jobs)
	for _, job := range slices.Compact(jobs) {
		err = errors.Join(err, l.remove(ctx, job))
	}
	return err
}

// ownsAttempt reports whether a Job has the attempt's name, belongs to this install, and has no pod
// that runs another attempt.
func (l *launcher) ownsAttempt(ctx context.Context, name string) (bool, error) {
	job, err := l.c.clients.jobs.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the Job %s: %w", name, err)
	case !l.owns(job):
		return false, nil
	}
	taken, err := l.takenBy(ctx, name)
	return err == nil && taken == "", err
}

// owns reports whether a Job belongs to this install.
func (l *launcher) owns(j *batchv1.Job) bool { return j.Labels[LabelInstall] == l.site.names.Install() }

// takenBy returns the attempt that the pod of a Job runs now, if the Job's name is that of another
// attempt; else "".
func (l *launcher) takenBy(ctx context.Context, name string) (string, error) {
	pods, err := l.pods(ctx, batchv1.JobNameLabel+"="+name)
	if err != nil {
		return "", fmt.Errorf("look for the pods of the Job %s: %w", name, err)
	}
	for i := range pods {
		if now := pods[i].Labels[LabelAttempt]; now != name {
			return now, nil
		}
	}
	return "", nil
}

// remove deletes a Job and the objects that it owns. A missing Job is no error.
func (l *launcher) remove(ctx context.Context, job string) error {
	err := l.c.clients.jobs.Delete(ctx, job, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the Job %s: %w", job, err)
	}
	return nil
}

func (l *launcher) pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := l.c.clients.pods.List(ctx, metav1.ListOptions{LabelSelector: LabelInstall + "=" + l.site.names.Install() + "," + selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// notOver reports whether a pod has not ended.
func notOver(p corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// hasEnded reports whether a Job has ended.
func hasEnded(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
}

// view holds the pods and Jobs that this process watches.
type view struct {
	pods *objectIndex[*corev1.Pod]
	jobs *objectIndex[*batchv1.Job]
}

// mayRun reports whether the watch shows that an attempt may be running. It returns false while a
// watch is broken, because deletions would be missed.
func (v *view) mayRun(name string) bool {
	if !v.pods.whole.Load() || !v.jobs.whole.Load() {
		return false
	}
	if slices.ContainsFunc(v.pods.withWord(ofAttempt+name), func(p *corev1.Pod) bool { return notOver(*p) }) {
		return true
	}
	job, there := v.jobs.get(name)
	return there && !hasEnded(job) && !slices.ContainsFunc(v.pods.withWord(inJob+name), func(p *corev1.Pod) bool { return p.Labels[LabelAttempt] != name })
}

// verdict is the meaning of an API server's error for an attempt.
type verdict struct {
	hopeless bool   // the next attempt would get the same error
	next     string // advice to the user
}

// judge classifies an error. An error that a person can fix while the run waits is not hopeless,
// because a failed run must be requested again.
func judge(err error) verdict {
	text := err.Error()
	switch {
	case errors.Is(err, scheduler.ErrUnlaunchable):
		return verdict{hopeless: true}
	case apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota"):
		return verdict{next: "it is tried again; give the namespace more quota, or the pool fewer slots"}
	case apierrors.IsForbidden(err) && strings.Contains(text, "is being terminated"):
		return verdict{next: "the namespace is being removed"}
	case strings.Contains(text, "denied the request") || strings.Contains(text, "ValidatingAdmissionPolicy"):
		return verdict{true, "a rule of the cluster forbids it: change the recipe, or the rule"}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return verdict{true, "correct the recipe or the pool"}
	case apierrors.IsRequestEntityTooLargeError(err):
		return verdict{true, "make what the recipe says shorter"}
	case apierrors.IsForbidden(err):
		return verdict{next: "the service account may not do it: bind its role again, as the chart does (docs/cluster.md, Rights)"}
	case apierrors.IsUnauthorized(err):
		return verdict{next: "the API server does not know us: look at the service account's token, or the kubeconfig's"}
	case apierrors.IsNotFound(err):
		return verdict{next: "the namespace is not there: make it, or name another with --runs-namespace (in the chart runs.namespace)"}
	}
	return verdict{next: "it is tried again; look whether the API server is well"}
}

// withAdvice adds the advice to an error, and ErrUnlaunchable if it is hopeless.
func withAdvice(what, name string, err error) error {
	if err == nil {
		return nil
	}
	v := judge(err)
	switch {
	case v.next == "":
		return fmt.Errorf("%s %s: %w", what, name, err)
	case v.hopeless:
		return fmt.Errorf("%s %s: %w: %s: %w", what, name, err, v.next, scheduler.ErrUnlaunchable)
	}
	return fmt.Errorf("%s %s: %w: %s", what, name, err, v.next)
}

// isUndecided reports whether a failed call may have had an effect: the API server is down or
// overloaded.
func isUndecided(err error) bool {
	if errors.Is(err, scheduler.ErrUnlaunchable) {
		return false
	}
	if said := apierrors.APIStatus(nil); !errors.As(err, &said) {
		return true // not an answer of the API server
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err)
}
