package kube

import (
	"context"
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
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
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
