package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
)

// gatewayTarget goes through a gateway.
type gatewayTarget struct {
	g   *remote.Gateway
	out io.Writer // for what people should know

	mu       sync.Mutex
	batchers map[string]*remote.Batcher // of send, by stream
}

func (t *gatewayTarget) worry() worry { return worry{who: "the gateway", trouble: t.g.Trouble} }

// worrying tells who waits at a keyboard what for.
func (t *gatewayTarget) worrying(what string) (stop func()) {
	w := t.worry()
	return w.watch(t.out, what)
}

const asked = "it is asked again for 10 seconds"

func (t *gatewayTarget) publish(ctx context.Context, stream string, v *broker.View) (remote.Receipt, error) {
	defer t.worrying("the event is on its way, and tried again for 2 minutes")()
	return t.g.Publish(ctx, stream, v)
}

func (t *gatewayTarget) send(ctx context.Context, stream string, v *broker.View, done func(remote.Receipt, error)) {
	t.batcher(stream).Send(ctx, v, done)
}

func (t *gatewayTarget) batcher(stream string) *remote.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok := t.batchers[stream]
	if !ok {
		if t.batchers == nil {
			t.batchers = map[string]*remote.Batcher{}
		}
		b = t.g.Batcher(stream)
		t.batchers[stream] = b
	}
	return b
}

func (t *gatewayTarget) all() []*remote.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*remote.Batcher
	for _, b := range t.batchers {
		all = append(all, b)
	}
	return all
}

func (t *gatewayTarget) flush(ctx context.Context) error {
	var failed []error
	for _, b := range t.all() {
		failed = append(failed, b.Flush(ctx))
	}
	return errors.Join(failed...)
}

func (t *gatewayTarget) follow(ctx context.Context, o following, each func(*tail.Event) error) error {
	what := remote.TailOptions{Stream: o.stream, From: o.start.String(), ToEnd: o.toEnd, Limit: o.limit, Away: t.away}
	if o.where != nil {
		what.Where = o.where.String()
	}
	stop := t.worrying(asked)
	r, err := t.g.Tail(ctx, what)
	stop()
	if err != nil {
		return err
	}
	defer r.Close()
	o.begun()
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF { // bare: the end, and not a connection's
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch {
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

// away says once that the gateway has gone, and once that it is back.
func (t *gatewayTarget) away(err error) {
	if err != nil {
		fmt.Fprintf(t.out, "The gateway does not answer, and tail goes on when it does: %v\n", err)
		return
	}
	fmt.Fprintln(t.out, "The gateway is back.")
}

func (t *gatewayTarget) streams(ctx context.Context) ([]api.Stream, error) {
	defer t.worrying(asked)()
	return t.g.Streams(ctx)
}

// close waits for nothing: who wanted to wait has flushed.
func (t *gatewayTarget) close(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for _, b := range t.all() {
		_ = b.Close(ctx) // each event that is left has been told
	}
	t.g.Close()
	return nil
}
