package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An attempt is where pods bear its name, whatever Job made them: a pod that
// lingers does attempts of which its Job knows nothing. And it is where a Job has
// its name, unless that one's pod does another by now.

// Has reports whether an attempt may be at work. What is seen to be there is there;
// that something is not is asked of the API server itself, for a watch may be
// behind it, and what is not there is lost. So thousands of attempts whose agents
// say nothing cost a call each when they have gone, and none while they wait.
func (l *launcher) Has(ctx context.Context, name string) (bool, error) {
	if v := l.c.view.Load(); v != nil && v.has(name) {
		return true, nil
	}
	pods, err := l.pods(ctx, LabelAttempt+"="+name)
	if err != nil {
		return false, fmt.Errorf("look for the pods of attempt %s: %w", name, err)
	}
	if slices.ContainsFunc(pods, goesOn) {
		return true, nil
	}
	job, err := l.c.clients.jobs.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the Job %s: %w", name, err)
	case over(job) || !l.owns(job):
		return false, nil
	}
	taken, err := l.takenBy(ctx, name)
	return taken == "", err
}

// Stop ends an attempt that counts no more: the Jobs of its pods, and its own.
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
	own, err := l.own(ctx, name)
	if own {
		jobs = append(jobs, name)
	}
	slices.Sort(jobs)
	for _, job := range slices.Compact(jobs) {
		err = errors.Join(err, l.remove(ctx, job))
	}
	return err
}

// own reports whether there is a Job of the attempt's name whose pod does nothing
// else by now. One of another install is not ours to end.
func (l *launcher) own(ctx context.Context, name string) (bool, error) {
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

// owns reports whether a Job is of this install.
func (l *launcher) owns(j *batchv1.Job) bool { return j.Labels[LabelInstall] == l.site.names.Install() }

// takenBy is the attempt that the pod of a Job does in place of the one that the
// Job is named after; empty if it does none.
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

// remove removes a Job with all that it owns. What is not there is removed.
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

// goesOn reports whether a pod's containers may run, now or later.
func goesOn(p corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// over reports whether a Job has ended.
func over(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
}
