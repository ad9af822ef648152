package kube

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/internal/runs/warmpods"
)

// warmWorld is a launchWorld with a list of waiting pods.
type warmWorld struct {
	*launchWorld
	redis *miniredis.Miniredis
	book  *warmpods.Book
	calls chan podAnswer
}

// podAnswer is the answer to a waiting pod.
type podAnswer struct {
	warmpods.Offer
	ok bool
}

func newWarmWorld(t testing.TB, before func(w http.ResponseWriter, r *http.Request) bool) *warmWorld {
	t.Helper()
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	s := &warmWorld{redis: miniredis.RunT(t), calls: make(chan podAnswer, 10)}
	client := redis.NewClient(&redis.Options{Addr: s.redis.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	s.book = warmpods.NewBook(client, names, "kafka")
	s.launchWorld = newLaunchWorld(t, before, func(o *Options) { o.Warm = s.book })
	return s
}

const lastDone, itsPod = "before-1", "/api/v1/namespaces/ml/pods/before-1-x"

// addWaitingPod makes a pod wait that has run another attempt, until it gets an answer.
func (s *warmWorld) addWaitingPod(a scheduler.Attempt) {
	s.Helper()
	pod := warmpods.Pod{Name: lastDone + "-x", Attempt: lastDone, Pool: "gpu", Shape: warmpods.Shape(a.Plan)}
	go func() {
		o, ok, _ := s.book.Wait(s.Context(), pod, patienceOfTests)
		s.calls <- podAnswer{o, ok}
	}()
	s.waitUntil("the pod waits", func() bool {
		is, err := s.book.Idle(s.Context(), "gpu")
		return err == nil && is.Pods == 1
	})
}

func (s *warmWorld) hears() podAnswer {
	s.Helper()
	select {
	case h := <-s.calls:
		return h
	case <-time.After(patienceOfTests):
		s.Fatal("the pod hears nothing")
		return podAnswer{}
	}
}

// pod makes the waiting pod in the cluster.
func (s *warmWorld) pod(set func(*corev1.Pod)) {
	s.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: lastDone + "-x", Labels: map[string]string{
		LabelInstall: tidemill.DefaultName, LabelAttempt: lastDone, LabelRun: "before", batchv1.JobNameLabel: lastDone, "other": "stays"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if set != nil {
		set(p)
	}
	s.putObject("Pod", "/api/v1/pods", p)
}

func (s *warmWorld) jobs() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.objects {
		if name, ok := strings.CutPrefix(path, allJobs+"/"); ok {
			all = append(all, name)
		}
	}
	return all
}

// A waiting pod gets the label of the next attempt, then the attempt. No Job is made, and the
// attempt is found by its label.
func TestAPodThatWaitsGetsTheNext(t *testing.T) {
	s, a := newWarmWorld(t, nil), launchable("gpu")
	s.pod(nil)
	s.addWaitingPod(a)
	s.must(s.Launch(t.Context(), a))
	if h := s.hears(); !h.ok || h.Attempt != a.Name || h.Token != a.Token {
		t.Errorf("the pod is told %+v", h)
	}
	if jobs := s.jobs(); len(jobs) != 0 {
		t.Errorf("there are the Jobs %q", jobs)
	}
	labels := s.objects[itsPod].GetLabels()
	if labels[LabelAttempt] != a.Name || labels[LabelRun] != a.Run || labels["other"] != "stays" || s.objects[itsPod].GetAnnotations()[AnnotationKey] != a.Key {
		t.Errorf("the pod is called %v", labels)
	}
	if has, err := s.Has(t.Context(), a.Name); !has || err != nil {
		t.Errorf("the attempt is there: %t, %v", has, err)
	}
	if has, err := s.Has(t.Context(), lastDone); has || err != nil {
		t.Errorf("the attempt before is there: %t, %v", has, err)
	}
	s.must(s.Launch(t.Context(), launchableAs("gpu", 2)))
	if jobs := s.jobs(); len(jobs) != 1 {
		t.Errorf("the next one, for which no pod waits, has the Jobs %q", jobs)
	}
}

func launchableAs(pool string, number int) scheduler.Attempt {
	a := launchable(pool)
	a.Number, a.Name = number, tidemill.AttemptName(a.Run, number)
	return a
}

// A pod whose report was wrong must exit, and the attempt gets a Job.
func TestAPodThatIsNotWhatItSaid(t *testing.T) {
	for name, put := range map[string]func(s *warmWorld){
		"is gone":              func(*warmWorld) {},
		"has ended":            func(s *warmWorld) { s.pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }) },
		"does another attempt": func(s *warmWorld) { s.pod(func(p *corev1.Pod) { p.Labels[LabelAttempt] = "other-1" }) },
		"is another install's": func(s *warmWorld) { s.pod(func(p *corev1.Pod) { p.Labels[LabelInstall] = "other" }) },
		"is being removed": func(s *warmWorld) {
			s.pod(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		},
	} {
		s, a := newWarmWorld(t, nil), launchable("gpu")
		put(s)
		s.addWaitingPod(a)
		s.must(s.Launch(t.Context(), a))
		if h := s.hears(); !h.ok || h.Offer != (warmpods.Offer{}) {
			t.Errorf("one that %s is told %+v", name, h)
		}
		if jobs := s.jobs(); !slices.Equal(jobs, []string{a.Name}) {
			t.Errorf("for one that %s there are the Jobs %q", name, jobs)
		}
	}
}

// A pod that changes between the check and its new label is not used, because its state is unknown.
func TestAPodThatChangesMeanwhile(t *testing.T) {
	var s *warmWorld
	var changed atomic.Bool
	s = newWarmWorld(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch && changed.CompareAndSwap(false, true) {
			s.pod(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		}
		return false
	})
	a := launchable("gpu")
	s.pod(nil)
	s.addWaitingPod(a)
	s.must(s.Launch(t.Context(), a))
	if h := s.hears(); h.Offer != (warmpods.Offer{}) || !slices.Equal(s.jobs(), []string{a.Name}) || !changed.Load() {
		t.Errorf("the pod is told %+v, and there are the Jobs %q", h, s.jobs())
	}
}

// Without the list of waiting pods, an attempt is launched in a new pod.
func TestLaunchWithoutTheBook(t *testing.T) {
	s, a := newWarmWorld(t, nil), launchable("gpu")
	s.redis.Close()
	s.must(s.Launch(t.Context(), a))
	if !slices.Equal(s.jobs(), []string{a.Name}) {
		t.Errorf("there are the Jobs %q", s.jobs())
	}
}

// If it is unknown whether the pod got the attempt, no Job is made for it.
func TestAPodThatCannotBeTold(t *testing.T) {
	var s *warmWorld
	s = newWarmWorld(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			s.redis.SetError("LOADING Redis is away")
		}
		return false
	})
	a := launchable("gpu")
	s.pod(nil)
	s.addWaitingPod(a)
	if err := s.Launch(t.Context(), a); err == nil || errors.Is(err, scheduler.ErrUnlaunchable) || len(s.jobs()) != 0 {
		t.Errorf("got %v and the Jobs %q", err, s.jobs())
	}
	s.redis.SetError("")
}

// If it is unknown which label the pod has, the pod must exit. No Job is made, because the pod's
// end could count as the Job's end.
func TestAPodThatMayBearTheName(t *testing.T) {
	var s *warmWorld
	s = newWarmWorld(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			s.apiServer.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	a := launchable("gpu")
	s.pod(nil)
	s.addWaitingPod(a)
	if err := s.Launch(t.Context(), a); err == nil || errors.Is(err, scheduler.ErrUnlaunchable) || len(s.jobs()) != 0 {
		t.Errorf("got %v and the Jobs %q", err, s.jobs())
	}
	if h := s.hears(); !h.ok || h.Offer != (warmpods.Offer{}) {
		t.Errorf("the pod is told %+v", h)
	}
}

// A pod that got another attempt meanwhile gets its old label back.
func TestAPodThatAnotherHasTold(t *testing.T) {
	var s *warmWorld
	var told atomic.Bool
	a := launchable("gpu")
	s = newWarmWorld(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch && told.CompareAndSwap(false, true) {
			s.redis.FlushAll() // the pod waits again
			s.waitUntil("another takes it", func() bool {
				pod, ok, err := s.book.Take(r.Context(), warmpods.Shape(a.Plan))
				return err == nil && ok && s.book.Give(r.Context(), pod, warmpods.Offer{Attempt: "other-1"}) == nil
			})
		}
		return false
	})
	s.pod(nil)
	s.addWaitingPod(a)
	s.must(s.Launch(t.Context(), a))
	if h := s.hears(); h.Attempt != "other-1" {
		t.Errorf("the pod is told %+v", h)
	}
	if labels := s.objects[itsPod].GetLabels(); labels[LabelAttempt] != lastDone || labels[LabelRun] != "before" || !slices.Equal(s.jobs(), []string{a.Name}) {
		t.Errorf("the pod is called %v, and there are the Jobs %q", labels, s.jobs())
	}
}

// Attempts of several workers, and of a pool that does not linger, do not use waiting pods.
func TestWhoAsksForNoPod(t *testing.T) {
	s := newWarmWorld(t, nil)
	for _, a := range []scheduler.Attempt{launchable("default"), attemptTogether()} {
		before := s.redis.CommandCount()
		s.must(s.Launch(t.Context(), a))
		if s.redis.CommandCount() != before {
			t.Errorf("with %+v it asks", a.Plan)
		}
		s.must(s.Stop(t.Context(), a.Name))
	}
}
