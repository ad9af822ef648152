package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/loadtest/internal/task"
)

// runScore warms up with the first events, then measures the task's number of events.
func runScore(ctx context.Context, t task.Scoring) (task.Result, error) {
	var r task.Result
	shelf, err := openShelf(t)
	if err != nil {
		return r, err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{t.Addr}, GroupID: t.Group, Topic: t.Topic,
		MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 100 * time.Millisecond, QueueCapacity: 1000,
		CommitInterval: time.Second, StartOffset: kafka.FirstOffset})
	writer := &kafka.Writer{Addr: kafka.TCP(t.Addr), Topic: t.Out, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchSize: 1000, BatchTimeout: 10 * time.Millisecond, Async: true}
	w := &scorePool{reader: reader, writer: writer, shelf: shelf, task: t}
	r, err = w.measure(ctx)
	return r, errors.Join(err, writer.Close(), reader.Close())
}

// scorePool is the reader, the writer and the models of the scoring goroutines.
type scorePool struct {
	reader *kafka.Reader
	writer *kafka.Writer
	shelf  *modelCache
	task   task.Scoring
}

func (w *scorePool) measure(ctx context.Context) (r task.Result, err error) {
	if err := w.scoreEvents(ctx, w.task.Warm); err != nil {
		return r, err
	}
	var m task.Meter
	if err := m.Start(w.task.Task); err != nil {
		return r, err
	}
	if err := w.scoreEvents(ctx, w.task.Records); err != nil {
		return r, err
	}
	return m.Stop(w.task.Task)
}

// queueSize is the number of events that may wait for each goroutine.
const queueSize = 256

// scoreEvents scores n events.
func (w *scorePool) scoreEvents(ctx context.Context, n int) error {
	queues := make([]chan kafka.Message, runtime.GOMAXPROCS(0))
	failed := make([]error, len(queues))
	var running sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan kafka.Message, queueSize)
		running.Go(func() { failed[i] = w.runWorker(ctx, queues[i]) })
	}
	var err error
	for range n {
		var m kafka.Message
		if m, err = w.reader.ReadMessage(ctx); err != nil {
			break
		}
		queues[m.Partition%len(queues)] <- m
	}
	for _, q := range queues {
		close(q)
	}
	running.Wait()
	return errors.Join(append(failed, err)...)
}

// runWorker continues after an error, because otherwise the goroutine that feeds it would wait for
// ever.
func (w *scorePool) runWorker(ctx context.Context, queue <-chan kafka.Message) (failed error) {
	var s scorer
	for m := range queue {
		if failed != nil {
			continue
		}
		out, err := s.score(ctx, w.shelf, &m)
		if err == nil {
			err = w.writer.WriteMessages(ctx, out)
		}
		failed = err
	}
	return failed
}
