package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"tidemill.dev"
	"tidemill.dev/config"
)

// patienceOfTests ends a test that hangs.
const patienceOfTests = 2 * time.Minute

// apiServer implements the part of the API server that we use: it stores objects with versions,
// lists them, and streams their changes. Tests act as the cluster's controllers.
type apiServer struct {
	*httptest.Server
	testing.TB
	codecs runtime.Decoder

	mu      sync.Mutex
	version int64
	lost    int64                                 // version of the last deletion; older watches must list again
	objects map[string]*unstructured.Unstructured // by path
	watches map[*apiWatch]bool
	calls   []string                // METHOD path
	refuse  func(*http.Request) int // returns an HTTP status; 0 to serve the request
}

type apiWatch struct {
	prefix string
	choose labels.Selector
	events chan []byte
}

func startAPIServer(t testing.TB) *apiServer {
	t.Helper()
	scheme, err := kinds()
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServer{TB: t, codecs: serializer.NewCodecFactory(scheme).UniversalDeserializer(),
		objects: map[string]*unstructured.Unstructured{}, watches: map[*apiWatch]bool{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.hangUp()
		s.Server.Close()
	})
	return s
}

// open opens a Cluster at the server, as a process would.
func (s *apiServer) open(set func(*Options)) *Cluster {
	s.Helper()
	file := filepath.Join(s.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: t\ncontexts:\n- {name: t, context: {cluster: t, namespace: ml}}\nclusters:\n- {name: t, cluster: {server: %q}}\n", s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	names, err := tidemill.NewNames("")
	if err != nil {
		s.Fatal(err)
	}
	o := Options{Kubeconfig: file, Names: names, Config: func() *config.Config { return &config.Config{} }, Gateway: "http://gateway", Image: "tidemill:1", Logger: slog.New(slog.DiscardHandler)}
	if set != nil {
		set(&o)
	}
	c, err := Open(s.Context(), o)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// refuseBy makes the server refuse requests. It takes the lock, because a Cluster with an open
// connection sends requests at any time.
func (s *apiServer) refuseBy(refuse func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// ServeHTTP answers like the API server.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil {
		if status := refuse(r); status != 0 {
			s.fail(w, status, "refused by the test")
			return
		}
	}
	body, _ := io.ReadAll(r.Body)
	switch q := r.URL.Query(); {
	case r.Method == http.MethodGet && (q.Get("watch") == "true" || q.Get("watch") == "1"):
		s.watch(w, r)
	case r.Method == http.MethodGet:
		s.get(w, r)
	case r.Method == http.MethodPost:
		s.create(w, r, body)
	case r.Method == http.MethodPatch, r.Method == http.MethodPut:
		s.change(w, r, body)
	case r.Method == http.MethodDelete:
		s.remove(w, r)
	default:
		s.fail(w, http.StatusMethodNotAllowed, r.Method)
	}
}

func (s *apiServer) fail(w http.ResponseWriter, status int, message string) {
	reasons := map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists, 410: metav1.StatusReasonExpired, 403: metav1.StatusReasonForbidden}
	s.answer(w, status, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: message, Reason: reasons[status], Code: int32(status)})
}

func (s *apiServer) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func selectorOf(r *http.Request) labels.Selector {
	choose, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return labels.Nothing()
	}
	return choose
}

func (s *apiServer) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	if !strings.Contains(path, "/namespaces/") { // the request that keeps the connection open
		s.answer(w, 200, map[string]any{})
		return
	}
	if o, there := s.objects[path]; there {
		s.answer(w, 200, o)
		return
	}
	if strings.Count(path[strings.Index(path, "/namespaces/"):], "/") > 3 {
		s.fail(w, 404, path+" not found")
		return
	}
	items := []any{}
	for _, o := range s.chosen(path+"/", selectorOf(r)) {
		items = append(items, o)
	}
	kind, group := kindOfPath(path)
	s.answer(w, 200, map[string]any{"kind": kind + "List", "apiVersion": group, "metadata": map[string]any{"resourceVersion": strconv.FormatInt(s.version, 10)}, "items": items})
}

// kindOfPath returns the kind of the objects under a resource's path.
func kindOfPath(path string) (kind, group string) {
	parts := strings.Split(strings.Trim(path, "/"), "/") // api v1 namespaces ns pods | apis batch v1 namespaces ns jobs
	at := slices.Index(parts, "namespaces")
	group = strings.Join(parts[1:at], "/")
	return map[string]string{"pods": "Pod", "jobs": "Job", "services": "Service", "deployments": "Deployment", "secrets": "Secret", "networkpolicies": "NetworkPolicy"}[parts[at+2]], group
}

func (s *apiServer) chosen(prefix string, choose labels.Selector) (all []*unstructured.Unstructured) {
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if o := s.objects[path]; strings.HasPrefix(path, prefix) && choose.Matches(labels.Set(o.GetLabels())) {
			all = append(all, o)
		}
	}
	return all
}

// watch streams changes. Newer clients ask for a list at the beginning of the stream.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	since, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	one := &apiWatch{prefix: r.URL.Path + "/", choose: selectorOf(r), events: make(chan []byte, 10_000)}
	s.mu.Lock()
	if q.Get("sendInitialEvents") != "true" && since < s.lost {
		s.mu.Unlock()
		s.fail(w, http.StatusGone, "too old resource version")
		return
	}
	for _, o := range s.chosen(one.prefix, one.choose) {
		version, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
		if q.Get("sendInitialEvents") == "true" || version > since {
			one.events <- eventOf("ADDED", o)
		}
	}
	if q.Get("sendInitialEvents") == "true" {
		kind, group := kindOfPath(r.URL.Path)
		mark := &unstructured.Unstructured{Object: map[string]any{"kind": kind, "apiVersion": group}}
		mark.SetResourceVersion(strconv.FormatInt(s.version, 10))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		one.events <- eventOf("BOOKMARK", mark)
	}
	s.watches[one] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watches, one)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, more := <-one.events:
			if !more {
				return
			}
			if _, err := w.Write(e); err != nil {
				return
			}
			_ = flush.Flush()
		}
	}
}

func eventOf(typ string, o *unstructured.Unstructured) []byte {
	text, _ := json.Marshal(map[string]any{"type": typ, "object": o})
	return append(text, '\n')
}

// hangUp ends all watches, like a restart of the server.
func (s *apiServer) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.watches {
		close(one.events)
		delete(s.watches, one)
	}
}

// sendChange sends a change to the watches; the lock is held.
func (s *apiServer) sendChange(typ, path string, was, o *unstructured.Unstructured) {
	for one := range s.watches {
		if !strings.HasPrefix(path, one.prefix) {
			continue
		}
		matched, matches := was != nil && one.choose.Matches(labels.Set(was.GetLabels())), one.choose.Matches(labels.Set(o.GetLabels()))
		switch {
		case typ == "DELETED" && matches, matched && !matches:
			one.events <- eventOf("DELETED", o)
		case matched && matches:
			one.events <- eventOf("MODIFIED", o)
		case matches:
			one.events <- eventOf("ADDED", o)
		}
	}
}

func (s *apiServer) create(w http.ResponseWriter, r *http.Request, body []byte) {
	o, err := s.decode(body)
	if err != nil {
		s.fail(w, 400, err.Error())
		return
	}
	path := r.URL.Path + "/" + o.GetName()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.objects[path]; there {
		s.fail(w, 409, path+" already exists")
		return
	}
	s.answer(w, 201, s.storeObject(path, o))
}

// decode reads an object in any encoding of the client.
func (s *apiServer) decode(body []byte) (*unstructured.Unstructured, error) {
	o, kind, err := s.codecs.Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	u := &unstructured.Unstructured{Object: fields}
	if err == nil {
		u.SetGroupVersionKind(*kind)
	}
	return u, err
}

// storeObject stores an object and sends the change; the lock is held.
func (s *apiServer) storeObject(path string, o *unstructured.Unstructured) *unstructured.Unstructured {
	was := s.objects[path]
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	o.SetNamespace("ml")
	if was == nil {
		o.SetUID(types.UID(fmt.Sprint("uid-", s.version)))
		o.SetCreationTimestamp(metav1.Now())
	} else {
		o.SetUID(was.GetUID())
		o.SetCreationTimestamp(was.GetCreationTimestamp())
	}
	s.objects[path] = o
	s.sendChange("", path, was, o)
	return o
}

// change applies a merge patch to an object or to one of its subresources.
func (s *apiServer) change(w http.ResponseWriter, r *http.Request, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.TrimSuffix(strings.TrimSuffix(r.URL.Path, "/scale"), "/status")
	was, there := s.objects[path]
	if !there {
		s.fail(w, 404, path+" not found")
		return
	}
	var patch map[string]any
	if err := json.Unmarshal(body, &patch); err != nil || r.Header.Get("Content-Type") != string(types.MergePatchType) {
		s.fail(w, http.StatusUnsupportedMediaType, "this server takes merge patches alone")
		return
	}
	o := was.DeepCopy()
	merge(o.Object, patch)
	if was.GetUID() != o.GetUID() || o.GetResourceVersion() != was.GetResourceVersion() {
		s.fail(w, 409, "the object has been modified")
		return
	}
	s.answer(w, 200, s.storeObject(path, o))
}

// merge applies a JSON merge patch.
func merge(to, patch map[string]any) {
	for field, v := range patch {
		deeper, isMap := v.(map[string]any)
		below, wasMap := to[field].(map[string]any)
		switch {
		case v == nil:
			delete(to, field)
		case isMap && wasMap:
			merge(below, deeper)
		default:
			to[field] = v
		}
	}
}

// remove deletes an object and the objects that it owns, as Kubernetes does.
func (s *apiServer) remove(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, there := s.objects[r.URL.Path]
	if !there {
		s.fail(w, 404, r.URL.Path+" not found")
		return
	}
	s.drop(r.URL.Path, o)
	s.answer(w, 200, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
}

func (s *apiServer) drop(path string, o *unstructured.Unstructured) {
	delete(s.objects, path)
	s.version++
	s.lost = s.version
	o = o.DeepCopy()
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.sendChange("DELETED", path, nil, o)
	for below, other := range maps.Clone(s.objects) {
		if slices.ContainsFunc(other.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return owner.UID == o.GetUID() }) {
			s.drop(below, other)
		}
	}
}

// putObject stores an object like a controller of the cluster.
func (s *apiServer) putObject(kind, resource string, o any) {
	s.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		s.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: fields}
	group := resource[:strings.LastIndex(resource, "/")]
	u.SetAPIVersion(strings.TrimPrefix(strings.TrimPrefix(group, "/apis/"), "/api/"))
	u.SetKind(kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeObject(group+"/namespaces/ml"+resource[strings.LastIndex(resource, "/"):]+"/"+u.GetName(), u)
}

// delete removes an object without a request.
func (s *apiServer) delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, there := s.objects[path]; there {
		s.drop(path, o)
	}
}

// hasObject reports whether an object exists.
func (s *apiServer) hasObject(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path] != nil
}

// waitUntil waits until a condition holds.
func (s *apiServer) waitUntil(what string, is func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patienceOfTests)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.Fatalf("in vain: %s", what)
		}
	}
}
