package kube

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

const (
	knativeServices = "/apis/serving.knative.dev/v1/services"
	knativePath     = "/apis/serving.knative.dev/v1/namespaces/ml/services/"
)

// followedServices is an API server with its followed services.
type followedServices struct {
	*apiServer
	*Services
}

func (s *apiServer) follow() *followedServices {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := s.open(nil)
	all, err := c.Services(ctx)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		stop()
		s.hangUp()
	})
	return &followedServices{s, all}
}

// resolves waits until a service resolves to an address, or fails with an error.
func (f *followedServices) resolves(name, want string) {
	f.Helper()
	f.waitUntil(name+" resolves to "+want, func() bool {
		at, err := f.Resolve(name)
		return err != nil && strings.Contains(err.Error(), want) || err == nil && strings.Contains(at.String(), want)
	})
}

func (f *followedServices) set(s *servingv1.Service) { f.putObject("Service", knativeServices, s) }

// readyService returns a service with an address and conditions.
func readyService(name, address string, conditions ...string) *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, c := range conditions {
		kind, rest, _ := strings.Cut(c, "=")
		status, why, _ := strings.Cut(rest, " ")
		reason, message, _ := strings.Cut(why, ": ")
		s.Status.Conditions = append(s.Status.Conditions, apis.Condition{Type: apis.ConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason, Message: message})
	}
	if address != "" {
		s.Status.Address = &duckv1.Addressable{URL: urlOf(address)}
		s.Status.URL = urlOf("http://" + name + ".ml.example")
	}
	return s
}

func urlOf(text string) *apis.URL {
	u, err := apis.ParseURL(text)
	if err != nil {
		return nil
	}
	return u
}

func TestServicesAreFollowed(t *testing.T) {
	t.Parallel()
	f := startAPIServer(t).follow()
	f.set(readyService("there", "http://there.ml.svc.cluster.local", "RoutesReady=True"))
	f.resolves("there", "http://there.ml.svc.cluster.local")
	f.resolves("ml/there", "http://there.ml.svc.cluster.local")
	f.resolves("other/there", "give the trigger its url, such as http://there.other.svc.cluster.local")
	f.resolves("none", "there is no Knative Service none in namespace ml: deploy it")
	f.set(readyService("late", "", "Ready=Unknown Deploying"))
	f.resolves("late", "the Knative Service late is not ready: Deploying")
	f.set(readyService("late", "http://late.ml.svc.cluster.local", "Ready=True", "RoutesReady=True"))
	f.resolves("late", "http://late.ml.svc.cluster.local")
	f.delete(knativePath + "there")
	f.resolves("there", "there is no Knative Service there")
	if err := f.Check(); err != nil {
		t.Error(err)
	}
}

// refuseWith makes the server answer all requests with a status; 0 makes it work again.
func (s *apiServer) refuseWith(status int) {
	s.mu.Lock()
	s.refuse = func(*http.Request) int { return status }
	s.mu.Unlock()
	s.hangUp()
}

// While the API server is down, services keep their last known state. Changes are seen after the
// outage.
func TestServicesOutliveAnOutage(t *testing.T) {
	t.Parallel()
	f := startAPIServer(t).follow()
	f.set(readyService("a", "http://a.ml.svc.cluster.local", "RoutesReady=True"))
	f.resolves("a", "http://a.")
	f.refuseWith(http.StatusServiceUnavailable)
	f.waitUntil("the fault is told", func() bool { return f.Check() != nil })
	f.resolves("a", "http://a.")
	f.set(readyService("b", "http://b.ml.svc.cluster.local", "RoutesReady=True"))
	f.delete(knativePath + "a")
	f.refuseWith(0)
	f.resolves("b", "http://b.")
	f.resolves("a", "there is no Knative Service a")
	f.waitUntil("it is well again", func() bool { return f.Check() == nil })
}

func TestWhatIsWrongWithAClusterIsSaid(t *testing.T) {
	t.Parallel()
	for status, says := range map[int]string{
		http.StatusNotFound:  "this cluster has no Knative Serving: install it, or have our functions be plain Deployments (functions.knative: false)",
		http.StatusForbidden: "may not watch services.serving.knative.dev in namespace ml: give it list and watch",
	} {
		s := startAPIServer(t)
		s.refuseWith(status)
		f := s.follow()
		f.resolves("a", says)
		f.set(readyService("a", "http://a.ml.svc.cluster.local", "RoutesReady=True"))
		f.refuseWith(0)
		f.resolves("a", "http://a.")
	}
}

func TestWhetherAServiceIsReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   *servingv1.Service
		at   string
		says string
	}{
		"new":              {readyService("a", ""), "", "Knative has not looked at it yet"},
		"ready":            {readyService("a", "http://a.ml.svc", "Ready=True", "RoutesReady=True"), "http://a.ml.svc", ""},
		"without route":    {readyService("a", "http://a.ml.svc", "Ready=False RevisionFailed: no image", "RoutesReady=Unknown"), "", "no image"},
		"the old one goes": {readyService("a", "http://a.ml.svc", "Ready=False RevisionFailed: no image", "RoutesReady=True"), "http://a.ml.svc", ""},
		"without address":  {readyService("a", "", "RoutesReady=True"), "", "it has no address yet"},
		"route says why":   {readyService("a", "http://a.ml.svc", "Ready=Unknown", "RoutesReady=False IngressNotConfigured"), "", "IngressNotConfigured"},
	} {
		got := serviceOf(c.of)
		switch {
		case c.at == "" && (got.at != nil || got.why != c.says):
			t.Errorf("%s: %v, %q", name, got.at, got.why)
		case c.at != "" && (got.at == nil || got.at.String() != c.at):
			t.Errorf("%s: %v, %q", name, got.at, got.why)
		}
	}
	public := readyService("a", "http://x.example", "RoutesReady=True")
	public.Status.Address = nil
	if got := serviceOf(public); got.at == nil || got.at.String() != "http://a.ml.example" {
		t.Errorf("without an address in the cluster it is %v", got.at)
	}
	going := readyService("a", "http://a.ml.svc", "RoutesReady=True")
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if got := serviceOf(going); got.at != nil || got.why != "it is being deleted" {
		t.Errorf("one that is being deleted: %v, %q", got.at, got.why)
	}
}
