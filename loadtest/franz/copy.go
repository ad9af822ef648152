package main

import (
	"context"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidemill.dev/loadtest/internal/task"
)

// copyOn reads and writes like a scorer, without inference. Polled records are committed whether
// their outputs are acknowledged or not, which is in franz-go's favour.
func copyOn(ctx context.Context, t task.Task) (task.Result, error) {
	var r task.Result
	c, err := client(t,
		kgo.ConsumeTopics(t.Topic),
		kgo.ConsumerGroup(t.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(task.FetchBytes),
		kgo.FetchMaxPartitionBytes(task.PartitionBytes),
		kgo.AutoCommitInterval(task.CommitEvery),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(task.BatchBytes),
		kgo.ProducerLinger(task.CopyLinger),
		kgo.MaxBufferedRecords(1<<30),
		kgo.MaxBufferedBytes(task.BufferedBytes))
	if err != nil {
		return r, err
	}
	defer c.Close()
	k := &recordCopier{c: c, t: t, data: t.Filler()}
	if _, err := k.copyRecords(ctx, t.Warm); err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(t); err != nil {
		return r, err
	}
	if t.Records, err = k.copyRecords(ctx, t.Records); err != nil {
		return r, err
	}
	if r, err = m.Stop(t); err != nil {
		return r, err
	}
	return r, c.CommitUncommittedOffsets(ctx)
}

// maxPolled is the maximum number of records per poll, so that the warm-up does not take all
// records.
const maxPolled = 8192

type recordCopier struct {
	c      *kgo.Client
	t      task.Task
	data   []byte
	failed atomic.Pointer[error]
}

// copyRecords copies at least n records, and waits until they are acknowledged.
func (k *recordCopier) copyRecords(ctx context.Context, n int) (got int, err error) {
	acknowledged := func(_ *kgo.Record, err error) {
		if err != nil {
			k.failed.CompareAndSwap(nil, &err)
		}
	}
	for got < n {
		f := k.c.PollRecords(ctx, maxPolled)
		if err := f.Err(); err != nil {
			return got, err
		}
		f.EachRecord(func(r *kgo.Record) {
			k.c.Produce(ctx, k.output(r), acknowledged)
			got++
		})
	}
	if err := k.c.Flush(ctx); err != nil {
		return got, err
	}
	if err := k.failed.Load(); err != nil {
		return got, *err
	}
	return got, nil
}

// output returns a record with the headers of a scored event, for the input's partition.
func (k *recordCopier) output(in *kgo.Record) *kgo.Record {
	id := task.AppendPosition(nil, in.Topic, in.Partition, in.Offset)
	headers := append(make([]kgo.RecordHeader, 0, 11),
		kgo.RecordHeader{Key: "ce_specversion", Value: []byte("1.0")},
		kgo.RecordHeader{Key: "ce_id", Value: id},
		kgo.RecordHeader{Key: "ce_source", Value: []byte(task.CopySource)},
		kgo.RecordHeader{Key: "ce_type", Value: []byte(task.CopyType)},
		kgo.RecordHeader{Key: "ce_dataschema", Value: []byte(task.CopySchema)},
		kgo.RecordHeader{Key: "content-type", Value: []byte("application/json")},
		kgo.RecordHeader{Key: "ce_model", Value: in.Key},
		kgo.RecordHeader{Key: "ce_modelversion", Value: []byte(task.CopyVersion)})
	for i := range in.Headers {
		switch h := &in.Headers[i]; h.Key {
		case "ce_id":
			headers = append(headers, kgo.RecordHeader{Key: "ce_causationid", Value: h.Value})
		case "ce_source":
			headers = append(headers, kgo.RecordHeader{Key: "ce_causationsource", Value: h.Value})
		case "ce_subject", "ce_time":
			headers = append(headers, *h)
		}
	}
	return &kgo.Record{Topic: k.t.Out, Partition: in.Partition, Key: in.Key, Value: k.data, Headers: headers}
}
