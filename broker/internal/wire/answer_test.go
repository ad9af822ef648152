package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// oracleAnswer encodes a broker's answer with kafka-go.
func oracleAnswer(t testing.TB, version int16, msg protocol.Message) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := protocol.WriteResponse(&out, version, correlationID, msg); err != nil {
		t.Fatal(err)
	}
	answer, err := ReadAnswer(&out, nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// cutAnywhere checks that an answer cut at any byte is an error.
func cutAnywhere(t *testing.T, answer []byte, read func([]byte) error) {
	t.Helper()
	for n := range answer {
		if err := read(answer[:n:n]); !errors.Is(err, ErrShort) {
			t.Fatalf("cut at %d of %d: %v", n, len(answer), err)
		}
	}
}

func producedAnswer(t testing.TB) ([]byte, []Produced) {
	bad := []produce.ResponseError{{BatchIndex: 3, BatchIndexErrorMessage: "no"}, {BatchIndex: 5}}
	answer := oracleAnswer(t, produceVersion, &produce.Response{Topics: []produce.ResponseTopic{
		{Topic: "a", Partitions: []produce.ResponsePartition{
			{Partition: 1, BaseOffset: 1 << 40, LogAppendTime: -1, LogStartOffset: 7},
			{Partition: 2, ErrorCode: 87, BaseOffset: -1, RecordErrors: bad, ErrorMessage: "invalid"}}},
		{Topic: "b", Partitions: []produce.ResponsePartition{{}}},
	}})
	return answer, []Produced{{Topic: "a", Partition: 1, BaseOffset: 1 << 40, LogStart: 7},
		{Topic: "a", Partition: 2, Error: 87, BaseOffset: -1, Message: "invalid", BadRecords: []int32{3, 5}}, {Topic: "b"}}
}

func TestReadProduced(t *testing.T) {
	answer, want := producedAnswer(t)
	var got []Produced
	if err := ReadProduced(answer, func(p Produced) { got = append(got, p) }); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	cutAnywhere(t, answer[:len(answer)-4], func(b []byte) error { return ReadProduced(b, func(Produced) {}) })
}

func fetchedAnswer(t testing.TB) []byte {
	return oracleAnswer(t, fetchVersion, &fetch.Response{SessionID: 9, Topics: []fetch.ResponseTopic{
		{Topic: "a", Partitions: []fetch.ResponsePartition{
			{Partition: 1, HighWatermark: 30, LastStableOffset: 20, LogStartOffset: 10, PreferredReadReplica: -1,
				AbortedTransactions: []fetch.ResponseTransaction{{ProducerID: 5, FirstOffset: 12}, {ProducerID: 6, FirstOffset: 13}},
				RecordSet:           protocol.RecordSet{Version: 2, Attributes: protocol.Zstd, Records: oracleRecords(assortedRecords())}},
			{Partition: 2, ErrorCode: 3, HighWatermark: -1, RecordSet: protocol.RecordSet{Version: 2, Records: oracleRecords(assortedRecords()[1:3])}}}},
		{Topic: "b", Partitions: []fetch.ResponsePartition{{RecordSet: protocol.RecordSet{Version: 2, Records: oracleRecords(assortedRecords()[:1])}}}},
	}})
}

func TestReadFetched(t *testing.T) {
	answer := fetchedAnswer(t)
	want := []Fetched{
		{Topic: "a", Partition: 1, HighMark: 30, StableMark: 20, LogStart: 10, Aborted: []Aborted{{5, 12}, {6, 13}}},
		{Topic: "a", Partition: 2, Error: 3, HighMark: -1},
		{Topic: "b"},
	}
	records := [][]Record{assortedRecords(), assortedRecords()[1:3], assortedRecords()[:1]}
	i := 0
	code, err := ReadFetched(answer, func(p *Fetched) {
		got, _, err := readSet(p.Records)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, withOffsets(0, records[i]))
		one := *p
		one.Records = nil
		if one.Aborted = append([]Aborted(nil), one.Aborted...); !reflect.DeepEqual(one, want[i]) {
			t.Errorf("got  %+v\nwant %+v", one, want[i])
		}
		i++
	})
	if code != 0 || err != nil || i != len(want) {
		t.Fatal(code, err, i)
	}
	cutAnywhere(t, answer, func(b []byte) error {
		_, err := ReadFetched(b, func(*Fetched) {})
		return err
	})
}

func TestReadFetchedTellsOfAllAtOnce(t *testing.T) {
	code, err := ReadFetched(oracleAnswer(t, fetchVersion, &fetch.Response{ErrorCode: 71}), func(*Fetched) { t.Error("a partition") })
	if code != 71 || err != nil {
		t.Fatal(code, err)
	}
}

func metadataAnswer(t testing.TB, indexes ...int32) []byte {
	topic := metadata.ResponseTopic{Name: "a", IsInternal: true}
	for _, i := range indexes {
		topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{ErrorCode: int16(i), PartitionIndex: i, LeaderID: i + 10,
			ReplicaNodes: []int32{1, 2, 3}, IsrNodes: []int32{i}, OfflineReplicas: []int32{3}})
	}
	return oracleAnswer(t, metadataVersion, &metadata.Response{ClusterID: "mill", ControllerID: 2,
		Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "one", Port: 9092, Rack: "r"}, {NodeID: 2, Host: "two", Port: 9093}},
		Topics:  []metadata.ResponseTopic{topic, {Name: "b", ErrorCode: 3}}})
}

func TestReadMetadata(t *testing.T) {
	answer := metadataAnswer(t, 2, 0, 1)
	got, err := ReadMetadata(answer)
	if err != nil {
		t.Fatal(err)
	}
	want := &Metadata{Cluster: "mill", Controller: 2, Brokers: []BrokerNode{{1, "one", 9092}, {2, "two", 9093}},
		Topics: []TopicMetadata{{Name: "a", Internal: true}, {Name: "b", Error: 3}}}
	for i := range int32(3) {
		want.Topics[0].Partitions = append(want.Topics[0].Partitions,
			PartitionMetadata{Error: int16(i), Index: i, Leader: i + 10, Replicas: []int32{1, 2, 3}, InSync: []int32{i}})
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	cutAnywhere(t, answer[:len(answer)-4], func(b []byte) error {
		_, err := ReadMetadata(b)
		return err
	})
}

// A topic's partitions are indexed by their position, so a missing one would send a key's
// events to the wrong partition.
func TestMetadataWithHolesIsNotSettled(t *testing.T) {
	for _, indexes := range [][]int32{{1}, {0, 2}, {0, 1, 1}, {-1, 0}, {-1 << 31, 1<<31 - 1}} {
		got, err := ReadMetadata(metadataAnswer(t, indexes...))
		if err != nil || got.Topics[0].Error != leaderNotAvailable || got.Topics[1].Error != 3 {
			t.Errorf("%v: %+v %v", indexes, got, err)
		}
	}
}

func offsetsAnswer(t testing.TB) []byte {
	return oracleAnswer(t, listOffsetsVersion, &listoffsets.Response{Topics: []listoffsets.ResponseTopic{
		{Topic: "a", Partitions: []listoffsets.ResponsePartition{{Partition: 1, Timestamp: 5, Offset: 1 << 40, LeaderEpoch: 3}, {Partition: 2, ErrorCode: 6, Offset: -1}}},
		{Topic: "b", Partitions: []listoffsets.ResponsePartition{{Offset: 4}}},
	}})
}

func TestReadOffsets(t *testing.T) {
	got, err := ReadOffsets(offsetsAnswer(t))
	want := []OffsetAnswer{{TopicPartition{"a", 1}, 0, 1 << 40}, {TopicPartition{"a", 2}, 6, -1}, {TopicPartition{"b", 0}, 0, 4}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	cutAnywhere(t, offsetsAnswer(t), func(b []byte) error {
		_, err := ReadOffsets(b)
		return err
	})
}

// offsetFetchAnswer is written by hand from the protocol's description.
func offsetFetchAnswer(t testing.TB) []byte {
	answer, err := hex.DecodeString(strings.ReplaceAll("00"+ // no tags in the head
		"00000000"+ // throttle time
		"03"+ // two topics
		"02 61 03"+ // a, two partitions
		"00000001 0000010000000000 00000003 03 6d64 0000"+"00"+
		"00000002 ffffffffffffffff ffffffff 00 0058"+"01 05 02 abcd"+ // null metadata, a tag
		"00"+
		"02 62 02 00000300 0000000000000004 ffffffff 01 0000 00"+"00"+ // empty metadata
		"0010 00", " ", "")) // error of the answer, no tags
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestReadOffsetFetch(t *testing.T) {
	got, code, err := ReadOffsetFetch(offsetFetchAnswer(t))
	want := []CommittedOffset{{TopicPartition{"a", 1}, 1 << 40, "md", 0}, {TopicPartition{"a", 2}, -1, "", 88}, {TopicPartition{"b", 768}, 4, "", 0}}
	if err != nil || code != 16 || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v\ngot  %+v\nwant %+v", code, err, got, want)
	}
	cutAnywhere(t, offsetFetchAnswer(t), func(b []byte) error {
		_, _, err := ReadOffsetFetch(b)
		return err
	})
}
