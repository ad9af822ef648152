package wire

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The oracle of the transactions' requests is franz-go, because kafka-go does not know all of them.

// wantRequest checks the request of a frame.
func wantRequest(t *testing.T, f *Frame, want kmsg.Request) {
	t.Helper()
	got := kmsg.RequestForKey(f.Key)
	got.SetVersion(f.Version)
	want.SetVersion(f.Version)
	head := 8 + len("mill") + 2 + 4 // size, key, version, correlation id, client
	if got.IsFlexible() {
		head++
	}
	if err := got.ReadFrom(written(t, f)[head:]); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
}

// oracleResponse encodes an answer, without the correlation id.
func oracleResponse(version int16, answer kmsg.Response) []byte {
	answer.SetVersion(version)
	var b []byte
	if answer.IsFlexible() {
		b = append(b, 0)
	}
	return answer.AppendTo(b)
}

func TestRequestsOfATransaction(t *testing.T) {
	tx := Transaction{ID: "mill.g.0", Producer: 1 << 40, Epoch: 7}
	id, name := tx.ID, "a"
	var f Frame

	f.AddPartitions("mill", tx, []TopicPartition{{"a", 1}, {"a", 2}, {"b", 0}})
	wantRequest(t, &f, &kmsg.AddPartitionsToTxnRequest{TransactionalID: id, ProducerID: tx.Producer, ProducerEpoch: tx.Epoch,
		Topics: []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "a", Partitions: []int32{1, 2}}, {Topic: "b", Partitions: []int32{0}}}})
	f.AddOffsets("mill", tx, "mill.g")
	wantRequest(t, &f, &kmsg.AddOffsetsToTxnRequest{TransactionalID: id, ProducerID: tx.Producer, ProducerEpoch: tx.Epoch, Group: "mill.g"})
	f.EndTransaction("mill", tx, true)
	wantRequest(t, &f, &kmsg.EndTxnRequest{TransactionalID: id, ProducerID: tx.Producer, ProducerEpoch: tx.Epoch, Commit: true})

	offset := func(partition int32, at int64, note string) kmsg.TxnOffsetCommitRequestTopicPartition {
		return kmsg.TxnOffsetCommitRequestTopicPartition{Partition: partition, Offset: at, LeaderEpoch: -1, Metadata: &note}
	}
	f.CommitOffsets("mill", tx, "mill.g", "me", 3, []CommittedOffset{{TopicPartition{"a", 1}, 1 << 33, "note", 0}, {TopicPartition{"a", 2}, 5, "", 0}, {TopicPartition{"b", 0}, 6, "x", 0}})
	wantRequest(t, &f, &kmsg.TxnOffsetCommitRequest{TransactionalID: id, ProducerID: tx.Producer, ProducerEpoch: tx.Epoch, Group: "mill.g", MemberID: "me", Generation: 3,
		Topics: []kmsg.TxnOffsetCommitRequestTopic{{Topic: "a", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{offset(1, 1<<33, "note"), offset(2, 5, "")}},
			{Topic: "b", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{offset(0, 6, "x")}}}})
	f.CommitOffsets("mill", tx, "mill.g", "", -1, nil)
	wantRequest(t, &f, &kmsg.TxnOffsetCommitRequest{TransactionalID: id, ProducerID: tx.Producer, ProducerEpoch: tx.Epoch, Group: "mill.g", Generation: -1})

	f.DescribeTransaction("mill", id)
	wantRequest(t, &f, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{id}})
	f.TopicIDs("mill", []string{"a"})
	wantRequest(t, &f, &kmsg.MetadataRequest{Topics: []kmsg.MetadataRequestTopic{{Topic: &name}}})
	f.DescribeProducers("mill", []TopicPartition{{"a", 1}, {"b", 2}})
	wantRequest(t, &f, &kmsg.DescribeProducersRequest{Topics: []kmsg.DescribeProducersRequestTopic{{Topic: "a", Partitions: []int32{1}}, {Topic: "b", Partitions: []int32{2}}}})
}

// transactionAnswers are an answer to each request, with the reader of it.
func transactionAnswers() map[string]struct {
	answer []byte
	read   func([]byte) (string, error)
	want   string
} {
	type one = struct {
		answer []byte
		read   func([]byte) (string, error)
		want   string
	}
	no, mill, a, gone := "not here", "mill", "a", "gone"
	return map[string]one{
		"AddPartitions": {oracleResponse(addPartitionsVersion, &kmsg.AddPartitionsToTxnResponse{ThrottleMillis: 5, Topics: []kmsg.AddPartitionsToTxnResponseTopic{
			{Topic: "a", Partitions: []kmsg.AddPartitionsToTxnResponseTopicPartition{{Partition: 1}, {Partition: 2, ErrorCode: 51}}},
			{Topic: "b", Partitions: []kmsg.AddPartitionsToTxnResponseTopicPartition{{ErrorCode: 55}}}}}),
			func(b []byte) (all string, err error) {
				err = ReadAddPartitions(b, func(topic []byte, partition int32, code int16) {
					all += fmt.Sprintf("%s/%d:%d ", topic, partition, code)
				})
				return all, err
			}, "a/1:0 a/2:51 b/0:55 "},
		"code": {oracleResponse(endVersion, &kmsg.EndTxnResponse{ThrottleMillis: 5, ErrorCode: 27}),
			func(b []byte) (string, error) { code, err := ReadCode(b); return fmt.Sprint(code), err }, "27"},
		"CommitOffsets": {oracleResponse(commitOffsetsVersion, &kmsg.TxnOffsetCommitResponse{Topics: []kmsg.TxnOffsetCommitResponseTopic{
			{Topic: "a", Partitions: []kmsg.TxnOffsetCommitResponseTopicPartition{{Partition: 1, ErrorCode: 22}, {Partition: 2}}}, {Topic: "b"}}}),
			func(b []byte) (all string, err error) {
				err = ReadCommitOffsets(b, func(code int16) { all += fmt.Sprint(code, " ") })
				return all, err
			}, "22 0 "},
		"DescribeTransaction": {oracleResponse(transactionsVersion, &kmsg.DescribeTransactionsResponse{TransactionStates: []kmsg.DescribeTransactionsResponseTransactionState{
			{ErrorCode: 3, TransactionalID: "x", State: "Ongoing", TimeoutMillis: 7, ProducerID: 5, ProducerEpoch: 6, Topics: []kmsg.DescribeTransactionsResponseTransactionStateTopic{{Topic: "a", Partitions: []int32{1, 2}}}}}}),
			func(b []byte) (string, error) { s, err := ReadDescribeTransaction(b); return fmt.Sprint(s), err }, "{3 Ongoing 7 5 6}"},
		"TopicIDs": {oracleResponse(TopicIDsVersion, &kmsg.MetadataResponse{Brokers: []kmsg.MetadataResponseBroker{{NodeID: 4, Host: "h", Port: 9092, Rack: &no}, {NodeID: 7}},
			ClusterID: &mill, ControllerID: 4, Topics: []kmsg.MetadataResponseTopic{
				{Topic: &a, TopicID: [16]byte{1, 15: 2}, Partitions: []kmsg.MetadataResponseTopicPartition{{Partition: 1, Replicas: []int32{4, 7}, ISR: []int32{4}}, {Partition: 2}}},
				{Topic: &gone, ErrorCode: 3}}}),
			func(b []byte) (string, error) { all, err := ReadTopicIDs(b); return fmt.Sprint(all), err },
			"{mill map[a:[1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 2]] [4 7]}"},
		"DescribeProducers": {oracleResponse(producersVersion, &kmsg.DescribeProducersResponse{Topics: []kmsg.DescribeProducersResponseTopic{
			{Topic: "a", Partitions: []kmsg.DescribeProducersResponseTopicPartition{{Partition: 1, ErrorCode: 29, ErrorMessage: &no}, {Partition: 2,
				ActiveProducers: []kmsg.DescribeProducersResponseTopicPartitionActiveProducer{{ProducerID: 1 << 40, CurrentTxnStartOffset: 9}, {ProducerID: 3, CurrentTxnStartOffset: -1}}}}}}}),
			func(b []byte) (string, error) { all, err := ReadDescribeProducers(b); return fmt.Sprint(all), err },
			"[{{a 1} 29 0 -1} {{a 2} 0 1099511627776 9} {{a 2} 0 3 -1}]"},
	}
}

func TestAnswersAboutATransaction(t *testing.T) {
	for name, a := range transactionAnswers() {
		if got, err := a.read(a.answer); got != a.want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, a.want)
		}
		cutAnywhere(t, a.answer, func(b []byte) error { _, err := a.read(b); return err })
	}
}
