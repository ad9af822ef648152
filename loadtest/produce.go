package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// produceOurs is our side of the comparison: Send with a callback for each event.
func produceOurs(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	b, stream, err := open(ctx, t)
	if err != nil {
		return r, err
	}
	defer b.Close()
	p, err := b.Producer(broker.ProducerOptions{Linger: t.Linger, Compression: task.Compression, MaxBuffered: task.BufferedBytes})
	if err != nil {
		return r, err
	}
	w := &writer{p: p, stream: stream, events: task.Events()}
	if err := w.write(ctx, t.Warm); err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(t); err != nil {
		return r, err
	}
	if err := w.write(ctx, t.Records); err != nil {
		return r, err
	}
	if r, err = m.Stop(t); err != nil {
		return r, err
	}
	return r, p.Close(ctx)
}

func open(ctx context.Context, t task.Task) (*broker.Broker, string, error) {
	names, err := tidemill.NewNames("")
	if err != nil {
		return nil, "", err
	}
	stream, ok := names.Stream(t.Topic)
	if !ok {
		return nil, "", fmt.Errorf("topic %s is not of the install %s", t.Topic, names.Install())
	}
	b, err := broker.Open(ctx, broker.Options{Addr: t.Addr, Names: names})
	return b, stream, err
}

// writer sends events and keeps the first error.
type writer struct {
	p      *broker.Producer
	stream string
	events []task.Event
	failed atomic.Pointer[error]
}

func (w *writer) fail(err error) { w.failed.CompareAndSwap(nil, &err) }

// write sends n events and waits until all of them are acknowledged.
func (w *writer) write(ctx context.Context, n int) error {
	v := broker.View{Extensions: make([]broker.Attribute, 2)}
	acknowledged := func(_ broker.Receipt, err error) {
		if err != nil {
			w.fail(err)
		}
	}
	for i := range n {
		fill(&v, &w.events[i%len(w.events)])
		w.p.Send(ctx, w.stream, &v, acknowledged)
	}
	if err := w.p.Flush(ctx); err != nil {
		return err
	}
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// fill makes a view of an event, as a publisher does with its own data.
func fill(v *broker.View, e *task.Event) {
	v.ID, v.Source, v.Type, v.Subject = e.ID, e.Source, e.Type, e.Subject
	v.Time, v.DataContentType, v.Data = e.Time, e.ContentType, e.Data
	v.Extensions[0] = broker.Attribute{Name: "dataset", Value: e.Dataset}
	v.Extensions[1] = broker.Attribute{Name: "branch", Value: e.Branch}
}
