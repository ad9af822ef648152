//go:build cluster

package kube

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// entry is an event on a stream.
type entry struct {
	broker.View
	stream    string
	partition int32
	offset    int64
	at        time.Time // time at which the test read it
	logged    time.Time // time at which it reached the log
}

func (e entry) attribute(name string) string {
	v, _ := e.Attribute(name)
	return v
}

// journal reads streams from Kafka itself, from their beginning, because a gateway may be killed
// while it reads.
type journal struct {
	mu      sync.Mutex
	all     []entry
	changed chan struct{}
	failure error

	broker   *broker.Broker
	consumer *broker.Consumer
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// read begins to read streams, which must exist.
func read(ctx context.Context, kafka, install string, streams ...string) (*journal, error) {
	names, err := tidemill.NewNames(install)
	if err != nil {
		return nil, err
	}
	b, err := broker.Open(ctx, broker.Options{Addr: kafka, Names: names})
	if err != nil {
		return nil, err
	}
	c, err := b.Consumer(ctx, broker.ConsumerOptions{Streams: streams, Start: broker.Earliest()})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	j := &journal{changed: make(chan struct{}), broker: b, consumer: c}
	reading, stop := context.WithCancel(context.Background())
	j.stop = stop
	j.done.Go(func() { j.follow(reading) })
	return j, nil
}

func (j *journal) follow(ctx context.Context) {
	for ctx.Err() == nil {
		d, err := j.consumer.Poll(ctx)
		if err != nil {
			j.put(nil, err)
			return
		}
		var some []entry
		for i := range d.Events {
			e := &d.Events[i]
			some = append(some, entry{e.View.Clone(), d.Stream, d.Partition, e.Offset, time.Now(), e.Time})
		}
		d.Done()
		j.put(some, nil)
	}
}

func (j *journal) put(some []entry, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all, j.failure = append(j.all, some...), err
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *journal) close(ctx context.Context) error {
	j.stop()
	j.done.Wait()
	return errors.Join(j.consumer.Close(ctx), j.broker.Close())
}

// events returns the events so far that match, in the order in which they were read.
func (j *journal) events(want func(entry) bool) []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var some []entry
	for _, e := range j.all {
		if want(e) {
			some = append(some, e)
		}
	}
	return some
}

// waitUntil waits for a condition on the streams. word describes what is still missing.
func (j *journal) waitUntil(t *testing.T, what string, met func() (word string, ok bool)) {
	t.Helper()
	await(t, what, j.next, func() (string, bool) {
		failed := j.failed()
		word, ok := met()
		if !ok && failed != nil {
			t.Fatalf("read the streams: %v", failed)
		}
		return word, ok
	})
}

func (j *journal) next() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

func (j *journal) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failure
}

// waitForEvent waits for an event, and returns the first.
func (j *journal) waitForEvent(t *testing.T, what string, want func(entry) bool) entry {
	t.Helper()
	var found []entry
	j.waitUntil(t, what, func() (string, bool) {
		found = j.events(want)
		return "it has not come", len(found) > 0
	})
	return found[0]
}

// isEvent matches a type with a subject.
func isEvent(kind, subject string) func(entry) bool {
	return func(e entry) bool { return e.Type == kind && e.Subject == subject }
}

// oneOf matches a type with one of these subjects.
func oneOf(kind string, subjects []string) func(entry) bool {
	return func(e entry) bool { return e.Type == kind && slices.Contains(subjects, e.Subject) }
}
