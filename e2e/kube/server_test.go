//go:build cluster

package kube

import (
	"context"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// apiServer is the cluster's API server with an administrator's rights. It does not use client-go's
// clientset, which has a hundred more packages to compile, because the test makes few calls.
type apiServer struct {
	core, apps, batch, serving, authorization rest.Interface
}

// dialServer reads a kubeconfig. If user is not empty, it impersonates that user.
func dialServer(kubeconfig, user string) (*apiServer, error) {
	config, err := readKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := (&runtime.SchemeBuilder{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, servingv1.AddToScheme,
		authorizationv1.AddToScheme}).AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("know the kinds: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS, config.Impersonate.UserName = -1, user
	s := &apiServer{}
	for _, c := range []struct {
		to    *rest.Interface
		group schema.GroupVersion
		path  string
	}{{&s.core, corev1.SchemeGroupVersion, "/api"}, {&s.apps, appsv1.SchemeGroupVersion, "/apis"}, {&s.batch, batchv1.SchemeGroupVersion, "/apis"},
		{&s.serving, servingv1.SchemeGroupVersion, "/apis"}, {&s.authorization, authorizationv1.SchemeGroupVersion, "/apis"}} {
		own := rest.CopyConfig(config)
		own.GroupVersion, own.APIPath = &c.group, c.path
		if *c.to, err = rest.RESTClientFor(own); err != nil {
			return nil, fmt.Errorf("reach %s: %w", config.Host, err)
		}
	}
	return s, nil
}

// kill ends a pod without a grace, like the loss of its machine.
func (s *apiServer) kill(ctx context.Context, p *corev1.Pod) error {
	now := int64(0)
	err := s.core.Delete().Namespace(p.Namespace).Resource("pods").Name(p.Name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: onlyPod(p)}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the pod has ended by itself
		return fmt.Errorf("kill pod %s: %w", p.Name, err)
	}
	return nil
}

// onlyPod restricts a deletion to one UID, so that another pod of the same name survives.
func onlyPod(p *corev1.Pod) *metav1.Preconditions {
	if p.UID == "" {
		return nil
	}
	return &metav1.Preconditions{UID: &p.UID}
}

// create creates an object unless it exists.
func create(ctx context.Context, to rest.Interface, namespace, resource string, o runtime.Object) error {
	err := to.Post().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Body(o).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create one of %s: %w", resource, err)
	}
	return nil
}

// find reads an object.
func find[T runtime.Object](ctx context.Context, from rest.Interface, namespace, resource, name string, to T) (T, error) {
	err := from.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Do(ctx).Into(to)
	return to, err
}

// list reads all objects of a kind.
func list[T runtime.Object](ctx context.Context, from rest.Interface, namespace, resource string, to T) (T, error) {
	err := from.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Do(ctx).Into(to)
	return to, err
}

// merge changes an object.
func merge(ctx context.Context, at rest.Interface, namespace, resource, name, patch string, subresource ...string) error {
	return at.Patch(types.MergePatchType).NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).
		SubResource(subresource...).Body([]byte(patch)).Do(ctx).Error()
}

// log returns the end of a container's log.
func (s *apiServer) log(ctx context.Context, p *corev1.Pod, container string, lines int, previous bool) (string, error) {
	r, err := s.core.Get().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("log").
		Param("container", container).Param("tailLines", fmt.Sprint(lines)).Param("previous", fmt.Sprint(previous)).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer r.Close()
	all, err := io.ReadAll(r)
	return string(all), err
}
