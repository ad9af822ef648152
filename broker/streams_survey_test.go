package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// writeRecords writes n records with the given time to one partition.
func writeRecords(t *testing.T, b *Broker, topic string, partition, n int, at time.Time) {
	t.Helper()
	var records []kafka.Record
	for i := range n {
		records = append(records, kafka.Record{Time: at, Value: kafka.NewBytes(fmt.Appendf(nil, "%d", i))})
	}
	res, err := b.client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, Partition: partition,
		RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, b *Broker, group, topic string, offsets ...int64) {
	t.Helper()
	var commits []kafka.OffsetCommit
	for p, o := range offsets {
		if o >= 0 {
			commits = append(commits, kafka.OffsetCommit{Partition: p, Offset: o})
		}
	}
	_, err := retryUntil(t.Context(), func(ctx context.Context) (any, error) {
		res, err := b.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{topic: commits}})
		if err == nil {
			err = res.Topics[topic][0].Error
		}
		return nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestStreams(t *testing.T) {
	b, c := openFake(t)
	ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 2, Retention: time.Hour}, StreamSpec{Name: "facts", Partitions: 1})
	if err := c.CreateTopic("foreign", 1, nil); err != nil {
		t.Fatal(err)
	}
	waitForTopic(t, b, "prod.events")
	writeRecords(t, b, "prod.events", 0, 10, time.Now().Add(-time.Hour))
	writeRecords(t, b, "prod.events", 0, 30, time.Now())
	writeRecords(t, b, "prod.events", 1, 5, time.Now().Add(-time.Hour))
	if err := c.DeleteRecords("prod.events", 0, 4); err != nil {
		t.Fatal(err)
	}
	commit(t, b, "prod.score", "prod.events", 2, 5)
	commit(t, b, "prod.dispatch", "prod.events", 15, -1)
	commit(t, b, "other.dispatch", "prod.events", 0, 0)

	infos, err := b.Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(infos) != 2 || infos[0].Name != "events" || infos[1].Name != "facts" {
		t.Fatalf("%+v", infos)
	}
	events, facts := infos[0], infos[1]
	if events.Records != 41 || events.Rate != 0.5 || events.Retention != time.Hour || events.Bytes <= 0 {
		t.Errorf("%+v", events)
	}
	if p := events.Partitions[0]; p.Start != 4 || p.End != 40 || p.Bytes <= 0 || p.Rate != 0.5 {
		t.Errorf("%+v", p)
	}
	if facts.Records != 0 || facts.Rate != 0 || facts.Retention != 0 || len(facts.Groups) != 0 || facts.Bytes != 0 {
		t.Errorf("%+v", facts)
	}
	want := "[{dispatch 30 0 [{0 15 25 0} {1 -1 5 0}] false} {score 36 2 [{0 2 36 2} {1 5 0 0}] false}]"
	if got := fmt.Sprint(events.Groups); got != want {
		t.Errorf("groups %s, not %s", got, want)
	}
}

// waitForTopic waits until kafka-go's own cache knows a topic, as its Produce needs.
func waitForTopic(t *testing.T, b *Broker, topic string) {
	t.Helper()
	b.transport.CloseIdleConnections()
	md, err := b.client.Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil || md.Topics[0].Error != nil {
		t.Fatal(err, md)
	}
}

func TestStreamsOfNone(t *testing.T) {
	b, _ := openFake(t)
	if infos, err := b.Streams(t.Context()); err != nil || len(infos) != 0 {
		t.Fatal(infos, err)
	}
}

func TestStreamsAsksEachLeaderOnce(t *testing.T) {
	c := fakeCluster(t, kfake.NumBrokers(3))
	b := openAt(t, strings.Join(c.ListenAddrs(), ","))
	var specs []StreamSpec
	for i := range 50 {
		specs = append(specs, StreamSpec{Name: fmt.Sprintf("s%d", i), Partitions: 48})
	}
	ensure(t, b, EnsureOptions{}, specs...)
	var lists, sizes atomic.Int32
	count := func(n *atomic.Int32) func(kmsg.Request) (kmsg.Response, error, bool) {
		return func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			n.Add(1)
			return nil, nil, false
		}
	}
	c.ControlKey(int16(kmsg.ListOffsets), count(&lists))
	c.ControlKey(int16(kmsg.DescribeLogDirs), count(&sizes))
	began := time.Now()
	infos, err := b.Streams(t.Context())
	if err != nil || len(infos) != 50 || len(infos[0].Partitions) != 48 {
		t.Fatal(len(infos), err)
	}
	t.Logf("2400 partitions took %v", time.Since(began))
	if lists.Load() != 9 || sizes.Load() != 3 { // start, end and a minute ago, from three leaders
		t.Errorf("%d ListOffsets, %d DescribeLogDirs", lists.Load(), sizes.Load())
	}
}

func TestStreamsOutlastsAMovedLeader(t *testing.T) {
	c := fakeCluster(t, kfake.NumBrokers(2))
	b := openAt(t, strings.Join(c.ListenAddrs(), ","))
	ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 1})
	var once atomic.Bool
	c.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if once.CompareAndSwap(false, true) {
			c.DropControl()
			go func() { _ = c.MoveTopicPartition("prod.events", 0, 1-c.LeaderFor("prod.events", 0)) }()
		}
		return nil, nil, false
	})
	if _, err := b.Streams(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestStreamsInJSON(t *testing.T) {
	info := StreamInfo{Name: "events", Partitions: []PartitionInfo{{Start: 1, End: 3, Bytes: 9}}, Records: 2, Bytes: 9, Retention: 168 * time.Hour,
		Groups: []GroupLag{{Group: "score", Lag: 1, Partitions: []PartitionLag{{Committed: 2, Lag: 1}}}}}
	for want, info := range map[string]StreamInfo{
		`{"name":"events","partitions":[{"partition":0,"start":1,"end":3,"bytes":9,"rate":0}],"records":2,"bytes":9,"rate":0,` +
			`"groups":[{"group":"score","lag":1,"lost":0,"partitions":[{"partition":0,"committed":2,"lag":1,"lost":0}]}],"retention":"168h0m0s"}`: info,
		`{"name":"facts","partitions":null,"records":0,"bytes":0,"rate":0,"groups":[],"retention":"forever"}`: {Name: "facts"},
	} {
		if got, err := json.Marshal([]StreamInfo{info}); err != nil || string(got) != "["+want+"]" {
			t.Errorf("%s, %v, not %s", got, err, want)
		}
	}
}

// An open transaction may still move a group's offsets. A consumer waits for its end, and Streams
// does not.
func TestLagDoesNotWaitForAnOpenTransaction(t *testing.T) {
	b, _ := openFake(t)
	ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 1})
	waitForTopic(t, b, "prod.events")
	writeRecords(t, b, "prod.events", 0, 5, time.Now())
	commit(t, b, "prod.score", "prod.events", 2)
	openOffsets(t, b, "prod.score", "prod.events", 4)

	infos, err := b.Streams(t.Context())
	if err != nil || len(infos[0].Groups) != 1 || infos[0].Groups[0].Lag != 3 {
		t.Errorf("%+v, %v", infos, err)
	}
	if _, err := b.groupOffsetsOnce(t.Context(), "prod.score", nil, true); !isCode(err, unstableOffsetCommit) {
		t.Errorf("the offset is not held open, so this test shows nothing: %v", err)
	}
}

// openOffsets leaves a transaction open that moves a group's offset.
func openOffsets(t *testing.T, b *Broker, group, topic string, offset int64) {
	t.Helper()
	id, err := b.initProducer(t.Context(), "prod.tx", noIdentity, outcomeUnknown)
	if err != nil {
		t.Fatal(err)
	}
	added, err := b.client.AddOffsetsToTxn(t.Context(), &kafka.AddOffsetsToTxnRequest{TransactionalID: "prod.tx",
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GroupID: group})
	if err != nil || added.Error != nil {
		t.Fatal(added, err)
	}
	res, err := b.client.TxnOffsetCommit(t.Context(), &kafka.TxnOffsetCommitRequest{TransactionalID: "prod.tx", GroupID: group,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GenerationID: -1,
		Topics: map[string][]kafka.TxnOffsetCommit{topic: {{Partition: 0, Offset: offset}}}})
	if err != nil || res.Topics[topic][0].Error != nil {
		t.Fatal(res, err)
	}
}

func TestLogSizesAreUnknownWhereKafkaDoesNotSay(t *testing.T) {
	if _, err := sumLogs(nil); !isCode(err, kafka.ClusterAuthorizationFailed) {
		t.Error(err)
	}
}

// A transaction takes an offset for its marker. Markers are no events.
func TestStreamsCountEvents(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a")
	c, x := openTransactor(t, b, nil)
	d := pollOne(t, c)
	defer d.Done()
	const transactions = 20
	for i := range transactions {
		if err := x.Do(t.Context(), func(tx *Tx) error {
			for j := range 3 {
				tx.Send(t.Context(), "out", &View{ID: fmt.Sprint(i, j), Source: "/x", Type: "t", Key: []byte("k")})
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, b, "prod.reader", "prod.out", 4*5+2)           // two events of the sixth transaction are read
	commit(t, b, "prod.ready", "prod.out", 4*transactions-1) // only the last marker is left
	infos, err := b.Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lags := map[string]int64{}
	for _, i := range infos {
		for _, g := range i.Groups {
			if lags[g.Group] = g.Lag; g.Estimated {
				t.Errorf("the lag of %s is estimated", g.Group)
			}
		}
		if want := map[string]int64{"events": 1, "out": 3 * transactions}[i.Name]; i.Records != want || i.Estimated {
			t.Errorf("%s has %d events, want %d; estimated: %v", i.Name, i.Records, want, i.Estimated)
		}
		if end := i.Partitions[0].End; i.Name == "out" && end != 4*transactions {
			t.Errorf("the partition ends at %d, so it has no markers to leave out", end)
		}
	}
	if lags["reader"] != 3*14+1 || lags["ready"] != 0 {
		t.Errorf("the lags are %v", lags)
	}
}

// A long partition with transactions has an estimate from its newest part.
func TestEventsAreEstimated(t *testing.T) {
	p := wire.TopicPartition{Topic: "t"}
	at := func(n int64) map[wire.TopicPartition]int64 { return map[wire.TopicPartition]int64{p: n} }
	s := survey{start: at(1000), end: at(101_000), recent: at(95_000), samples: map[wire.TopicPartition]sample{p: {from: 91_000, to: 101_000, events: 7500, batches: []counted{{91_000, 94_999, 4000}, {97_500, 100_999, 7500}}}},
		commits: map[string]groupCommits{"late": {p: {Offset: 81_000}}, "here": {p: {Offset: 94_000}}, "over": {p: {Offset: 101_000}}}}
	if got := s.partition(p); got.events != 75_000 || !got.estimated || got.Rate != 75 {
		t.Errorf("%+v", got)
	}
	for i, want := range []GroupLag{{Group: "here", Lag: 4500}, {Group: "late", Lag: 15_000, Estimated: true}, {Group: "over"}} {
		if got := s.lags("t", "t", []PartitionInfo{s.partition(p)}, "")[i]; got.Group != want.Group || got.Lag != want.Lag || got.Estimated != want.Estimated {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	s.samples[p] = sample{from: 1000, to: 101_000, events: 60_001, batches: []counted{{1000, 100_999, 60_001}}}
	if got := s.partition(p); got.events != 60_001 || got.estimated {
		t.Errorf("%+v", got)
	}
}
