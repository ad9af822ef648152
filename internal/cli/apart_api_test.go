//go:build slow

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// jobMade is a Job that was sent to the API server.
type jobMade = batchv1.Job

// jobServer is an API server for Jobs and for the Secrets of their pods: it creates Secrets, and
// creates, lists, watches and deletes Jobs. It has no pods and no Deployments.
type jobServer struct {
	kubeconfig string
	codecs     runtime.Decoder
	arrived    chan *jobMade

	mu      sync.Mutex
	count   int
	jobs    map[string]*jobMade
	gone    map[string]bool
	secrets map[string]map[string][]byte // data by name
	changed chan struct{}                // closed at each change
	over    chan struct{}                // closed at the end of the test
}

func startJobServer(t *testing.T, dir string) *jobServer {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{batchv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &jobServer{codecs: serializer.NewCodecFactory(scheme).UniversalDeserializer(), arrived: make(chan *jobMade, 100),
		jobs: map[string]*jobMade{}, gone: map[string]bool{}, secrets: map[string]map[string][]byte{}, changed: make(chan struct{}), over: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(s.over) })
	s.kubeconfig = leave(t, fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: t\ncontexts:\n- {name: t, context: {cluster: t, namespace: ml}}\nclusters:\n- {name: t, cluster: {server: %q}}\n", server.URL), dir, "kubeconfig")
	return s
}

const jobsPath = "/apis/batch/v1/namespaces/ml/jobs"

func (s *jobServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	name, one := strings.CutPrefix(r.URL.Path, jobsPath+"/")
	switch {
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		s.watch(w, r)
	case r.Method == http.MethodPost && r.URL.Path == jobsPath:
		s.make(w, r)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/secrets"):
		s.makeSecret(w, r)
	case one:
		s.one(w, r, name)
	case r.URL.Path == jobsPath:
		s.mu.Lock()
		defer s.mu.Unlock()
		list := batchv1.JobList{}
		list.Kind, list.APIVersion, list.ResourceVersion = "JobList", "batch/v1", fmt.Sprint(s.count)
		for _, j := range s.jobs {
			list.Items = append(list.Items, *j)
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.HasSuffix(r.URL.Path, "/pods"):
		_, _ = io.WriteString(w, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	case strings.HasSuffix(r.URL.Path, "/deployments"):
		_, _ = io.WriteString(w, `{"kind": "DeploymentList", "apiVersion": "apps/v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	default:
		_, _ = io.WriteString(w, `{}`)
	}
}

func (s *jobServer) make(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o, _, err := s.codecs.Decode(body, nil, nil)
	job, ok := o.(*jobMade)
	if err != nil || !ok {
		refuseJob(w, http.StatusBadRequest, "BadRequest", fmt.Sprint("no Job: ", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[job.Name] != nil {
		refuseJob(w, http.StatusConflict, "AlreadyExists", job.Name)
		return
	}
	s.count++
	job.Kind, job.APIVersion, job.Namespace, job.ResourceVersion = "Job", "batch/v1", "ml", fmt.Sprint(s.count)
	job.UID = "u" // no Job gets the name of a deleted one
	s.jobs[job.Name] = job
	s.tell()
	s.arrived <- job
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(job)
}

func (s *jobServer) makeSecret(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o, _, err := s.codecs.Decode(body, nil, nil)
	secret, ok := o.(*corev1.Secret)
	if err != nil || !ok {
		refuseJob(w, http.StatusBadRequest, "BadRequest", fmt.Sprint("no Secret: ", err))
		return
	}
	s.mu.Lock()
	s.secrets[secret.Name] = secret.Data
	s.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(secret)
}

// secret returns a value of a Secret; empty if the Secret is not there yet.
func (s *jobServer) secret(name, key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.secrets[name][key])
}

func (s *jobServer) one(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	job := s.jobs[name]
	switch {
	case job == nil:
		refuseJob(w, http.StatusNotFound, "NotFound", name)
	case r.Method == http.MethodDelete:
		delete(s.jobs, name)
		s.gone[name] = true
		s.tell()
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`)
	default:
		_ = json.NewEncoder(w).Encode(job)
	}
}

func refuseJob(w http.ResponseWriter, status int, reason, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "message": %q, "code": %d}`, reason, message, status)
}

// tell wakes all watches. The caller holds the lock.
func (s *jobServer) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch sends each added and each deleted Job. For other kinds it sends nothing.
func (s *jobServer) watch(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" { // newer clients try this first; a refusal makes them list instead
		refuseJob(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is not known here")
		return
	}
	told := map[string]*jobMade{}
	for {
		s.mu.Lock()
		changed := s.changed
		if strings.HasSuffix(r.URL.Path, "/jobs") {
			s.differences(w, told)
		}
		s.mu.Unlock()
		_ = flush.Flush()
		select {
		case <-changed:
		case <-s.over:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *jobServer) differences(w io.Writer, told map[string]*jobMade) {
	say := func(kind string, j *jobMade) {
		text, _ := json.Marshal(j)
		fmt.Fprintf(w, `{"type": %q, "object": %s}`+"\n", kind, text)
	}
	for name, j := range s.jobs {
		if told[name] == nil {
			told[name] = j
			say("ADDED", j)
		}
	}
	for name, j := range told {
		if s.jobs[name] == nil {
			delete(told, name)
			say("DELETED", j)
		}
	}
}

// next waits for a Job.
func (s *jobServer) next(t *testing.T) *jobMade {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case j := <-s.arrived:
		return j
	case <-late.C:
		t.Fatal("no Job was made")
		return nil
	}
}

func (s *jobServer) deleted(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone[name]
}

func (s *jobServer) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}
