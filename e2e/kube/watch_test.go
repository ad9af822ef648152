//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// patience is how long a test waits for a change. It does not measure speed.
const patience = 3 * time.Minute

// seen is one Job or Pod, from its creation to its end.
type seen[T any] struct {
	Name  string
	Added time.Time // time at which the watch reported it
	Told  time.Time // time at which its deletion was requested; zero without such a request
	Gone  time.Time // time at which the object was gone; zero while it exists
	Last  T
}

// recorder records every Job and Pod of a namespace since its start. So it finds a cause's second
// Job even if that Job was soon deleted.
type recorder struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	jobs    map[types.UID]*seen[*batchv1.Job]
	pods    map[types.UID]*seen[*corev1.Pod]
	running map[types.UID]time.Time // time at which a pod's containers were first seen to run

	stop context.CancelFunc
	done sync.WaitGroup
}

// record starts a recorder, and returns when it knows all existing objects.
func record(ctx context.Context, server *apiServer, namespace string) (*recorder, error) {
	r := &recorder{changed: make(chan struct{}), jobs: map[types.UID]*seen[*batchv1.Job]{},
		pods: map[types.UID]*seen[*corev1.Pod]{}, running: map[types.UID]time.Time{}}
	jobs := cache.NewSharedInformer(cache.NewListWatchFromClient(server.batch, "jobs", namespace, fields.Everything()), &batchv1.Job{}, 0)
	pods := cache.NewSharedInformer(cache.NewListWatchFromClient(server.core, "pods", namespace, fields.Everything()), &corev1.Pod{}, 0)
	_, bad := jobs.AddEventHandler(followObjects(r, r.jobs, nil))
	_, worse := pods.AddEventHandler(followObjects(r, r.pods, r.runs))
	if err := errors.Join(bad, worse); err != nil {
		return nil, fmt.Errorf("watch %s: %w", namespace, err)
	}
	watching, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.done.Go(func() { jobs.Run(watching.Done()) })
	r.done.Go(func() { pods.Run(watching.Done()) })
	if !cache.WaitForCacheSync(ctx.Done(), jobs.HasSynced, pods.HasSynced) {
		r.close()
		return nil, fmt.Errorf("watch %s: %w", namespace, context.Cause(ctx))
	}
	return r, nil
}

func (r *recorder) close() {
	r.stop()
	r.done.Wait()
}

// object is an object of an informer.
type object interface {
	GetUID() types.UID
	GetName() string
	GetDeletionTimestamp() *metav1.Time
}

// followObjects keeps a watch's objects in a map.
func followObjects[T object](r *recorder, all map[types.UID]*seen[T], also func(T)) cache.ResourceEventHandler {
	put := func(o any) {
		if t, ok := o.(T); ok {
			r.change(func(now time.Time) {
				s := all[t.GetUID()]
				if s == nil {
					s = &seen[T]{Name: t.GetName(), Added: now}
					all[t.GetUID()] = s
				}
				if s.Told.IsZero() && t.GetDeletionTimestamp() != nil {
					s.Told = now
				}
				s.Last = t
				if also != nil {
					also(t)
				}
			})
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: put, UpdateFunc: func(_, o any) { put(o) }, DeleteFunc: func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		put(o)
		if t, ok := o.(T); ok {
			r.change(func(now time.Time) { all[t.GetUID()].Gone = now })
		}
	}}
}

// runs notes when a pod's first container ran. The lock is held.
func (r *recorder) runs(p *corev1.Pod) {
	_, known := r.running[p.UID]
	if !known && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
		r.running[p.UID] = time.Now()
	}
}

func (r *recorder) change(do func(now time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do(time.Now())
	close(r.changed)
	r.changed = make(chan struct{})
}

// allJobs returns all Jobs that ever existed and match, in order of creation.
func (r *recorder) allJobs(want func(*batchv1.Job) bool) []seen[*batchv1.Job] {
	return listed(r, r.jobs, want)
}

// allPods returns all pods that ever existed and match.
func (r *recorder) allPods(want func(*corev1.Pod) bool) []seen[*corev1.Pod] {
	return listed(r, r.pods, want)
}

// livePods returns the pods that exist and have not ended.
func (r *recorder) livePods(want func(*corev1.Pod) bool) []seen[*corev1.Pod] {
	return slices.DeleteFunc(r.allPods(want), func(s seen[*corev1.Pod]) bool { return !s.Gone.IsZero() || ended(s.Last) })
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func listed[T any](r *recorder, all map[types.UID]*seen[T], want func(T) bool) []seen[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var some []seen[T]
	for _, s := range all {
		if want(s.Last) {
			some = append(some, *s)
		}
	}
	slices.SortFunc(some, func(a, b seen[T]) int { return a.Added.Compare(b.Added) })
	return some
}

// waitUntil waits for a condition on the watches. word describes what is still missing.
func (r *recorder) waitUntil(t *testing.T, what string, met func() (word string, ok bool)) {
	t.Helper()
	await(t, what, r.next, met)
}

func (r *recorder) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}
