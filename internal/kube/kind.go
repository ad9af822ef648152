package kube

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// kind is a client of one kind of objects in one namespace. client-go has such a
// one, which brings the machinery of its fakes into the binary.
type kind[T, L runtime.Object] struct {
	client    rest.Interface
	params    runtime.ParameterCodec
	namespace string
	resource  string
	one       func() T // empty, to be read into
	list      func() L
}

// object is a pointer to what is sent and received.
type object[T any] interface {
	*T
	runtime.Object
}

func kindOf[T, L any, PT object[T], PL object[L]](client rest.Interface, params runtime.ParameterCodec, namespace, resource string) kind[PT, PL] {
	return kind[PT, PL]{client, params, namespace, resource, func() PT { return new(T) }, func() PL { return new(L) }}
}

// Create makes an object. What there is already is an error that
// apierrors.IsAlreadyExists tells.
func (k *kind[T, L]) Create(ctx context.Context, o T) (T, error) {
	made := k.one()
	err := k.at(k.client.Post()).VersionedParams(&metav1.CreateOptions{}, k.params).Body(o).Do(ctx).Into(made)
	return made, err
}

// Get reads one.
func (k *kind[T, L]) Get(ctx context.Context, name string) (T, error) {
	found := k.one()
	err := k.at(k.client.Get()).Name(name).Do(ctx).Into(found)
	return found, err
}

// List reads those that the options choose.
func (k *kind[T, L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	found := k.list()
	err := k.at(k.client.Get()).VersionedParams(&o, k.params).Do(ctx).Into(found)
	return found, err
}

// Watch follows those that the options choose.
func (k *kind[T, L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	r := k.at(k.client.Get()).VersionedParams(&o, k.params)
	if o.TimeoutSeconds != nil {
		r = r.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return r.Watch(ctx)
}

// Patch changes one, or one of its subresources.
func (k *kind[T, L]) Patch(ctx context.Context, name string, how types.PatchType, patch []byte, subresource ...string) (T, error) {
	changed := k.one()
	err := k.at(k.client.Patch(how)).Name(name).SubResource(subresource...).Body(patch).Do(ctx).Into(changed)
	return changed, err
}

// Delete removes one. What is not there is an error that apierrors.IsNotFound
// tells.
func (k *kind[T, L]) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return k.at(k.client.Delete()).Name(name).Body(&o).Do(ctx).Error()
}

func (k *kind[T, L]) at(r *rest.Request) *rest.Request {
	return r.Namespace(k.namespace).Resource(k.resource)
}
