package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/client/clientset/versioned"
	client "knative.dev/networking/pkg/client/clientset/versioned/typed/networking/v1alpha1"
	"knative.dev/networking/pkg/client/informers/externalversions"
	listers "knative.dev/networking/pkg/client/listers/networking/v1alpha1"
)

const (
	// class is the ingress class of config-network, which makes Knative's Ingresses ours.
	class = "ingress.tidemill.dev"
	// internal is the name of our Service. Placeholders of Knative Services point to it.
	internal = "ingress.tidemill-ingress.svc.cluster.local"
)

// watcher maintains the table and reports ready Ingresses to Knative.
type watcher struct {
	table  table
	client client.IngressesGetter
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func newWatcher(c client.IngressesGetter) *watcher {
	return &watcher{client: c, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())}
}

// ServeHTTP answers 503 as long as there is no table.
func (w *watcher) ServeHTTP(rw http.ResponseWriter, _ *http.Request) {
	if w.table.hosts.Load() == nil {
		http.Error(rw, "the Ingresses have not been listed yet", http.StatusServiceUnavailable)
	}
}

func (w *watcher) run(ctx context.Context, c versioned.Interface) error {
	factory := externalversions.NewSharedInformerFactory(c, 0)
	informer := factory.Networking().V1alpha1().Ingresses()
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.enqueue,
		UpdateFunc: func(_, now any) { w.enqueue(now) },
		DeleteFunc: w.enqueue,
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go func() {
		<-ctx.Done()
		w.queue.ShutDown()
	}()
	lister := informer.Lister()
	if err := w.rebuild(lister); err != nil {
		return err
	}
	for w.next(ctx, lister) {
	}
	return nil
}

func (w *watcher) enqueue(object any) {
	name, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		slog.Error("an Ingress has no name", "reason", err)
		return
	}
	w.queue.Add(name)
}

// next handles one changed object. It returns false at the end.
func (w *watcher) next(ctx context.Context, lister listers.IngressLister) bool {
	name, stop := w.queue.Get()
	if stop {
		return false
	}
	defer w.queue.Done(name)
	if err := errors.Join(w.rebuild(lister), w.tell(ctx, lister, name)); err != nil {
		slog.Warn("an Ingress is tried again", "ingress", name.String(), "reason", err)
		w.queue.AddRateLimited(name)
		return true
	}
	w.queue.Forget(name)
	return true
}

// rebuild makes the whole table again. Tests have tens of Ingresses, not thousands.
func (w *watcher) rebuild(lister listers.IngressLister) error {
	all, err := lister.List(labels.Everything())
	if err != nil {
		return err
	}
	var mine []*v1alpha1.Ingress
	for _, ingress := range all {
		if isOurs(ingress) {
			mine = append(mine, ingress)
		}
	}
	w.table.set(mine)
	return nil
}

func isOurs(ingress *v1alpha1.Ingress) bool {
	return ingress.Annotations[networking.IngressClassAnnotationKey] == class && ingress.DeletionTimestamp == nil
}

// tell marks an Ingress ready, because the table has it already.
func (w *watcher) tell(ctx context.Context, lister listers.IngressLister, name cache.ObjectName) error {
	found, err := lister.Ingresses(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) || err == nil && !isOurs(found) {
		return nil
	}
	if err != nil {
		return err
	}
	ingress := readied(found)
	if equality.Semantic.DeepEqual(found.Status, ingress.Status) {
		return nil
	}
	_, err = w.client.Ingresses(name.Namespace).UpdateStatus(ctx, ingress, metav1.UpdateOptions{})
	return err
}

// readied returns the Ingress with a ready status.
func readied(found *v1alpha1.Ingress) *v1alpha1.Ingress {
	ingress := found.DeepCopy()
	here := []v1alpha1.LoadBalancerIngressStatus{{DomainInternal: internal}}
	ingress.Status.InitializeConditions()
	ingress.Status.MarkNetworkConfigured()
	ingress.Status.MarkLoadBalancerReady(here, here)
	ingress.Status.ObservedGeneration = ingress.Generation
	return ingress
}
