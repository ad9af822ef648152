package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"tidemill.dev/broker/retry"
)

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
