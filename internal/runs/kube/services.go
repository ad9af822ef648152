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
	known bool  // whether all services were listed once
	fault error // last error of the watch; nil if it works
}

// Services starts to follow the Knative Services until the context ends. It returns before the
// services are listed.
func (c *Cluster) Services(ctx context.Context) (*Services, error) {
	s := &Services{namespace: c.namespace, all: map[string]service{}}
	c.all.Go(func() {
		followKind(ctx, &c.clients.functions, metav1.ListOptions{}, reflectorStore{s}, func(err error) {
			err = s.explain(err)
			if s.storeError(err) {
				c.log.Warn("kube: watching Knative Services failed; their state is out of date", "reason", err)
			}
		})
	})
	return s, nil
}

// ErrElsewhere is the error for a service in another namespace.
var ErrElsewhere = errors.New("it is in another namespace, and this install may only read its own")

// Resolve returns the URL of a service, the URL inside the cluster if it has one. If the service is
// missing or not ready, Resolve returns an error, and a later call may succeed. A name may include
// a namespace. For a namespace that is not ours, the error is ErrElsewhere.
func (s *Services) Resolve(name string) (*url.URL, error) {
	if namespace, in, ok := strings.Cut(name, "/"); ok {
		if namespace != s.namespace {
			return nil, fmt.Errorf("find the service %s: %w (%s): give the trigger its url, such as http://%s.%s.svc.cluster.local", name, ErrElsewhere, s.namespace, in, namespace)
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
		return nil, fmt.Errorf("find the service %s: the list of services is not read yet", name)
	case !there:
		return nil, fmt.Errorf("there is no Knative Service %s in namespace %s: deploy it, or correct the trigger's service", name, s.namespace)
	case one.at == nil:
		return nil, fmt.Errorf("the Knative Service %s is not ready: %s; kubectl describe ksvc %s shows more", name, one.why, name)
	}
	at := *one.at
	return &at, nil
}

// Check returns the last error of the watch; nil if it works. Services known before an error still
// resolve.
func (s *Services) Check() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.fault
}

// storeError stores an error, and reports whether it differs from the last one.
func (s *Services) storeError(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.fault == nil || s.fault.Error() != err.Error()
	s.fault = err
	return news
}

// explain adds advice to errors that a person must fix.
func (s *Services) explain(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("this cluster has no Knative Serving: install it, or have our functions be plain Deployments (functions.knative: false): %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the service account of this process may not watch services.serving.knative.dev in namespace %s: give it list and watch: %w", s.namespace, err)
	}
	return err
}

// reflectorStore is the store of the reflector.
type reflectorStore struct{ *Services }

// Add implements cache.ReflectorStore.
func (s reflectorStore) Add(o any) error { return s.take(o) }

// Update implements cache.ReflectorStore.
func (s reflectorStore) Update(o any) error { return s.take(o) }

func (s reflectorStore) take(o any) error {
	one, ok := o.(*servingv1.Service)
	if !ok {
		return fmt.Errorf("take a Knative Service: it is a %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[one.Name] = serviceOf(one)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s reflectorStore) Delete(o any) error {
	one, ok := o.(*servingv1.Service)
	if !ok {
		return fmt.Errorf("lose a Knative Service: it is a %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, one.Name)
	return nil
}

// Replace implements cache.ReflectorStore.
func (s reflectorStore) Replace(list []any, _ string) error {
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

// Resync implements cache.ReflectorStore.
func (s reflectorStore) Resync() error { return nil }

// service is the state of one Knative Service.
type service struct {
	at  *url.URL // nil if the service is not ready
	why string   // reason why the service is not ready
}

// serviceOf reads a service's status. The service is ready as long as its route is ready: if a new
// revision starts or fails, the previous revision still answers.
func serviceOf(s *servingv1.Service) service {
	if s.DeletionTimestamp != nil {
		return service{why: "it is being deleted"}
	}
	if c := s.Status.GetCondition(servingv1.ServiceConditionRoutesReady); c == nil || !c.IsTrue() {
		return service{why: unreadyReason(s)}
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

// unreadyReason returns the reason from the service's conditions; Ready comes first.
func unreadyReason(s *servingv1.Service) string {
	for _, kind := range []string{string(servingv1.ServiceConditionReady), string(servingv1.ServiceConditionConfigurationsReady), string(servingv1.ServiceConditionRoutesReady)} {
		for _, c := range s.Status.Conditions {
			if string(c.Type) == kind && !c.IsTrue() && (c.Reason != "" || c.Message != "") {
				return messageOf(c.Reason, c.Message)
			}
		}
	}
	return "Knative has not looked at it yet"
}
