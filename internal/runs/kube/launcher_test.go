package kube

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/scheduler"
)

const (
	allJobs     = "/apis/batch/v1/namespaces/ml/jobs"
	allServices = "/api/v1/namespaces/ml/services"
	allSecrets  = "/api/v1/namespaces/ml/secrets"
	allPolicies = "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies"
)

// launchWorld is an API server with a launcher.
type launchWorld struct {
	*apiServer
	scheduler.Launcher
}

// newLaunchWorld starts a launchWorld. before may answer a request before the API server does; it
// may be nil.
func newLaunchWorld(t testing.TB, before func(w http.ResponseWriter, r *http.Request) (answered bool), set func(*Options)) *launchWorld {
	t.Helper()
	s := startAPIServer(t)
	if before != nil {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !before(w, r) {
				s.ServeHTTP(w, r)
			}
		}))
		t.Cleanup(front.Close)
		s.URL = front.URL
	}
	c := s.open(func(o *Options) {
		o.Config = func() *config.Config { return poolsOf(t) }
		if set != nil {
			set(o)
		}
	})
	return &launchWorld{s, c.Launcher()}
}

func poolsOf(t testing.TB) *config.Config {
	c, err := config.Parse("t", []byte("version: 1\npools: {gpu: {slots: 3, linger: 1m}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// aPlan returns the smallest plan that can be launched.
func aPlan(pool string) tidemill.Plan {
	return tidemill.Plan{Image: "trainer:3", Command: []string{"train"}, Pool: pool}
}

func launchable(pool string) scheduler.Attempt {
	a := anAttempt()
	a.Plan = aPlan(pool)
	return a
}

func (y *launchWorld) must(err error) {
	y.Helper()
	if err != nil {
		y.Fatal(err)
	}
}

// callsSoFar returns the calls so far, without those that keep the connection open.
func (y *launchWorld) callsSoFar() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(y.calls), func(c string) bool { return c == "GET /version" })
}

// A launch is two calls, and the first starts the pod. A second launch finds the Job of the first.
func TestLaunchIsTwoCalls(t *testing.T) {
	y, a := newLaunchWorld(t, nil, nil), launchable("default")
	y.must(y.Launch(t.Context(), a))
	if calls := y.callsSoFar(); !slices.Equal(calls, []string{"POST " + allJobs, "POST " + allSecrets}) {
		t.Errorf("it asked %q", calls)
	}
	y.must(y.Launch(t.Context(), a))
	if !y.hasObject(allJobs+"/"+a.Name) || len(y.objects) != 2 {
		t.Errorf("there are %d objects", len(y.objects))
	}
}

// An account that may read Jobs and pods, but no Secrets, finds no token of an attempt.
func TestTheTokenIsOnlyInASecret(t *testing.T) {
	y, a := newLaunchWorld(t, nil, nil), attemptTogether()
	a.Token = "the-token-of-the-attempt"
	y.must(y.Launch(t.Context(), a))
	for path, o := range y.objects {
		text, err := o.MarshalJSON()
		y.must(err)
		if o.GetKind() != "Secret" && strings.Contains(string(text), a.Token) {
			t.Errorf("%s shows the token to every account that may read it:\n%s", path, text)
		}
	}
	secret := y.objects[allSecrets+"/"+secretName(a.Name)]
	if secret == nil || !strings.Contains(fmt.Sprint(secret.Object["data"]), base64.StdEncoding.EncodeToString([]byte(a.Token))) {
		t.Fatalf("the Secret is %+v", secret)
	}
	y.must(y.Stop(t.Context(), a.Name))
	if len(y.objects) != 0 {
		t.Errorf("there are %d objects left", len(y.objects))
	}
	thief := launchable("gpu")
	thief.Plan.Secrets = map[string]string{"T": secretName(a.Name) + "/" + tokenKey}
	if err := y.Launch(t.Context(), thief); !errors.Is(err, scheduler.ErrUnlaunchable) {
		t.Errorf("another run is given the token of this one: %v", err)
	}
}

// Runs may have a separate namespace. Then no object of a run is where the install's Secrets are.
func TestRunsInTheirOwnNamespace(t *testing.T) {
	y := newLaunchWorld(t, nil, func(o *Options) { o.Runs = "ml-runs" })
	y.must(y.Launch(t.Context(), attemptTogether()))
	for _, call := range y.callsSoFar() {
		if !strings.Contains(call, "/namespaces/ml-runs/") {
			t.Errorf("it asked %s", call)
		}
	}
}

// A plan that cannot run in a cluster causes no call to the API server.
func TestLaunchRefusesWhatNoClusterRuns(t *testing.T) {
	y, a := newLaunchWorld(t, nil, nil), launchable("default")
	for want, plan := range map[string]tidemill.Plan{
		"give it run.image":            {Dir: "/srv", Command: []string{"c"}, Pool: "default"},
		"write it down as run.command": {Image: "i", Pool: "default"},
	} {
		a.Plan = plan
		if err := y.Launch(t.Context(), a); !errors.Is(err, scheduler.ErrUnlaunchable) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	a.Plan = aPlan("gone")
	if err := y.Launch(t.Context(), a); err == nil || errors.Is(err, scheduler.ErrUnlaunchable) || !strings.Contains(err.Error(), "it is no longer in the config") {
		t.Errorf("without its pool: %v", err)
	}
	if calls := y.callsSoFar(); len(calls) != 0 {
		t.Errorf("it asked %q", calls)
	}
}

// A plan that names a Secret or claim of the install comes from an older config, or from another
// writer to the log. No pod gets such a plan, not even a lingering pod.
func TestLaunchRefusesWhatIsWithheld(t *testing.T) {
	y := newLaunchWorld(t, nil, func(o *Options) { o.Withheld = config.Withheld{"secret/tidemill-*", "secret/kafka", "claim/kept"} })
	for want, change := range map[string]func(*tidemill.Plan){
		"the Secret tidemill-run-secret is": func(p *tidemill.Plan) {
			p.Secrets = map[string]string{"A": "mine/a", "B": "tidemill-run-secret/run-secret"}
		},
		"the Secret kafka is":               func(p *tidemill.Plan) { p.Inside.Volumes = []tidemill.Volume{{Secret: "kafka", At: "/x"}} },
		"the PersistentVolumeClaim kept is": func(p *tidemill.Plan) { p.Inside.Volumes = []tidemill.Volume{{Claim: "kept", At: "/x"}} },
		"the Secret tidemill-tokens is":     func(p *tidemill.Plan) { p.Workers, p.Secrets = 2, map[string]string{"B": "tidemill-tokens/operator"} },
	} {
		a := launchable("gpu")
		change(&a.Plan)
		if err := y.Launch(t.Context(), a); !errors.Is(err, scheduler.ErrUnlaunchable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "into another one") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if calls := y.callsSoFar(); len(calls) != 0 {
		t.Errorf("it asked %q", calls)
	}
	a := launchable("gpu")
	a.Plan.Secrets, a.Plan.Inside.PullSecrets = map[string]string{"A": "mine/a"}, []string{"kafka"}
	y.must(y.Launch(t.Context(), a))
}

// An error of the API server is returned with its own text and an advice. Only an error that a new
// attempt would repeat ends the run.
func TestRefusalsOfJobs(t *testing.T) {
	for _, c := range []struct {
		status   int
		reason   metav1.StatusReason
		message  string
		hopeless bool
		next     string
	}{
		{403, metav1.StatusReasonForbidden, `jobs.batch "a" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1`, false, "more quota"},
		{403, metav1.StatusReasonForbidden, `unable to create new content in namespace ml because it is being terminated`, false, "is being removed"},
		{403, metav1.StatusReasonForbidden, `jobs.batch is forbidden: User "x" cannot create resource "jobs"`, false, "bind its role"},
		{403, metav1.StatusReasonForbidden, `admission webhook "images.example" denied the request: no registry but ours`, true, "a rule of the cluster"},
		{400, metav1.StatusReasonBadRequest, `admission webhook "images.example" denied the request: no`, true, "a rule of the cluster"},
		{422, metav1.StatusReasonInvalid, `ValidatingAdmissionPolicy 'small' with binding 'all' denied request: too large`, true, "a rule of the cluster"},
		{422, metav1.StatusReasonInvalid, `Job.batch "a" is invalid: spec.template: Required value`, true, "correct the recipe"},
		{413, metav1.StatusReasonRequestEntityTooLarge, `limit is 3145728`, true, "shorter"},
		{401, metav1.StatusReasonUnauthorized, `Unauthorized`, false, "does not know us"},
		{404, metav1.StatusReasonNotFound, `namespaces "ml" not found`, false, "the namespace is not there"},
	} {
		y := newLaunchWorld(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				answerStatus(w, c.status, c.reason, c.message)
			}
			return r.Method == http.MethodPost
		}, nil)
		err := y.Launch(t.Context(), launchable("default"))
		if err == nil || errors.Is(err, scheduler.ErrUnlaunchable) != c.hopeless || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), c.next) {
			t.Errorf("of %d %s: %v", c.status, c.message, err)
		}
	}
}

func answerStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code)})
}

// A short outage of the API server loses no attempt, even if the server made the Job and the answer
// was lost.
func TestLaunchOutlivesAShortOutage(t *testing.T) {
	for name, fault := range map[string]func(y *launchWorld, w http.ResponseWriter, r *http.Request){
		"it has too much to do": func(_ *launchWorld, w http.ResponseWriter, _ *http.Request) {
			answerStatus(w, 500, metav1.StatusReasonInternalError, "etcdserver: leader changed")
		},
		"its quota has just changed": func(_ *launchWorld, w http.ResponseWriter, _ *http.Request) {
			answerStatus(w, 409, metav1.StatusReasonConflict, "Operation cannot be fulfilled on resourcequotas \"ml\": the object has been modified")
		},
		"it hangs up": func(*launchWorld, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"it hangs up when it is done": func(y *launchWorld, _ http.ResponseWriter, r *http.Request) {
			y.apiServer.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var posts atomic.Int32
			var y *launchWorld
			y = newLaunchWorld(t, func(w http.ResponseWriter, r *http.Request) bool {
				first := r.Method == http.MethodPost && posts.Add(1) == 1
				if first {
					fault(y, w, r)
				}
				return first
			}, nil)
			a := launchable("default")
			y.must(y.Launch(t.Context(), a))
			if posts.Load() != 3 || !y.hasObject(allJobs+"/"+a.Name) {
				t.Errorf("after %d calls there are %d objects", posts.Load(), len(y.objects))
			}
		})
	}
}

// A run's id derives from its cause, so another install in the namespace may have a Job of the same
// name.
func TestAJobOfAnotherInstall(t *testing.T) {
	y, a := newLaunchWorld(t, nil, nil), launchable("default")
	y.putObject("Job", "/apis/batch/v1/jobs", &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: a.Name, Labels: map[string]string{LabelInstall: "other"}}})
	if err := y.Launch(t.Context(), a); !errors.Is(err, scheduler.ErrUnlaunchable) || !strings.Contains(err.Error(), `the install "other"`) {
		t.Errorf("got %v", err)
	}
	if has, err := y.Has(t.Context(), a.Name); has || err != nil {
		t.Errorf("it is taken for ours: %t, %v", has, err)
	}
	y.must(y.Stop(t.Context(), a.Name))
	if !y.hasObject(allJobs + "/" + a.Name) {
		t.Error("another install's Job is removed")
	}
}

func attemptTogether() scheduler.Attempt {
	a := launchable("gpu")
	a.Plan.Workers, a.Plan.Servers = 2, &tidemill.Servers{Count: 1}
	return a
}

// partsOf returns the paths of all objects of attemptTogether, in the order in which they are made.
func partsOf(a scheduler.Attempt) []string {
	return []string{allJobs + "/" + a.Name, allSecrets + "/" + secretName(a.Name), allPolicies + "/" + serviceName(a.Name),
		allServices + "/" + serviceName(a.Name), allJobs + "/" + serversName(a.Name)}
}

// An attempt of several containers gets a NetworkPolicy, a Service and a Job of servers. The
// attempt's Job owns them, and they are deleted with it.
func TestLaunchTogether(t *testing.T) {
	y, a := newLaunchWorld(t, nil, nil), attemptTogether()
	y.must(y.Launch(t.Context(), a))
	owner := y.objects[allJobs+"/"+a.Name]
	for _, path := range partsOf(a)[1:] {
		o := y.objects[path]
		if o == nil || owner == nil || len(o.GetOwnerReferences()) != 1 || o.GetOwnerReferences()[0].UID != owner.GetUID() {
			t.Fatalf("%s is %+v", path, o)
		}
	}
	y.must(y.Stop(t.Context(), a.Name))
	if len(y.objects) != 0 {
		t.Errorf("there are %d objects left", len(y.objects))
	}
}

// A launch completes the objects of an interrupted launch.
func TestLaunchTogetherIsCompleted(t *testing.T) {
	a := attemptTogether()
	parts := partsOf(a)
	for n := range parts {
		y := newLaunchWorld(t, nil, nil)
		y.must(y.Launch(t.Context(), a))
		owner := y.objects[parts[0]].GetUID()
		for _, part := range parts[n+1:] {
			y.delete(part)
		}
		y.must(y.Launch(t.Context(), a))
		for _, part := range parts {
			if !y.hasObject(part) {
				t.Errorf("with %d parts there, %s is missing", n+1, part)
			}
		}
		if y.objects[parts[0]].GetUID() != owner {
			t.Error("it is another Job")
		}
	}
}

// If one object cannot be made, the others are deleted.
func TestLaunchTogetherIsUndone(t *testing.T) {
	a := attemptTogether()
	for what, nth := range map[string]int32{"the Secret": 2, "the NetworkPolicy": 3, "the Service": 4, "the Job of the servers": 5} {
		y, posts := newLaunchWorld(t, nil, nil), new(atomic.Int32)
		y.refuseBy(func(r *http.Request) int {
			if r.Method == http.MethodPost && posts.Add(1) == nth {
				return http.StatusForbidden
			}
			return 0
		})
		if err := y.Launch(t.Context(), a); err == nil || !strings.Contains(err.Error(), "make "+what) {
			t.Errorf("without %s: %v", what, err)
		}
		if len(y.objects) != 0 {
			t.Errorf("without %s there are %d objects left", what, len(y.objects))
		}
	}
}

// worker makes a pod of a Job, as the Job's controller does.
func (y *launchWorld) worker(job, attempt string, phase corev1.PodPhase) {
	y.Helper()
	var owner []metav1.OwnerReference
	if j := y.objects[allJobs+"/"+job]; j != nil {
		owner = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: j.GetUID()}}
	}
	y.putObject("Pod", "/api/v1/pods", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: job + "-x", OwnerReferences: owner, Labels: map[string]string{
			LabelInstall: tidemill.DefaultName, LabelAttempt: attempt, batchv1.JobNameLabel: job}},
		Status: corev1.PodStatus{Phase: phase}})
}

// endJob makes a Job end.
func (y *launchWorld) endJob(name string, as batchv1.JobConditionType) {
	y.Helper()
	y.putObject("Job", "/apis/batch/v1/jobs", &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelInstall: tidemill.DefaultName}},
		Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: as, Status: corev1.ConditionTrue}}}})
}

// An attempt exists if a pod has its label, or a Job has its name and no pod yet.
func TestHas(t *testing.T) {
	const other = "other-1"
	for name, c := range map[string]struct {
		there func(y *launchWorld, a scheduler.Attempt)
		want  bool
	}{
		"nothing":                {func(*launchWorld, scheduler.Attempt) {}, false},
		"a Job":                  {func(y *launchWorld, a scheduler.Attempt) { y.must(y.Launch(t.Context(), a)) }, true},
		"a Job that is complete": {func(y *launchWorld, a scheduler.Attempt) { y.endJob(a.Name, batchv1.JobComplete) }, false},
		"a Job that has failed":  {func(y *launchWorld, a scheduler.Attempt) { y.endJob(a.Name, batchv1.JobFailed) }, false},
		"a Job that is to fail":  {func(y *launchWorld, a scheduler.Attempt) { y.endJob(a.Name, batchv1.JobFailureTarget) }, true},
		"a pod that is to run":   {func(y *launchWorld, a scheduler.Attempt) { y.worker(a.Name, a.Name, corev1.PodPending) }, true},
		"a pod that runs":        {func(y *launchWorld, a scheduler.Attempt) { y.worker(a.Name, a.Name, corev1.PodRunning) }, true},
		"a pod that has ended":   {func(y *launchWorld, a scheduler.Attempt) { y.worker(a.Name, a.Name, corev1.PodFailed) }, false},
		"another's pod does it":  {func(y *launchWorld, a scheduler.Attempt) { y.worker(other, a.Name, corev1.PodRunning) }, true},
		"its pod does another": {func(y *launchWorld, a scheduler.Attempt) {
			y.must(y.Launch(t.Context(), a))
			y.worker(a.Name, other, corev1.PodRunning)
		}, false},
		"its pod has ended, and its Job": {func(y *launchWorld, a scheduler.Attempt) {
			y.endJob(a.Name, batchv1.JobComplete)
			y.worker(a.Name, a.Name, corev1.PodSucceeded)
		}, false},
	} {
		y, a := newLaunchWorld(t, nil, nil), launchable("default")
		c.there(y, a)
		has, err := y.Has(t.Context(), a.Name)
		if has != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, has, err)
		}
	}
}

// Stop deletes the Jobs that run the attempt, but no Job whose pod runs another attempt.
func TestStop(t *testing.T) {
	const other = "other-1"
	for name, c := range map[string]struct {
		there func(y *launchWorld, a scheduler.Attempt)
		left  []string
	}{
		"nothing": {func(*launchWorld, scheduler.Attempt) {}, nil},
		"its Job": {func(y *launchWorld, a scheduler.Attempt) { y.must(y.Launch(t.Context(), a)) }, nil},
		"its pod": {func(y *launchWorld, a scheduler.Attempt) {
			y.must(y.Launch(t.Context(), a))
			y.worker(a.Name, a.Name, corev1.PodRunning)
		}, nil},
		"another's pod": {func(y *launchWorld, a scheduler.Attempt) {
			y.endJob(other, "")
			y.worker(other, a.Name, corev1.PodRunning)
		}, nil},
		"its pod does another": {func(y *launchWorld, a scheduler.Attempt) {
			y.must(y.Launch(t.Context(), a))
			y.worker(a.Name, other, corev1.PodRunning)
		}, []string{"/api/v1/namespaces/ml/pods/" + anAttempt().Name + "-x", allSecrets + "/" + secretName(anAttempt().Name), allJobs + "/" + anAttempt().Name}},
	} {
		y, a := newLaunchWorld(t, nil, nil), launchable("default")
		c.there(y, a)
		y.must(y.Stop(t.Context(), a.Name))
		var left []string
		for path := range y.objects {
			left = append(left, path)
		}
		slices.Sort(left)
		if !slices.Equal(left, c.left) {
			t.Errorf("%s: there are %q left, want %q", name, left, c.left)
		}
	}
}

// Has and Stop return errors of the API server. Such an error does not count as a missing attempt.
func TestHasAndStopTellErrors(t *testing.T) {
	for _, what := range []string{"/pods", "/jobs/"} {
		y, a := newLaunchWorld(t, nil, nil), launchable("default")
		y.must(y.Launch(t.Context(), a))
		y.refuseBy(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, what) {
				return http.StatusForbidden
			}
			return 0
		})
		if _, err := y.Has(t.Context(), a.Name); err == nil {
			t.Errorf("without %s it has or has not", what)
		}
		if err := y.Stop(t.Context(), a.Name); err == nil {
			t.Errorf("without %s it is stopped", what)
		}
	}
}

func TestSlotsAreTheConfigs(t *testing.T) {
	y := newLaunchWorld(t, nil, nil)
	if y.Slots(config.Pool{Slots: 3}) != 3 || y.Slots(config.Pool{}) != 0 {
		t.Error("it bounds a pool by itself")
	}
}

func BenchmarkLaunch(b *testing.B) {
	y, a := newLaunchWorld(b, nil, nil), launchable("default")
	for i := 0; b.Loop(); i++ {
		a.Name = tidemill.AttemptName(a.Run, i+1)
		if err := y.Launch(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
}
