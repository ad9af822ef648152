package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchingCluster returns the Cluster of a process that watches.
func (w *watchWorld) watchingCluster() *Cluster {
	w.Helper()
	f, l, c := w.process()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := c.Watch(ctx, WatchOptions{Foreman: f, Ledger: l}); err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(func() { cancel(); done.Wait() })
	return c
}

// requestCount returns the number of requests for pods and Jobs.
func (w *watchWorld) requestCount() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, call := range w.calls {
		if strings.HasPrefix(call, http.MethodGet) && (strings.Contains(call, "/pods") || strings.Contains(call, "/jobs")) {
			n++
		}
	}
	return n
}

// watchCount returns the number of watches at the server.
func (w *watchWorld) watchCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

func (w *watchWorld) seen(c *Cluster, attempt string) bool {
	v := c.view.Load()
	return v != nil && v.mayRun(attempt)
}

func (w *watchWorld) finds(c *Cluster, attempt string) bool {
	w.Helper()
	has, err := c.Launcher().Has(w.Context(), attempt)
	w.must(err)
	return has
}

// A process that watches finds an existing attempt without a call. Before it reports that an
// attempt is missing, it asks the API server, because a missing attempt is declared lost.
func TestWhatIsSeenIsNotAskedFor(t *testing.T) {
	w := newWatchWorld(t)
	c := w.watchingCluster()
	name := w.beginAttempt("bot-1")
	w.changePod(name, isRunning)
	w.waitUntil("it is seen, and nothing is left to ask for", func() bool { return w.seen(c, name) && w.watchCount() == 2 })
	before := w.requestCount()
	if !w.finds(c, name) || w.requestCount() != before {
		t.Errorf("what is seen is not there, or cost %d calls", w.requestCount()-before)
	}
	w.delete(jobPath(name))
	w.waitUntil("it is seen to be gone", func() bool { return !w.seen(c, name) })
	before = w.requestCount()
	if w.finds(c, name) || w.requestCount() == before {
		t.Errorf("what is gone is there, or nobody asked")
	}
}

// While the watch is broken, Has asks the API server, because it may miss deletions.
func TestNothingIsSeenByABrokenWatch(t *testing.T) {
	w := newWatchWorld(t)
	c := w.watchingCluster()
	name := w.beginAttempt("bot-1")
	w.changePod(name, isRunning)
	w.waitUntil("it is seen", func() bool { return w.seen(c, name) })
	w.refuseBy(func(*http.Request) int { return http.StatusForbidden })
	w.hangUp()
	w.waitUntil("nothing is seen", func() bool { return !w.seen(c, name) })
	if _, err := c.Launcher().Has(t.Context(), name); err == nil {
		t.Error("it is known although nobody answers")
	}
	w.refuseBy(nil)
	w.waitUntil("it is seen again", func() bool { return w.seen(c, name) })
}

// The view gives the same answers as the API server would.
func TestSeen(t *testing.T) {
	t.Parallel()
	ended := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	}
	owned := func(attempt string) *corev1.Pod {
		p := aPod(attempt)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "r-1", Controller: new(true)}}
		return p
	}
	job, over := []any{aJob(nil)}, []any{aJob(ended)}
	for what, c := range map[string]struct {
		pods, jobs []any
		watchEnded func(*view)
		want       bool
	}{
		"nothing":                             {},
		"a pod":                               {pods: []any{podLike(isRunning)}, want: true},
		"a pod, and Jobs are not known":       {pods: []any{podLike(isRunning)}, watchEnded: func(v *view) { v.jobs.watchEnded() }},
		"a Job, and pods are not known":       {jobs: job, watchEnded: func(v *view) { v.pods.watchEnded() }},
		"a pod that has ended":                {pods: []any{podLike(endsWith("Completed", 0))}},
		"a Job":                               {jobs: job, want: true},
		"a Job that has ended":                {jobs: over},
		"a Job whose pod does another by now": {pods: []any{owned("r-2")}, jobs: job},
		"a pod of it in an ended Job":         {pods: []any{owned("r-1")}, jobs: over, want: true},
	} {
		v := &view{gather(wordsOfPod, trimPod, func(_, _ *corev1.Pod) {}, func() {}), gather(wordsOfJob, trimJob, func(_, _ *batchv1.Job) {}, func() {})}
		if err := errors.Join(v.pods.Replace(c.pods, "1"), v.jobs.Replace(c.jobs, "1")); err != nil {
			t.Fatal(err)
		}
		if c.watchEnded != nil {
			c.watchEnded(v)
		}
		if v.mayRun("r-1") != c.want {
			t.Errorf("%s: it is seen: %t", what, !c.want)
		}
	}
}
