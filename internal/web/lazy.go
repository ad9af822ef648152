package web

import (
	"context"
	"sync"
)

// lazy opens something when it is first asked for: most gateways are never
// asked for the dead letters, and need not hold them.
type lazy[T any] struct {
	open  func(context.Context) (T, error)
	close func(context.Context, T) error

	mu      sync.Mutex
	closed  bool
	stop    context.CancelFunc
	opening *opening[T]
}

// opening is one try. Its fields are set before done is closed.
type opening[T any] struct {
	done chan struct{}
	it   T
	err  error
}

// get waits for it as long as the context allows. It is opened for all who ask,
// so whoever goes away does not end that; an error is that of one try.
func (l *lazy[T]) get(ctx context.Context) (it T, err error) {
	o, err := l.begun()
	if err != nil {
		return it, err
	}
	select {
	case <-o.done:
		return o.it, o.err
	case <-ctx.Done():
		return it, context.Cause(ctx)
	}
}

func (l *lazy[T]) begun() (*opening[T], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosing
	}
	if l.opening != nil && !l.opening.failed() {
		return l.opening, nil
	}
	o := &opening[T]{done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	l.opening, l.stop = o, stop
	go func() {
		defer close(o.done)
		o.it, o.err = l.open(ctx)
	}()
	return o, nil
}

func (o *opening[T]) failed() bool {
	select {
	case <-o.done:
		return o.err != nil
	default:
		return false
	}
}

// end closes what has been opened, and waits for it.
func (l *lazy[T]) end(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	o, stop := l.opening, l.stop
	l.mu.Unlock()
	if o == nil {
		return nil
	}
	stop()
	<-o.done
	if o.err != nil {
		return nil // whoever asked was told
	}
	return l.close(ctx, o.it)
}
