package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/runs/scheduler"
)

// watchWorld is a cluster with Kafka, Redis and controllers.
type watchWorld struct {
	*apiServer
	servers *embedded.Servers
	names   tidemill.Names
	config  *config.Config
	foreman *scheduler.Foreman
	ledger  *ledger.Ledger
	log     *slog.Logger
}

func newWatchWorld(t *testing.T) *watchWorld {
	t.Helper()
	w := &watchWorld{apiServer: startAPIServer(t), log: slog.New(slog.DiscardHandler)}
	if os.Getenv("KUBE_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w.config = &config.Config{Pools: []config.Pool{{Name: "gpu", Slots: 9, Resource: "nvidia.com/gpu"}}, Recipes: []config.Recipe{{Name: "intent", Key: config.KeySubject,
		Run: config.Job{Image: "registry.example/trainer:3", Command: []string{"train"}, Pool: "gpu", Memory: 512 << 20, Attempts: 1}}}}
	var err error
	w.servers, err = embedded.Start(t.Context(), embedded.Options{})
	w.must(err)
	t.Cleanup(func() { _ = w.servers.Close() })
	w.names, err = tidemill.NewNames("")
	w.must(err)
	b := w.dial()
	_, err = b.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 3, KeyOrdered: true}}, broker.EnsureOptions{})
	w.must(err)
	w.foreman, w.ledger, _ = w.process()
	return w
}

func (w *watchWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *watchWorld) dial() *broker.Broker {
	w.Helper()
	b, err := broker.Open(w.Context(), broker.Options{Addr: w.servers.Kafka(), Names: w.names, Logger: w.log})
	w.must(err)
	w.Cleanup(func() { _ = b.Close() })
	return b
}

// process returns a foreman, a ledger and a Cluster of a new process.
func (w *watchWorld) process() (*scheduler.Foreman, *ledger.Ledger, *Cluster) {
	w.Helper()
	b := w.dial()
	p, err := b.Producer(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() { _ = p.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis(), ReadTimeout: time.Minute})
	w.Cleanup(func() { _ = client.Close() })
	l, err := ledger.Open(w.Context(), ledger.Options{Broker: b, Producer: p, Names: w.names, Redis: client, Kafka: "test", Logger: w.log})
	w.must(err)
	w.Cleanup(func() { _ = l.Close(context.Background()) })
	tokens, err := scheduler.NewTokens(make([]byte, scheduler.SecretSize))
	w.must(err)
	s, err := store.Open(w.Context(), store.Options{URL: w.TempDir()})
	w.must(err)
	w.Cleanup(func() { _ = s.Close() })
	c := w.open(func(o *Options) {
		o.Names, o.Logger, o.Config = w.names, w.log, func() *config.Config { return w.config }
	})
	f, err := scheduler.New(scheduler.Options{Ledger: l, Store: s, Names: w.names, Config: func() *config.Config { return w.config }, Launcher: c.Launcher(), Tokens: tokens, Logger: w.log})
	w.must(err)
	w.must(l.CaughtUp(w.Context()))
	return f, l, c
}

// controller watches until the test ends or it is stopped.
func (w *watchWorld) controller() (stop func()) {
	w.Helper()
	f, l, c := w.process()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := c.Watch(ctx, WatchOptions{Foreman: f, Ledger: l}); err != nil {
			w.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	w.Cleanup(stop)
	return stop
}

// beginAttempt requests a run, waits for its Job, and makes a pod for it.
func (w *watchWorld) beginAttempt(key string) (attempt string) {
	w.Helper()
	a, err := w.foreman.Request(w.Context(), scheduler.Request{Recipe: "intent", Key: key, Cause: tidemill.Cause{Source: "/s", ID: key},
		Events: []json.RawMessage{json.RawMessage(`{"specversion":"1.0","id":"1","source":"/s","type":"new-data","subject":"k"}`)}})
	w.must(err)
	name := tidemill.AttemptName(a.Run, 1)
	w.waitUntil("its Job is there", func() bool { return w.hasObject(jobPath(name)) })
	w.changePod(name, nil)
	return name
}

func jobPath(name string) string { return "/apis/batch/v1/namespaces/ml/jobs/" + name }
func podPath(name string) string { return "/api/v1/namespaces/ml/pods/" + name + "-x" }

// changePod changes the attempt's pod, as its kubelet would.
func (w *watchWorld) changePod(name string, set func(*corev1.Pod)) {
	w.Helper()
	w.mu.Lock()
	job := w.objects[jobPath(name)]
	w.mu.Unlock()
	p := aPod(name)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: job.GetUID(), Controller: new(true)}}
	if set != nil {
		set(p)
	}
	w.putObject("Pod", "/api/v1/pods", p)
}

func (w *watchWorld) run(attempt string) *tidemill.Run {
	w.Helper()
	id, _, _ := tidemill.CutAttemptName(attempt)
	r, err := w.ledger.Run(w.Context(), id)
	if err != nil {
		w.must(w.ledger.CaughtUp(w.Context()))
		r, err = w.ledger.Run(w.Context(), id)
	}
	w.must(err)
	return r
}

// aPod returns a new pod of the launcher's Job.
func aPod(attempt string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: attempt + "-x", Namespace: "ml", UID: types.UID(attempt),
		Labels: map[string]string{LabelInstall: "tidemill", LabelAttempt: attempt, LabelPool: "gpu", LabelPart: partWorker}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: containerRun, Image: "registry.example/trainer:3",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
}

func unschedulable(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."}}
}

func isRunning(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.Phase = "gpu-1", corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerRun, Ready: true, ImageID: "registry.example/trainer@sha256:abc", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func endsWith(reason string, exit int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		isRunning(p)
		p.Status.Phase = corev1.PodFailed
		if exit == 0 {
			p.Status.Phase = corev1.PodSucceeded
		}
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: exit}}
	}
}

func TestWhatNoAgentTellsIsTold(t *testing.T) {
	w := newWatchWorld(t)
	w.controller()
	w.controller()
	name := w.beginAttempt("bot-1")
	w.changePod(name, unschedulable)
	w.waitUntil("it says what it waits for", func() bool {
		a := w.run(name).Attempt()
		return a != nil && a.Pending == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
	})
	w.changePod(name, isRunning)
	w.waitUntil("it says where it is", func() bool {
		a := w.run(name).Attempt()
		return a.Pending == "" && a.Node == "gpu-1" && a.Image == "sha256:abc"
	})
	w.changePod(name, endsWith("OOMKilled", 137))
	w.waitUntil("it has failed", func() bool { return w.run(name).State == tidemill.RunFailed })
	if r := w.run(name); !strings.Contains(r.Reason, "its limit is 512Mi (run.memory)") || len(r.Attempts) != 1 || r.Result.Signal != "SIGKILL" {
		t.Errorf("the run is %+v", r)
	}
	w.waitUntil("its Job is gone", func() bool { return !w.hasObject(jobPath(name)) && !w.hasObject(podPath(name)) })
}

func TestWhatAnAgentHasToldIsRemoved(t *testing.T) {
	w := newWatchWorld(t)
	w.controller()
	name := w.beginAttempt("bot-1")
	w.changePod(name, isRunning)
	_, err := w.foreman.Finish(w.Context(), w.run(name), 1, tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded})
	w.must(err) // the kubelet has not reported the end of the pod
	w.waitUntil("its Job is gone", func() bool { return !w.hasObject(jobPath(name)) && !w.hasObject(podPath(name)) })
	if r := w.run(name); r.State != tidemill.RunSucceeded || len(r.Attempts) != 1 {
		t.Errorf("the run is %+v", r)
	}
}

// Changes during an outage of the API server are found after the outage. Changes while no
// controller runs are found by the next controller.
func TestNothingIsMissed(t *testing.T) {
	w := newWatchWorld(t)
	stop := w.controller()
	first, second, third := w.beginAttempt("bot-1"), w.beginAttempt("bot-2"), w.beginAttempt("bot-3")
	for _, name := range []string{first, second, third} {
		w.changePod(name, isRunning)
		w.waitUntil("it is known where it is", func() bool { return w.run(name).Attempt().Node == "gpu-1" })
	}
	w.mu.Lock()
	w.refuse = func(*http.Request) int { return http.StatusServiceUnavailable }
	w.mu.Unlock()
	w.hangUp()
	w.delete(podPath(first))
	w.changePod(second, endsWith("Error", 1))
	w.mu.Lock()
	w.refuse = nil
	w.mu.Unlock()
	for name, says := range map[string]string{first: "was deleted, and not by us", second: "left without reporting its end (exit status 1)"} {
		w.waitUntil("it is lost", func() bool { return w.run(name).Attempts[0].Outcome == tidemill.OutcomeLost })
		if a := w.run(name).Attempts[0]; !strings.Contains(a.Reason, says) {
			t.Errorf("of %s it says %q", name, a.Reason)
		}
	}
	stop()
	w.changePod(third, func(p *corev1.Pod) {
		isRunning(p)
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi."
	})
	w.controller()
	w.waitUntil("it was evicted", func() bool { return w.run(third).Attempts[0].Outcome == tidemill.OutcomeLost })
	if a := w.run(third).Attempts[0]; a.Reason != "it was evicted from node gpu-1: The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi." {
		t.Errorf("it says %q", a.Reason)
	}
}

func TestOrphansAreRemovedAndOthersLeftAlone(t *testing.T) {
	w := newWatchWorld(t)
	job := func(attempt, install string) {
		w.putObject("Job", "/apis/batch/v1/jobs", &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: attempt, Labels: map[string]string{LabelInstall: install, LabelAttempt: attempt}}})
	}
	job("nobodys-1", "tidemill")
	job("theirs-1", "other")
	f, l, c := w.process()
	k := newWatcher(c, WatchOptions{Foreman: f, Ledger: l})
	w.must(k.jobs.Replace([]any{&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "nobodys-1", Labels: map[string]string{LabelAttempt: "nobodys-1"}}}}, "1"))
	began := k.now()
	again, err := k.lookAt(w.Context(), "nobodys-1")
	if w.must(err); again <= 0 || !w.hasObject(jobPath("nobodys-1")) {
		t.Errorf("it is looked at again in %s; it is there: %t", again, w.hasObject(jobPath("nobodys-1")))
	}
	k.now = func() time.Time { return began.Add(unborn + time.Second) }
	job2, _ := k.jobs.get("nobodys-1")
	w.mu.Lock()
	job2.UID = w.objects[jobPath("nobodys-1")].GetUID()
	w.mu.Unlock()
	if _, err = k.lookAt(w.Context(), "nobodys-1"); err != nil || w.hasObject(jobPath("nobodys-1")) || !w.hasObject(jobPath("theirs-1")) {
		t.Errorf("the orphan is there: %t, another's: %t, %v", w.hasObject(jobPath("nobodys-1")), w.hasObject(jobPath("theirs-1")), err)
	}
}

// The time of a beat is that of a gateway, whose clock may be ahead or behind.
func TestAGatewayWithAnotherClock(t *testing.T) {
	w := newWatchWorld(t)
	_, _, c := w.process()
	k := newWatcher(c, WatchOptions{Foreman: w.foreman, Ledger: w.ledger})
	now := time.Now()
	k.now = func() time.Time { return now }
	for key, skew := range map[string]time.Duration{"behind": -time.Hour, "right": 0, "ahead": time.Hour} {
		name := w.beginAttempt(key)
		run, number, _ := tidemill.CutAttemptName(name)
		hears := func(later time.Duration, beats, want bool) {
			t.Helper()
			now = now.Add(later)
			if beats {
				w.must(w.ledger.Beat(w.Context(), run, number, "", now.Add(skew)))
			}
			end, err := k.silentEnd(w.Context(), name, []doubt{{name, lost("node-lost", "x")}})
			if w.must(err); (end == nil) != want {
				t.Errorf("the gateway's clock is %s: after %s, with a beat %t, the agent is heard: %t", key, later, beats, end == nil)
			}
		}
		hears(0, false, true) // a flush of Redis may just have removed its beats
		hears(silence, false, false)
		hears(time.Second, true, true)
		hears(silence-time.Second, false, true)
		hears(2*time.Second, false, false)
		hears(0, true, true)
	}
}

// A flush of Redis removes the beats. The agents still have their usual time to send another one.
func TestAFlushRemovesTheBeatsOfAnAttemptInDoubt(t *testing.T) {
	w := newWatchWorld(t)
	_, _, c := w.process()
	k := newWatcher(c, WatchOptions{Foreman: w.foreman, Ledger: w.ledger})
	now := time.Now()
	k.now = func() time.Time { return now }
	name := w.beginAttempt("bot-1")
	run, number, _ := tidemill.CutAttemptName(name)
	doubts := []doubt{{name, lost("node-lost", "x")}, {name + "/w1", lost("node-lost", "x")}}
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis()})
	defer client.Close()
	hears := func(later time.Duration, want bool) {
		t.Helper()
		now = now.Add(later)
		var end *ending
		w.waitUntil("the ledger has caught up", func() bool {
			var err error
			end, err = k.silentEnd(w.Context(), name, doubts)
			return err == nil
		})
		if (end == nil) != want {
			t.Errorf("after %s more, the agents are heard: %t", later, end == nil)
		}
	}
	for _, part := range []string{"", "w1"} {
		w.must(w.ledger.Beat(w.Context(), run, number, part, now))
	}
	hears(0, true)
	hears(silence-time.Second, true)
	w.must(client.FlushAll(w.Context()).Err())
	hears(2*time.Second, true)
	hears(silence-time.Second, true)
	hears(2*time.Second, false)

	// While Redis or the ledger is down, no agent can send a beat.
	for _, part := range []string{"", "w1"} {
		w.must(w.ledger.Beat(w.Context(), run, number, part, now))
	}
	hears(0, true)
	now = now.Add(silence)
	down, cancel := context.WithCancel(w.Context())
	cancel()
	if _, err := k.silentEnd(down, name, doubts); err == nil {
		t.Fatal("the ledger answers")
	}
	hears(0, true)
	hears(silence, false)
	hears(0, false)
	if _, err := k.lookAt(down, name); err == nil {
		t.Fatal("the ledger answers")
	}
	hears(0, true)
	hears(silence, false)
}

// A look at an attempt in doubt reads the beats of its own agents only, because thousands may be in doubt when a zone is lost.
// So it also removes none of an ended attempt.
func TestALookReadsNoBeatsOfOthers(t *testing.T) {
	w := newWatchWorld(t)
	_, _, c := w.process()
	k := newWatcher(c, WatchOptions{Foreman: w.foreman, Ledger: w.ledger})
	w.must(w.ledger.Beat(w.Context(), "ended", 1, "", time.Now()))
	name := w.beginAttempt("bot-1")
	_, err := k.silentEnd(w.Context(), name, []doubt{{name, lost("node-lost", "x")}})
	w.must(err)
	client := redis.NewClient(&redis.Options{Addr: w.servers.Redis()})
	defer client.Close()
	keys, err := client.Keys(w.Context(), "*beats").Result()
	if w.must(err); len(keys) != 1 {
		t.Fatalf("the beats are in %q", keys)
	}
	others, err := client.HKeys(w.Context(), keys[0]).Result()
	if w.must(err); len(others) != 1 {
		t.Errorf("the beats of other attempts are %q", others)
	}
}

// The beats of the first worker do not hide that the node of another worker or server is lost. Each of them is heard by its
// own beats. If none came from it, a gateway of an earlier version may have got them, and the first worker's count.
func TestTheNodeOfAnotherWorkerIsLost(t *testing.T) {
	w := newWatchWorld(t)
	_, _, c := w.process()
	k := newWatcher(c, WatchOptions{Foreman: w.foreman, Ledger: w.ledger})
	now := time.Now()
	k.now = func() time.Time { return now }
	name := w.beginAttempt("bot-1")
	run, number, _ := tidemill.CutAttemptName(name)
	var pods []any
	for part, set := range map[string]func(*corev1.Pod){"": worker("0"), "w1": worker("1"), "ps0": server("0")} {
		p := aPod(name)
		p.Name += part
		set(p)
		if isRunning(p); part != "" {
			p.Status.Conditions[1].Status = corev1.ConditionFalse // without a reason: its node does not answer
		}
		pods = append(pods, p)
	}
	w.must(k.pods.Replace(pods, "1"))
	for _, step := range []struct {
		later time.Duration
		beats []string
		lost  string
	}{
		{0, []string{""}, ""},
		{2 * silence, []string{""}, ""},
		{time.Second, []string{"", "w1", "ps0"}, ""},
		{2 * silence, []string{"", "w1", "ps0"}, ""},
		{2 * silence, []string{"w1", "ps0"}, ""}, // the foreman asks for the first worker
		{silence - time.Second, []string{"", "w1"}, ""},
		{2 * time.Second, []string{"", "w1"}, "parameter server 0: its node gpu-1 does not answer any more"},
	} {
		now = now.Add(step.later)
		for _, part := range step.beats {
			w.must(w.ledger.Beat(w.Context(), run, number, part, now))
		}
		_, err := k.lookAt(w.Context(), name)
		w.must(err)
		if a := w.run(name).Attempts[0]; a.Reason != step.lost || (a.Outcome == tidemill.OutcomeLost) != (step.lost != "") {
			t.Fatalf("after %s, with beats of %q, its outcome is %q: %s", step.later, step.beats, a.Outcome, a.Reason)
		}
	}
}
