package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidemill.dev/loadtest/internal/task"
)

func produce(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	c, err := client(t,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(task.BatchBytes),
		kgo.ProducerLinger(t.Linger),
		kgo.MaxBufferedRecords(1<<30),
		kgo.MaxBufferedBytes(task.BufferedBytes))
	if err != nil {
		return r, err
	}
	defer c.Close()
	w := &writer{c: c, topic: t.Topic, events: task.Events(), reuse: t.Reuse}
	w.records.New = func() any { return &kgo.Record{} }
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
	return m.Stop(t)
}

type writer struct {
	c       *kgo.Client
	topic   string
	events  []task.Event
	failed  atomic.Pointer[error]
	reuse   bool
	records sync.Pool
}

func (w *writer) fail(err error) { w.failed.CompareAndSwap(nil, &err) }

// write produces n records and waits until all of them are acknowledged.
func (w *writer) write(ctx context.Context, n int) error {
	acknowledged := func(r *kgo.Record, err error) {
		if err != nil {
			w.fail(err)
		}
		if w.reuse {
			w.records.Put(r)
		}
	}
	for i := range n {
		w.c.Produce(ctx, w.record(&w.events[i%len(w.events)]), acknowledged)
	}
	if err := w.c.Flush(ctx); err != nil {
		return err
	}
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// record makes a record of an event. The client uses it until it is acknowledged, so the next event
// needs another record. With reuse the records are pooled, which users can do, but few users do.
func (w *writer) record(e *task.Event) *kgo.Record {
	if !w.reuse {
		return &kgo.Record{Topic: w.topic, Key: e.Bytes.Subject, Value: e.Data, Headers: eventHeaders(nil, e)}
	}
	r := w.records.Get().(*kgo.Record)
	*r = kgo.Record{Topic: w.topic, Key: e.Bytes.Subject, Value: e.Data, Headers: eventHeaders(r.Headers[:0], e)}
	return r
}

// eventHeaders returns an event's headers in the CloudEvents Kafka binding.
func eventHeaders(dst []kgo.RecordHeader, e *task.Event) []kgo.RecordHeader {
	if dst == nil {
		dst = make([]kgo.RecordHeader, 0, 9)
	}
	b := &e.Bytes
	return append(dst,
		kgo.RecordHeader{Key: "ce_specversion", Value: b.Version},
		kgo.RecordHeader{Key: "ce_id", Value: b.ID},
		kgo.RecordHeader{Key: "ce_source", Value: b.Source},
		kgo.RecordHeader{Key: "ce_type", Value: b.Type},
		kgo.RecordHeader{Key: "ce_subject", Value: b.Subject},
		kgo.RecordHeader{Key: "ce_time", Value: b.Time},
		kgo.RecordHeader{Key: "content-type", Value: b.ContentType},
		kgo.RecordHeader{Key: "ce_dataset", Value: b.Dataset},
		kgo.RecordHeader{Key: "ce_branch", Value: b.Branch})
}
