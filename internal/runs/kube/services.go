package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// Services follows the Knative Services of the namespace.
type Services struct {
	namespace string

	mu    sync.RWMutex
	all   map[string]service
	known bool  // they have been listed once
	fault error // of the following; nil is well
}

// Services begins to follow them until the context ends, or the cluster closes. It
// returns before it knows any.
func (c *Cluster) Services(ctx context.Context) (*Services, error) {
	s := &Services{namespace: c.namespace, all: map[string]service{}}
	c.all.Go(func() {
		follow(ctx, &c.clients.functions, metav1.ListOptions{}, listed{s}, func(err error) {
			err = s.explain(err)
			if s.fails(err) {
				c.log.Warn("it is not known any more which services are ready", "reason", err)
			}
		})
	})
	return s, nil
}

// ErrElsewhere is why a service is never found.
var ErrElsewhere = errors.New("it lies in another namespace, which this install may not look into,")

// Resolve is where a service is called, from within the cluster if it has an
// address there. What is not ready has an error that says so; it passes, or it has
// none.
//
// A name may say its namespace. We see into our own alone, which does not pass:
// ErrElsewhere.
func (s *Services) Resolve(name string) (*url.URL, error) {
	if namespace, in, ok := strings.Cut(name, "/"); ok {
		if namespace != s.namespace {
			return nil, fmt.Errorf("find the service %s: %w than %s: give the trigger its url, such as http://%s.%s.svc.cluster.local", name, ErrElsewhere, s.namespace, in, namespace)
		}
		name = in
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	one, there := s.all[name]
	switch {
	case !s.known && s.fault != nil:
		return nil, fmt.Errorf("find the service %s: %w", name, s.fault)
	case !s.known:
		return nil, fmt.Errorf("find the service %s: the API server has not told yet which there are", name)
	case !there:
		return nil, fmt.Errorf("there is no Knative Service %s in namespace %s: deploy it, or correct the trigger's service", name, s.namespace)
	case one.at == nil:
		return nil, fmt.Errorf("the Knative Service %s is not ready: %s; kubectl describe ksvc %s tells more", name, one.why, name)
	}
	at := *one.at
	return &at, nil
}

// Check says how the following goes; nil is well. What was known before a fault
// still counts.
func (s *Services) Check() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.fault
}

// fails notes a fault, and tells whether it is news.
func (s *Services) fails(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.fault == nil || s.fault.Error() != err.Error()
	s.fault = err
	return news
}

// explain says what to do about the faults that do not pass by themselves.
func (s *Services) explain(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("this cluster has no Knative Serving: install it, or have our functions be plain Deployments (functions.knative: false): %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the service account of this process may not watch services.serving.knative.dev in namespace %s: give it list and watch: %w", s.namespace, err)
	}
	return err
}

// listed is where the reflector puts what it reads.
type listed struct{ *Services }

// Add is of cache.ReflectorStore.
func (s listed) Add(o any) error { return s.take(o) }

// Update is of cache.ReflectorStore.
func (s listed) Update(o any) error { return s.take(o) }

func (s listed) take(o any) error {
	one, ok := o.(*servingv1.Service)
	if !ok {
		return fmt.Errorf("take a Knative Service: it is a %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[one.Name] = serviceOf(one)
	return nil
}

// Delete is of cache.ReflectorStore.
func (s listed) Delete(o any) error {
	one, ok := o.(*servingv1.Service)
	if !ok {
		return fmt.Errorf("lose a Knative Service: it is a %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, one.Name)
	return nil
}

// Replace is of cache.ReflectorStore.
func (s listed) Replace(list []any, _ string) error {
	all := make(map[string]service, len(list))
	for _, o := range list {
		one, ok := o.(*servingv1.Service)
		if !ok {
			return fmt.Errorf("list the Knative Services: one is a %T", o)
		}
		all[one.Name] = serviceOf(one)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.known, s.fault = all, true, nil
	return nil
}

// Resync is of cache.ReflectorStore.
func (s listed) Resync() error { return nil }

// service is what counts of one.
type service struct {
	at  *url.URL // nil while it is not ready
	why string   // it is not
}

// serviceOf reads what a service says of itself. It is ready as long as its route leads
// somewhere: beside a revision that does not come up, or is coming, the one before
// goes on answering.
func serviceOf(s *servingv1.Service) service {
	if s.DeletionTimestamp != nil {
		return service{why: "it is being deleted"}
	}
	if c := s.Status.GetCondition(servingv1.ServiceConditionRoutesReady); c == nil || !c.IsTrue() {
		return service{why: unready(s)}
	}
	to := s.Status.URL
	if a := s.Status.Address; a != nil && a.URL != nil {
		to = a.URL
	}
	if to == nil || to.Host == "" {
		return service{why: "it has no address yet"}
	}
	return service{at: to.URL()}
}

// unready is what its conditions say, the whole's first.
func unready(s *servingv1.Service) string {
	for _, kind := range []string{string(servingv1.ServiceConditionReady), string(servingv1.ServiceConditionConfigurationsReady), string(servingv1.ServiceConditionRoutesReady)} {
		for _, c := range s.Status.Conditions {
			if string(c.Type) == kind && !c.IsTrue() && (c.Reason != "" || c.Message != "") {
				return says(c.Reason, c.Message)
			}
		}
	}
	return "Knative has not looked at it yet"
}
