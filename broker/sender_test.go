package broker

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// While the cluster does not answer, the resolver asks once for each topic and not once for each
// partition. Otherwise the last partitions would wait far beyond their events' timeout.
func TestResolverAsksOnceForATopic(t *testing.T) {
	const partitions = 20
	b, k := openFake(t, kfake.SeedTopics(partitions, "prod.out"))
	var asked atomic.Int64
	k.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		topics := r.(*kmsg.MetadataRequest).Topics
		if len(topics) != 1 || topics[0].Topic == nil || *topics[0].Topic != "prod.out" {
			return nil, nil, false // the transport's own requests
		}
		asked.Add(1)
		return nil, errors.New("closed"), true
	})
	p, one := loneProducer(time.Minute)
	p.b, p.ctx = b, t.Context()
	one.topic.name = "prod.out"
	one.topic.addPartitions(make([]int32, partitions))
	var due []lost
	for _, o := range one.topic.all() {
		o.place = homeless
		o.appendEvent(t, p, func(Receipt, error) {})
		due = append(due, lost{o: o, last: errors.New("no")})
	}
	p.resolve.resolveAll(p, due)
	if n := asked.Load(); n != 1 {
		t.Errorf("the topic was asked for %d times", n)
	}
	if n := len(p.resolve.list); n != partitions {
		t.Errorf("%d of %d partitions are to be tried again", n, partitions)
	}
}

func TestJudge(t *testing.T) {
	cases := []struct {
		code   kafka.Error
		events int
		want   verdict
	}{
		{0, 1, stored},
		{kafka.DuplicateSequenceNumber, 1, stored},
		{kafka.RequestTimedOut, 1, maybeStored},
		{kafka.NotEnoughReplicasAfterAppend, 1, maybeStored},
		{kafka.OutOfOrderSequenceNumber, 1, relabel},
		{kafka.UnknownProducerId, 1, relabel},
		{kafka.InvalidProducerEpoch, 1, relabel},
		{kafka.InvalidProducerIDMapping, 1, relabel},
		{kafka.MessageSizeTooLarge, 2, takeApart},
		{kafka.MessageSizeTooLarge, 1, refused},
		{kafka.RecordListTooLarge, 2, takeApart},
		{kafka.InvalidRecord, 2, takeApart},
		{kafka.InvalidRecord, 1, refused},
		{kafka.InvalidTimestamp, 2, takeApart},
		{kafka.NotLeaderForPartition, 1, maybeStored},
		{kafka.LeaderNotAvailable, 1, maybeStored},
		{kafka.NotEnoughReplicas, 1, tryAgain},
		{kafka.KafkaStorageError, 1, maybeStored},
		{kafka.NetworkException, 1, maybeStored},
		{kafka.InvalidMessage, 1, tryAgain},
		{kafka.UnknownTopicOrPartition, 1, maybeStored},
		{kafka.ConcurrentTransactions, 1, tryAgain},
		{kafka.TopicAuthorizationFailed, 1, refused},
		{kafka.ClusterAuthorizationFailed, 1, refused},
		{kafka.ProducerFenced, 1, refused},
		{kafka.Unknown, 1, refused},
		{kafka.Error(9999), 1, refused},
	}
	for _, c := range cases {
		if got := codeVerdict(c.code, c.events); got != c.want {
			t.Errorf("judge(%d %s, %d events) is %d, want %d", c.code, c.code.Title(), c.events, got, c.want)
		}
	}
}

// An unknown code proves nothing.
func TestProvesAbsence(t *testing.T) {
	for code, want := range map[kafka.Error]bool{
		kafka.MessageSizeTooLarge: true, kafka.TopicAuthorizationFailed: true, kafka.PolicyViolation: true,
		kafka.Unknown: false, kafka.Error(9999): false,
	} {
		if provesAbsence(code) != want {
			t.Errorf("provesAbsence(%d) is %v", code, !want)
		}
	}
}

// A leader that loses its leadership before its replicas have a batch answers that it is not the
// leader, but the batch may still be stored. If such a batch is given up, the next batch must not
// get its sequence number, because Kafka would take it for a repetition and drop it.
func TestGivenUpAfterALeaderMoved(t *testing.T) {
	p, o := loneProducer(time.Minute)
	p.ident.p = p
	p.ctx = t.Context()
	var got error
	o.appendEvent(t, p, func(_ Receipt, err error) { got = err })
	o.id = identity{7, 0}
	p.handleAnswer(o, wire.Produced{Error: int16(kafka.NotLeaderForPartition)})
	o.failHead(p, kafka.NotLeaderForPartition)
	if !errors.Is(got, ErrInDoubt) {
		t.Errorf("the event is told %v, want that it is in doubt", got)
	}
	if o.id != noIdentity {
		t.Error("the next batch goes under the same sequence number")
	}
}

func TestRefusalSaysWhatNext(t *testing.T) {
	for code, says := range map[kafka.Error]string{
		kafka.Unknown:                  "whose log has the reason",
		kafka.MessageSizeTooLarge:      "max.message.bytes",
		kafka.TopicAuthorizationFailed: "grant it write",
	} {
		if err := refusalError(code, ""); !strings.Contains(err.Error(), says) {
			t.Errorf("%v lacks %q", err, says)
		}
	}
}

func TestBudgetLetsInInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{left: 10}
		ctx := t.Context()
		mustTake(t, b, ctx, 10)
		in := make(chan int, 3)
		for i := range 3 {
			go func() {
				mustTake(t, b, ctx, 10)
				in <- i
			}()
			synctest.Wait()
		}
		for want := range 3 {
			b.give(10, 1)
			synctest.Wait()
			if got := <-in; got != want || len(in) > 0 {
				t.Fatalf("in came %d and %d more, it was %d's turn", got, len(in), want)
			}
		}
	})
}

func TestBudgetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{left: 1}
		mustTake(t, b, t.Context(), 5) // larger than the whole budget: passes while anything is left
		ctx, cancel := context.WithCancelCause(t.Context())
		closed, shut := context.WithCancelCause(t.Context())
		outcome := make(chan error, 2)
		go func() { outcome <- b.take(ctx, closed, 1) }()
		synctest.Wait()
		go func() { outcome <- b.take(t.Context(), closed, 1) }()
		synctest.Wait()
		why := errors.New("no time left")
		cancel(why)
		if err := <-outcome; !errors.Is(err, why) {
			t.Errorf("the context's end gives %v", err)
		}
		shut(ErrClosed)
		if err := <-outcome; !errors.Is(err, ErrClosed) {
			t.Errorf("the producer's end gives %v", err)
		}
		b.give(5, 1)
		if b.left != 1 || len(b.waiting) != 0 {
			t.Errorf("left %d, %d waiting: who gave up took something with them", b.left, len(b.waiting))
		}
	})
}

func TestBudgetWaitsForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget{left: 10}
		for range 3 {
			mustTake(t, &b, t.Context(), 1)
		}
		idle := make(chan error, 1)
		go func() { idle <- b.wait(t.Context()) }()
		synctest.Wait()
		b.give(2, 2)
		synctest.Wait()
		select {
		case <-idle:
			t.Fatal("one is pending, and wait has returned")
		default:
		}
		b.give(1, 1)
		if err := <-idle; err != nil {
			t.Fatal(err)
		}
		b.close()
		if err := b.take(t.Context(), t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("closed, take gives %v", err)
		}
	})
}

func mustTake(t *testing.T, b *budget, ctx context.Context, n int64) {
	t.Helper()
	if err := b.take(ctx, context.Background(), n); err != nil {
		t.Error(err)
	}
}
