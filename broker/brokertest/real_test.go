//go:build real

package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/internal/wire"
)

func TestRealKafka(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{"group.min.session.timeout.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	Run(t, Server{Addr: k.Addr(), Session: 10 * time.Second, Restart: func(t testing.TB) {
		if err := k.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}})
}

// Kafka keeps the offsets of a group without members for a minute here, in place of a week. It
// forgets a group that no refresher joins. It keeps a kept one, and the marks of a group with members,
// although they are committed only once.
func TestRealRefresherOutlivesRetention(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{
		"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	s := Server{Addr: k.Addr(), Session: 10 * time.Second}
	forgotten, kept, live := newWorld(t, s), newWorld(t, s), newWorld(t, s)
	for _, w := range []*testWorld{forgotten, kept, live} {
		w.newForgotten()
	}
	kept.readNumbers(0, 3)
	at, note := kept.noteOf()
	live.readNumbers(0, 3)
	begun := make(chan []broker.Position, 10)
	live.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Assigned: reportAssigned(begun)})
	<-begun
	forgotten.readNumbers(0, 3) // the last, so that the others are older
	refresher, err := kept.b.GroupRefresher(t.Context(), 0)
	kept.must(err)
	keeping, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		refresher.Run(keeping, func() bool { return true }, nil)
	}()
	isForgotten := func() bool {
		offset := forgotten.committed(broker.Position{Stream: "in"})
		mark := forgotten.parkedOffset(0)
		return offset < 0 && mark < 0
	}
	forgotten.pollUntil("Kafka forgets the group that has no refresher", isForgotten)
	if gotAt, got := kept.noteOf(); gotAt != at || got != note || kept.parkedOffset(0) != 7 {
		t.Errorf("the kept group is at %d with the note %q and the mark %d, want %d, %q and 7", gotAt, got, kept.parkedOffset(0), at, note)
	}
	if mark := live.parkedOffset(0); mark != 7 {
		t.Errorf("the mark of the group with members is at %d, want 7", mark)
	}
	stop()
	<-ended
	kept.must(refresher.Close(context.WithoutCancel(t.Context())))
	if n := kept.endOffset(tidemill.StreamGroupOffsets); n == 0 {
		t.Error("the refresher has recorded nothing")
	}
}

// Kafka can lose the end of a transaction if it is killed: the coordinator has ended the transaction, and the partitions
// do not know. Then readers of committed events wait for ever, and no member can begin. The next holder of the
// transactional id ends it as its coordinator says. If that no longer knows, the events count and the offsets do
// not. A holder that lives does so after Kafka has failed.
func TestRealHangingTransactions(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{
		"transaction.partition.verification.enable": "false"}}) // lets a producer write without a transaction that the coordinator knows
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, Server{Addr: k.Addr(), Session: 10 * time.Second})
	w.stream("in", 1)
	w.stream("out", 1)
	w.stream("hung", 1)
	s := w.publish("in", 1, 4)
	id := w.names.Transactional("g", 0)
	init, err := w.client.InitProducerID(t.Context(), &kafka.InitProducerIDRequest{TransactionalID: id, TransactionTimeoutMs: 1000, ProducerID: -1, ProducerEpoch: -1})
	w.must(err)
	w.must(init.Error)
	w.hang(id, int64(init.Producer.ProducerID), int16(init.Producer.ProducerEpoch), 4)
	arrived := func() int {
		seen, _ := w.readAll("hung", 0, 1<<20)
		return len(seen)
	}
	if n := arrived(); n > 0 {
		t.Fatalf("readers of committed events get %d", n)
	}

	c := w.copier("g", "in", "out")
	defer c.leave()
	w.waitCopied("in", "g")
	w.wantCopies("out", s)
	w.pollUntil("the event of the hanging transaction is there", func() bool { return arrived() == 1 })

	known := w.sendRequest(&kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{id}}).(*kmsg.DescribeTransactionsResponse).TransactionStates[0]
	w.hang(id, known.ProducerID, known.ProducerEpoch, 2)
	w.must(k.Restart(t.Context()))
	w.pollUntil("the member has ended the other one, too", func() bool { return arrived() == 2 })
	if at := w.committed(broker.Position{Stream: "in"}); at != 2 {
		t.Errorf("the group is at %d, want 2: the last transaction of the id was committed", at)
	}

	// A process dies after it has added the partition to end the transaction there.
	known = w.sendRequest(&kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{id}}).(*kmsg.DescribeTransactionsResponse).TransactionStates[0]
	w.hang(id, known.ProducerID, known.ProducerEpoch, 3)
	const committed = 59_991 // milliseconds; the last digit says so
	init, err = w.client.InitProducerID(t.Context(), &kafka.InitProducerIDRequest{TransactionalID: id, TransactionTimeoutMs: committed, ProducerID: -1, ProducerEpoch: -1})
	w.must(err)
	w.must(init.Error)
	w.pollUntil("the partition is added", func() bool {
		added, err := w.client.AddPartitionsToTxn(w.testContext(), &kafka.AddPartitionsToTxnRequest{TransactionalID: id, ProducerID: init.Producer.ProducerID,
			ProducerEpoch: init.Producer.ProducerEpoch, Topics: map[string][]kafka.AddPartitionToTxn{w.names.Topic("hung"): {{Partition: 0}}}})
		return err == nil && added.Topics[w.names.Topic("hung")][0].Error == nil
	})
	w.must(k.Restart(t.Context()))
	w.pollUntil("the member has ended what the other process has left", func() bool { return arrived() == 3 })
	w.pollUntil("the group's offset has moved, too", func() bool { return w.committed(broker.Position{Stream: "in"}) == 3 })
}

// hang writes an event and an offset in a transaction that the coordinator does not know.
func (w *testWorld) hang(id string, producer int64, epoch int16, offset int64) {
	w.Helper()
	var b wire.Builder
	b.Append(&wire.Record{Time: time.Now().UnixMilli(), Value: []byte("an event")})
	w.must(b.Seal(wire.None))
	b.Stamp(wire.Identity{Producer: producer, Epoch: epoch, Transactional: true})
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = b.Bytes()
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.Partitions = w.names.Topic("hung"), []kmsg.ProduceRequestTopicPartition{part}
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(8)
	req.TransactionID, req.Acks, req.TimeoutMillis, req.Topics = &id, -1, 1000, []kmsg.ProduceRequestTopic{topic}
	if code := w.sendRequest(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.Fatalf("write: %v", kafka.Error(code))
	}
	w.pollUntil("the offset is committed", func() bool {
		res, err := w.client.TxnOffsetCommit(w.testContext(), &kafka.TxnOffsetCommitRequest{TransactionalID: id, GroupID: w.names.Group("g"),
			ProducerID: int(producer), ProducerEpoch: int(epoch), GenerationID: -1,
			Topics: map[string][]kafka.TxnOffsetCommit{w.names.Topic("in"): {{Partition: 0, Offset: offset}}}})
		return err == nil && res.Topics[w.names.Topic("in")][0].Error == nil
	})
}
