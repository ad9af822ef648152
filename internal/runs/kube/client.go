package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"tidemill.dev/broker/retry"
)

// clients has a client for each kind of object that we use. client-go's clientset has clients for
// all kinds of Kubernetes, which cost every process memory.
type clients struct {
	batch, core, apps, networking, serving *rest.RESTClient

	// Objects of attempts, in the namespace of runs.
	jobs     kind[*batchv1.Job, *batchv1.JobList]
	pods     kind[*corev1.Pod, *corev1.PodList]
	services kind[*corev1.Service, *corev1.ServiceList]
	secrets  kind[*corev1.Secret, *corev1.SecretList]
	policies kind[*networkingv1.NetworkPolicy, *networkingv1.NetworkPolicyList]

	// Objects of the install, in its own namespace.
	deployments kind[*appsv1.Deployment, *appsv1.DeploymentList]
	functions   kind[*servingv1.Service, *servingv1.ServiceList] // Services of Knative
}

const userAgent = "tidemill"

// kinds returns a scheme with the types that we use.
func kinds() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	err := (&runtime.SchemeBuilder{batchv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, autoscalingv1.AddToScheme, servingv1.AddToScheme}).AddToScheme(s)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s, err
}

// connect opens the clients, which share their connections. The clients have no rate limit, because
// the API server limits its clients itself and client-go obeys the server's answers.
func (c *Cluster) connect(server *rest.Config) error {
	scheme, err := kinds()
	if err != nil {
		return err
	}
	server.UserAgent = userAgent
	server.QPS = -1
	server.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if c.http, err = rest.HTTPClientFor(server); err != nil {
		return err
	}
	to, params := &c.clients, runtime.NewParameterCodec(scheme)
	for _, one := range []struct {
		to      **rest.RESTClient
		group   schema.GroupVersion
		base    string
		content string
	}{
		{&to.batch, batchv1.SchemeGroupVersion, "/apis", runtime.ContentTypeProtobuf},
		{&to.core, corev1.SchemeGroupVersion, "/api", runtime.ContentTypeProtobuf},
		{&to.apps, appsv1.SchemeGroupVersion, "/apis", runtime.ContentTypeProtobuf},
		{&to.networking, networkingv1.SchemeGroupVersion, "/apis", runtime.ContentTypeProtobuf},
		{&to.serving, servingv1.SchemeGroupVersion, "/apis", runtime.ContentTypeJSON}, // a custom resource, so no protobuf
	} {
		own := rest.CopyConfig(server)
		own.GroupVersion, own.APIPath, own.ContentType = &one.group, one.base, one.content
		own.AcceptContentTypes = one.content + "," + runtime.ContentTypeJSON
		if *one.to, err = rest.RESTClientForConfigAndClient(own, c.http); err != nil {
			return err
		}
	}
	to.jobs = kindOf[batchv1.Job, batchv1.JobList](to.batch, params, c.runs, "jobs")
	to.pods = kindOf[corev1.Pod, corev1.PodList](to.core, params, c.runs, "pods")
	to.services = kindOf[corev1.Service, corev1.ServiceList](to.core, params, c.runs, "services")
	to.secrets = kindOf[corev1.Secret, corev1.SecretList](to.core, params, c.runs, "secrets")
	to.policies = kindOf[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](to.networking, params, c.runs, "networkpolicies")
	to.deployments = kindOf[appsv1.Deployment, appsv1.DeploymentList](to.apps, params, c.namespace, "deployments")
	to.functions = kindOf[servingv1.Service, servingv1.ServiceList](to.serving, params, c.namespace, "services")
	return nil
}

// kind is a client of one kind of objects in one namespace. client-go's generic client would add
// its test fakes to the binary.
type kind[T, L runtime.Object] struct {
	client    rest.Interface
	params    runtime.ParameterCodec
	namespace string
	resource  string
	one       func() T // returns an empty object to read into
	list      func() L
}

// object is a pointer to a type of the API.
type object[T any] interface {
	*T
	runtime.Object
}

func kindOf[T, L any, PT object[T], PL object[L]](client rest.Interface, params runtime.ParameterCodec, namespace, resource string) kind[PT, PL] {
	return kind[PT, PL]{client, params, namespace, resource, func() PT { return new(T) }, func() PL { return new(L) }}
}

// Create makes an object. If it exists, the error is one of apierrors.IsAlreadyExists.
func (k *kind[T, L]) Create(ctx context.Context, o T) (T, error) {
	made := k.one()
	err := k.at(k.client.Post()).VersionedParams(&metav1.CreateOptions{}, k.params).Body(o).Do(ctx).Into(made)
	return made, err
}

// Get reads an object.
func (k *kind[T, L]) Get(ctx context.Context, name string) (T, error) {
	found := k.one()
	err := k.at(k.client.Get()).Name(name).Do(ctx).Into(found)
	return found, err
}

// List reads the objects that the options select.
func (k *kind[T, L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	found := k.list()
	err := k.at(k.client.Get()).VersionedParams(&o, k.params).Do(ctx).Into(found)
	return found, err
}

// Watch follows the objects that the options select.
func (k *kind[T, L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	r := k.at(k.client.Get()).VersionedParams(&o, k.params)
	if o.TimeoutSeconds != nil {
		r = r.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return r.Watch(ctx)
}

// Patch changes an object or one of its subresources.
func (k *kind[T, L]) Patch(ctx context.Context, name string, how types.PatchType, patch []byte, subresource ...string) (T, error) {
	changed := k.one()
	err := k.at(k.client.Patch(how)).Name(name).SubResource(subresource...).Body(patch).Do(ctx).Into(changed)
	return changed, err
}

// Delete removes an object. If it does not exist, the error is one of apierrors.IsNotFound.
func (k *kind[T, L]) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return k.at(k.client.Delete()).Name(name).Body(&o).Do(ctx).Error()
}

func (k *kind[T, L]) at(r *rest.Request) *rest.Request {
	return r.Namespace(k.namespace).Resource(k.resource)
}

const (
	shortRest = 100 * time.Millisecond
	longRest  = 2 * time.Second
)

// followKind keeps a store equal to the API server's objects of a kind until the context ends.
// After each end of a watch, followKind lists all objects again, because deletions may have been
// missed. client-go's own loop around its reflector waits up to a minute after an outage. This loop
// waits two seconds at most, because users should see changes within about a second.
func followKind[T, L runtime.Object](ctx context.Context, k *kind[T, L], choose metav1.ListOptions, into cache.ReflectorStore, trouble func(error)) {
	quiet := klog.NewContext(ctx, klog.Logger{}) // followKind logs the errors itself
	r := cache.NewReflectorWithOptions(listerOf(k, choose), k.one(), into, cache.ReflectorOptions{Name: k.resource})
	backoff := retry.Backoff{First: shortRest, Cap: longRest}
	for ctx.Err() == nil {
		began := time.Now()
		err := r.ListAndWatchWithContext(quiet)
		if d, ok := into.(watchEndObserver); ok {
			d.watchEnded()
		}
		if err != nil && ctx.Err() == nil {
			trouble(fmt.Errorf("follow the %s of namespace %s: %w", k.resource, k.namespace, err))
		}
		if time.Since(began) > longRest {
			backoff.Reset()
		}
		_ = backoff.Sleep(ctx)
	}
}

// watchEndObserver is a store that is notified when its watch ends. It is out of date until all
// objects are listed again.
type watchEndObserver interface{ watchEnded() }

// listerOf lists and watches the chosen objects. An error of opening a watch is returned without
// its type, because the reflector adds its own wait after errors of some types.
func listerOf[T, L runtime.Object](k *kind[T, L], choose metav1.ListOptions) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = choose.LabelSelector, choose.FieldSelector
			return k.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = choose.LabelSelector, choose.FieldSelector
			w, err := k.Watch(ctx, o)
			if err != nil {
				return nil, errors.New("open a watch: " + err.Error())
			}
			return w, nil
		},
	}
}

// objectIndex holds all objects of a kind, and finds them by index words. Callers must not change
// its objects.
type objectIndex[T metav1.Object] struct {
	words   func(T) []string
	trim    func(T)         // removes the fields that are not needed
	changed func(was, is T) // was is nil for a new object, and is is nil for a deleted object; called without the lock
	full    func()          // called after each full list
	whole   atomic.Bool     // all objects were listed, and the watch since then is not broken
	mu      sync.RWMutex
	all     map[string]T
	under   map[string]map[string]T
}

func gather[T metav1.Object](words func(T) []string, trim func(T), changed func(was, is T), full func()) *objectIndex[T] {
	return &objectIndex[T]{words: words, trim: trim, changed: changed, full: full, all: map[string]T{}, under: map[string]map[string]T{}}
}

// get returns an object by its name.
func (g *objectIndex[T]) get(name string) (T, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	o, ok := g.all[name]
	return o, ok
}

// withWord returns the objects under a word of the index.
func (g *objectIndex[T]) withWord(word string) []T {
	g.mu.RLock()
	defer g.mu.RUnlock()
	found := make([]T, 0, len(g.under[word]))
	for _, o := range g.under[word] {
		found = append(found, o)
	}
	return found
}

// forEach calls fn for each object.
func (g *objectIndex[T]) forEach(fn func(T)) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, o := range g.all {
		fn(o)
	}
}

// Add implements cache.ReflectorStore.
func (g *objectIndex[T]) Add(o any) error { return g.put(o) }

// Update implements cache.ReflectorStore.
func (g *objectIndex[T]) Update(o any) error { return g.put(o) }

func (g *objectIndex[T]) put(o any) error {
	is, ok := o.(T)
	if !ok {
		return fmt.Errorf("gather a %T, which is of another kind", o)
	}
	g.trim(is)
	g.mu.Lock()
	was := g.replace(is)
	g.mu.Unlock()
	g.changed(was, is)
	return nil
}

// Delete implements cache.ReflectorStore.
func (g *objectIndex[T]) Delete(o any) error {
	last, ok := o.(T)
	if !ok {
		return fmt.Errorf("lose a %T, which is of another kind", o)
	}
	g.trim(last)
	g.mu.Lock()
	g.take(last.GetName())
	g.mu.Unlock()
	var none T
	g.changed(last, none)
	return nil
}

// Replace implements cache.ReflectorStore.
func (g *objectIndex[T]) Replace(list []any, _ string) error {
	there := make(map[string]bool, len(list))
	for _, o := range list {
		if err := g.put(o); err != nil {
			return err
		}
		there[o.(T).GetName()] = true
	}
	var none T
	var gone []T
	g.mu.Lock()
	for name, o := range g.all {
		if !there[name] {
			gone = append(gone, o)
		}
	}
	for _, o := range gone {
		g.take(o.GetName())
	}
	g.mu.Unlock()
	for _, o := range gone {
		g.changed(o, none)
	}
	g.whole.Store(true)
	g.full()
	return nil
}

func (g *objectIndex[T]) watchEnded() { g.whole.Store(false) }

// Resync implements cache.ReflectorStore.
func (g *objectIndex[T]) Resync() error { return nil }

func (g *objectIndex[T]) replace(is T) (was T) {
	was = g.take(is.GetName())
	g.all[is.GetName()] = is
	for _, w := range g.words(is) {
		if g.under[w] == nil {
			g.under[w] = map[string]T{}
		}
		g.under[w][is.GetName()] = is
	}
	return was
}

func (g *objectIndex[T]) take(name string) (was T) {
	was, ok := g.all[name]
	if !ok {
		return was
	}
	delete(g.all, name)
	for _, w := range g.words(was) {
		if delete(g.under[w], name); len(g.under[w]) == 0 {
			delete(g.under, w)
		}
	}
	return was
}
