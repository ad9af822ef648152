package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"tidemill.dev/config"
	"tidemill.dev/internal/runs"
)

// launcher launches attempts as Jobs.
type launcher struct {
	c    *Cluster
	site site
}

var _ runs.Launcher = (*launcher)(nil)

// Launcher launches attempts as Jobs.
func (c *Cluster) Launcher() runs.Launcher {
	return &launcher{c: c, site: site{names: c.o.Names, namespace: c.namespace, gateway: c.o.Gateway, image: c.o.Image}}
}

// Slots is as many as the config says: the scheduler knows better than anybody
// what there is room for.
func (l *launcher) Slots(p config.Pool) int { return p.Slots }

// Launch gives an attempt to a pod that waits for one, or else makes it a Job.
func (l *launcher) Launch(ctx context.Context, a runs.Attempt) error {
	if err := check(a.Plan, l.c.o.Withheld); err != nil {
		return fmt.Errorf("%w: %w", err, runs.ErrUnlaunchable)
	}
	pool, ok := l.c.o.Config().Pool(a.Plan.Pool)
	if !ok {
		return fmt.Errorf("find the pool %s: the config has it no more: write it under pools again, or name another in the recipe", a.Plan.Pool)
	}
	if l.c.o.Warm != nil && lingers(a.Plan, pool) {
		if taken, err := l.takeOver(ctx, a); taken || err != nil {
			return err
		}
	}
	job := l.site.job(a, pool)
	made, err := l.make(ctx, job)
	if err != nil {
		return sorted("make the Job", job.Name, err)
	}
	if together(a.Plan) {
		return l.complete(ctx, a, pool, made)
	}
	return nil
}

// make makes a Job, or finds the one that a Launch before this has made.
func (l *launcher) make(ctx context.Context, job *batchv1.Job) (made *batchv1.Job, err error) {
	err = patiently(ctx, func(ctx context.Context) error {
		made, err = l.c.clients.jobs.Create(ctx, job)
		if apierrors.IsAlreadyExists(err) {
			made, err = l.found(ctx, job)
		}
		return err
	})
	return made, err
}

// found is the Job that is there already. Runs' ids follow from what asked for
// them, which two installs may hear of alike.
func (l *launcher) found(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	there, err := l.c.clients.jobs.Get(ctx, job.Name)
	if err != nil {
		return nil, err
	}
	if !l.owns(there) {
		return nil, fmt.Errorf("it belongs to the install %q: give each install a namespace of its own: %w", there.Labels[LabelInstall], runs.ErrUnlaunchable)
	}
	return there, nil
}

// complete makes what belongs to an attempt of several containers. Its Job is
// there first, for it owns the rest: with it all of it goes, whoever is stopped
// halfway.
func (l *launcher) complete(ctx context.Context, a runs.Attempt, pool config.Pool, owner *batchv1.Job) error {
	service := l.site.service(a, owner)
	err := sorted("make the Service", service.Name, ensure(ctx, &l.c.clients.services, service))
	if err == nil && a.Plan.Servers != nil {
		job := l.site.serverJob(a, pool, owner)
		err = sorted("make the Job of the servers", job.Name, ensure(ctx, &l.c.clients.jobs, job))
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), callFor)
	defer cancel()
	return errors.Join(err, l.remove(undo, a.Name))
}

// ensure makes an object that may be there.
func ensure[T, L runtime.Object](ctx context.Context, k *kind[T, L], o T) error {
	return patiently(ctx, func(ctx context.Context) error {
		_, err := k.Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

const (
	callFor     = 5 * time.Second  // a call to the API server
	patience    = 20 * time.Second // with one that is away
	firstPause  = 100 * time.Millisecond
	secondPause = time.Second // and each that follows
)

// patiently does a call again while the API server cannot say yes or no. An
// attempt that the log has begun would be lost else, and one that is lost costs
// more than the wait. To make what is there already is no error, so that a call
// whose answer got lost is repeated safely.
func patiently(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for pause := firstPause; ; pause = secondPause {
		one, done := context.WithTimeout(ctx, callFor)
		err := call(one)
		done()
		if err == nil || !unanswered(err) || !sleep(ctx, pause) {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
