package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// loneProducer returns a producer without goroutines, so that the test itself holds its partitions.
func loneProducer(timeout time.Duration) (*Producer, *outPartition) {
	p := &Producer{opt: ProducerOptions{Timeout: timeout}, senders: map[int32]*sender{}}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.stop(ErrClosed)
	p.budget.left = defaultBuffered
	p.batches.New = func() any { return &batch{} }
	topic := &outTopic{stream: "events", name: "tidemill.events"}
	topic.parts.Store(&outPartitions{})
	topic.resize(0, make([]int32, 1))
	o := topic.all()[0]
	o.place = homeless
	return p, o
}

// appendEvent appends an event and counts it as Send does.
func (o *outPartition) appendEvent(t *testing.T, p *Producer, done func(Receipt, error)) {
	t.Helper()
	r := wire.Record{Value: []byte("x")}
	size := wire.RecordSize(&r)
	mustTake(t, &p.budget, t.Context(), int64(size))
	o.append(p, &r, size, done)
}

// The callback of an event is called even if its send coincides with the failure of a batch: the
// event must not get into that batch after its callbacks began.
func TestSendWhileABatchIsGivenUp(t *testing.T) {
	p, o := loneProducer(time.Minute)
	told := map[string]int{}
	o.appendEvent(t, p, func(Receipt, error) {
		told["first"]++
		o.appendEvent(t, p, func(Receipt, error) { told["second"]++ })
	})
	o.failHead(p, errors.New("no"))
	o.abandon(p)
	if told["first"] != 1 || told["second"] != 1 || !p.budget.isEmpty() {
		t.Errorf("told %v, budget idle %v; want each once and idle", told, p.budget.isEmpty())
	}
}

// An event that is sent late in an outage gets its full timeout, and does not fail together with
// early events.
func TestEachEventHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := loneProducer(time.Minute)
		var given []time.Duration
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			at := time.Now()
			o.appendEvent(t, p, func(Receipt, error) { given = append(given, time.Since(at)) })
		}
		for o.expireHeads(p, errors.New("no")) {
			time.Sleep(time.Second)
		}
		if len(given) != 60 {
			t.Fatalf("%d of 60 events were told", len(given))
		}
		for i, after := range given {
			if after < time.Minute*7/8-time.Second || after > time.Minute+time.Second {
				t.Errorf("event %d was given up after %s", i, after)
			}
		}
		if n := len(o.queue); n > 0 {
			t.Errorf("%d batches are left", n)
		}
	})
}

// Close calls the callback of an event that passed the check for closed just before. No sender may
// start for it, because that sender would find the partition empty.
func TestNoSenderStartsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := loneProducer(time.Minute)
		o.place = idle
		told := 0
		o.appendEvent(t, p, func(Receipt, error) { told++ })
		o.abandon(p)
		synctest.Wait() // a sender would panic here
		if told != 1 {
			t.Errorf("told %d times", told)
		}
	})
}

// After a stream has grown, an old producer chooses the same partition for a key as a new one.
func TestProducerSeesNewPartitions(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events"))
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	publish := func() Receipt {
		v := plainEvent()
		v.Key = keyFor(3, 4)
		r, err := p.Publish(t.Context(), "events", v)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	publish()
	ensure(t, b, EnsureOptions{Reorder: true}, StreamSpec{Name: "events", Partitions: 4})
	p.grow(0)
	if r := publish(); r.Partition != 3 {
		t.Errorf("the event went to partition %d, its key belongs to 3", r.Partition)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// An answer about a smaller number, which another goroutine asked for before the stream grew, changes nothing.
func TestAnOlderAnswerTakesNoPartitions(t *testing.T) {
	_, o := loneProducer(time.Minute)
	o.topic.addPartitions(make([]int32, 8))
	if o.topic.resize(1, make([]int32, 6)); len(o.topic.now()) != 8 {
		t.Errorf("the stream has %d partitions", len(o.topic.now()))
	}
	if o.topic.addPartitions(make([]int32, 6)); len(o.topic.now()) != 8 {
		t.Errorf("the stream has %d partitions", len(o.topic.now()))
	}
}

// Flush waits for earlier events and not for later ones: otherwise it would not return while others
// keep sending.
func TestFlushWhileOthersSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := loneProducer(time.Minute)
		p.topics.Store(&map[string]*outTopic{"events": o.topic})
		o.appendEvent(t, p, func(Receipt, error) {})
		o.queue[0].sealed = true // state of a batch in flight
		flushed := make(chan error, 1)
		go func() { flushed <- p.Flush(t.Context()) }()
		synctest.Wait()
		o.appendEvent(t, p, func(Receipt, error) {})
		select {
		case <-flushed:
			t.Fatal("the first event has no answer, and Flush has returned")
		default:
		}
		o.pop(p)
		synctest.Wait()
		select {
		case err := <-flushed:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("Flush waits for an event that was sent after it")
		}
		o.abandon(p)
	})
}

// Flush of a batch that is taken apart ends after the callback of its last event.
func TestFlushOfABatchTakenApart(t *testing.T) {
	p, o := loneProducer(time.Minute)
	told := 0
	for range 3 {
		o.appendEvent(t, p, func(Receipt, error) { told++ })
	}
	gone := o.whenEmpty()
	head := o.queue[0]
	if err := head.Seal(wire.None); err != nil {
		t.Fatal(err)
	}
	head.Stamp(wire.Identity{})
	p.takeApart(o, head, kafka.MessageSizeTooLarge)
	if len(o.queue) != 3 {
		t.Fatalf("%d batches", len(o.queue))
	}
	for range 3 {
		if isClosed(gone) {
			t.Errorf("flushed when %d of 3 were told", told)
		}
		o.failHead(p, errors.New("no"))
	}
	<-gone
}

// invalidate is called under a partition's lock, for which senders wait. So it must not wait for
// Kafka's answer to another partition's request.
func TestBurnDoesNotWaitForKafka(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events"))
	asked, answer := make(chan struct{}), make(chan struct{})
	k.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		<-answer
		return nil, nil, false
	})
	ids := identities{p: &Producer{b: b}}
	got := make(chan error, 1)
	go func() {
		_, err := ids.get(t.Context())
		got <- err
	}()
	<-asked
	burnt := make(chan struct{})
	go func() {
		ids.invalidate(identity{7, 0})
		close(burnt)
	}()
	select {
	case <-burnt:
	case <-time.After(hostilePatience):
		t.Error("it waits")
	}
	close(answer)
	if err := <-got; err != nil {
		t.Error(err)
	}
	<-burnt
}
