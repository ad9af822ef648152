package main

import (
	"context"
	"strings"
	"sync/atomic"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// copyOn is the ceiling of a scorer: it reads and writes like a scorer, without inference. It calls
// Done for an event once the event's output is acknowledged.
func copyOn(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	b, stream, err := open(ctx, t)
	if err != nil {
		return r, err
	}
	defer b.Close()
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Group: t.Group, Streams: []string{stream}, MaxBytes: task.BufferedBytes, CommitEvery: task.CommitEvery})
	if err != nil {
		return r, err
	}
	p, err := b.Producer(broker.ProducerOptions{Linger: task.CopyLinger, Compression: task.Compression, MaxBuffered: task.BufferedBytes})
	if err != nil {
		return r, err
	}
	k := &eventCopier{c: c, p: p, out: strings.TrimPrefix(t.Out, strings.TrimSuffix(t.Topic, stream)), data: t.Filler()}
	if _, err := k.copy(ctx, t.Warm); err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(t); err != nil {
		return r, err
	}
	if t.Records, err = k.copy(ctx, t.Records); err != nil {
		return r, err
	}
	if r, err = m.Stop(t); err != nil {
		return r, err
	}
	if err := p.Close(ctx); err != nil {
		return r, err
	}
	return r, c.Close(ctx)
}

// eventCopier copies events.
type eventCopier struct {
	c      *broker.Consumer
	p      *broker.Producer
	out    string
	data   []byte
	ids    []byte
	ends   []int
	failed atomic.Pointer[error]
}

// copy copies at least n events, and waits until they are acknowledged.
func (k *eventCopier) copy(ctx context.Context, n int) (got int, err error) {
	for got < n {
		d, err := k.c.Poll(ctx)
		if err != nil {
			return got, err
		}
		got += len(d.Events)
		k.deliver(ctx, d)
	}
	if err := k.p.Flush(ctx); err != nil {
		return got, err
	}
	if err := k.failed.Load(); err != nil {
		return got, *err
	}
	return got, nil
}

func (k *eventCopier) deliver(ctx context.Context, d *broker.Delivery) {
	ids := k.positions(d)
	var left atomic.Int64
	left.Store(int64(len(d.Events)))
	acknowledged := func(_ broker.Receipt, err error) {
		if err != nil {
			k.failed.CompareAndSwap(nil, &err)
		}
		if left.Add(-1) == 0 {
			d.Done()
		}
	}
	v := broker.View{Source: task.CopySource, Type: task.CopyType, DataSchema: task.CopySchema, DataContentType: "application/json", Data: k.data,
		Extensions: make([]broker.Attribute, 4)}
	begin, events, partition := 0, d.Events, d.Partition
	for i := range events {
		e := &events[i]
		v.ID, begin = ids[begin:k.ends[i]], k.ends[i]
		v.Subject, v.Time, v.Key = e.Subject, e.View.Time, e.Key
		v.Extensions[0] = broker.Attribute{Name: tidemill.AttrModel, Value: e.Subject}
		v.Extensions[1] = broker.Attribute{Name: tidemill.AttrModelVersion, Value: task.CopyVersion}
		v.Extensions[2] = broker.Attribute{Name: tidemill.AttrCausationID, Value: e.ID}
		v.Extensions[3] = broker.Attribute{Name: tidemill.AttrCausationSource, Value: e.Source}
		k.p.SendTo(ctx, k.out, partition, &v, acknowledged)
	}
}

// positions returns the ids of a delivery's outputs as one string.
func (k *eventCopier) positions(d *broker.Delivery) string {
	k.ids, k.ends = k.ids[:0], k.ends[:0]
	for i := range d.Events {
		k.ids = task.AppendPosition(k.ids, d.Stream, d.Partition, d.Events[i].Offset)
		k.ends = append(k.ends, len(k.ids))
	}
	return string(k.ids)
}
