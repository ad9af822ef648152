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

// follow brings what the API server has of a kind into a store and keeps it so
// until the context ends. Whatever ends a watch, all is listed again: who was deaf
// for a while knows by that what has gone meanwhile.
//
// client-go's own loop around its reflector rests up to a minute after an outage.
// Ours rests two seconds at most, since what it waits for is told to people
// within one.
func follow[T, L runtime.Object](ctx context.Context, k *kind[T, L], choose metav1.ListOptions, into cache.ReflectorStore, trouble func(error)) {
	quiet := klog.NewContext(ctx, klog.Logger{}) // what it has to say we say ourselves
	r := cache.NewReflectorWithOptions(listerOf(k, choose), k.one(), into, cache.ReflectorOptions{Name: k.resource})
	backoff := retry.Backoff{First: shortRest, Cap: longRest}
	for ctx.Err() == nil {
		began := time.Now()
		err := r.ListAndWatchWithContext(quiet)
		if d, ok := into.(deafened); ok {
			d.deaf()
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

// deafened is a store that wants to know when it hears of nothing any more, until
// all is listed again.
type deafened interface{ deaf() }

// listerOf asks for what is chosen alone. A watch that cannot be opened is an
// error of no kind that the reflector knows: it would rest on it by itself.
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

// gathered is what there is of a kind, found by words that each object is listed
// under. Its objects are not to be changed.
type gathered[T metav1.Object] struct {
	words   func(T) []string
	trim    func(T)         // of what nobody needs
	changed func(was, is T) // one of them is nil where there is none; called without the lock
	full    func()          // all there was has been listed; called each time
	whole   atomic.Bool     // all there was has been listed, and what has changed since is told
	mu      sync.RWMutex
	all     map[string]T
	under   map[string]map[string]T
}

func gather[T metav1.Object](words func(T) []string, trim func(T), changed func(was, is T), full func()) *gathered[T] {
	return &gathered[T]{words: words, trim: trim, changed: changed, full: full, all: map[string]T{}, under: map[string]map[string]T{}}
}

// get finds one by its name.
func (g *gathered[T]) get(name string) (T, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	o, ok := g.all[name]
	return o, ok
}

// of are those that are listed under a word.
func (g *gathered[T]) of(word string) []T {
	g.mu.RLock()
	defer g.mu.RUnlock()
	found := make([]T, 0, len(g.under[word]))
	for _, o := range g.under[word] {
		found = append(found, o)
	}
	return found
}

// each calls fn for all.
func (g *gathered[T]) each(fn func(T)) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, o := range g.all {
		fn(o)
	}
}

// Add is of cache.ReflectorStore.
func (g *gathered[T]) Add(o any) error { return g.put(o) }

// Update is of cache.ReflectorStore.
func (g *gathered[T]) Update(o any) error { return g.put(o) }

func (g *gathered[T]) put(o any) error {
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

// Delete is of cache.ReflectorStore.
func (g *gathered[T]) Delete(o any) error {
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

// Replace is of cache.ReflectorStore.
func (g *gathered[T]) Replace(list []any, _ string) error {
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

func (g *gathered[T]) deaf() { g.whole.Store(false) }

// Resync is of cache.ReflectorStore.
func (g *gathered[T]) Resync() error { return nil }

func (g *gathered[T]) replace(is T) (was T) {
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

func (g *gathered[T]) take(name string) (was T) {
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
