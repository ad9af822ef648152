package embedded

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The records of a transaction that was open at a kill stay aborted, also after another
// kill, and a reader sees the producer's next commit.
func TestOpenTransactionStaysAborted(t *testing.T) {
	dir := t.TempDir()
	kill, addr := startChild(t, dir)
	must(t, createTopic(t, kafkaClient(t, addr), "a"))
	writeInTransaction(t, addr) // offset 0, never committed
	kill()

	kill, addr = startChild(t, dir)
	if first := abortMarker(t, addr); first != 1 {
		t.Errorf("the abort's marker is at %d, want 1, right after the record it aborts", first)
	}
	pid, epoch := writeInTransaction(t, addr)
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = "tx", pid, epoch, true
	ended := kmsg.NewPtrEndTxnResponse()
	requestOnce(t, addr, end, ended)
	if ended.ErrorCode != 0 {
		t.Fatal("end:", ended.ErrorCode)
	}
	kill()

	s := start(t, Options{Dir: dir})
	part := fetchCommitted(t, s.Kafka())
	if n := len(part.AbortedTransactions); n != 1 || part.AbortedTransactions[0].FirstOffset != 0 {
		t.Errorf("aborted are %v, want what begins at 0", part.AbortedTransactions)
	}
}

// This also holds if the kill came between a batch and its index line.
func TestBatchWithoutItsLineStaysAborted(t *testing.T) {
	dir := t.TempDir()
	kill, addr := startChild(t, dir)
	must(t, createTopic(t, kafkaClient(t, addr), "a"))
	writeInTransaction(t, addr)
	kill()
	must(t, os.Truncate(filepath.Join(kafkaDir(dir), "partitions", "a-0", "0.idx"), 0))

	s := start(t, Options{Dir: dir})
	part := fetchCommitted(t, s.Kafka())
	if n := len(part.AbortedTransactions); n != 1 || part.AbortedTransactions[0].FirstOffset != 0 {
		t.Errorf("aborted are %v, want what begins at 0", part.AbortedTransactions)
	}
}

// writeInTransaction writes one record as a new holder of the transactional id.
func writeInTransaction(t *testing.T, addr string) (pid int64, epoch int16) {
	t.Helper()
	id := "tx"
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis, init.ProducerID, init.ProducerEpoch = &id, 10000, -1, -1
	inited := kmsg.NewPtrInitProducerIDResponse()
	requestOnce(t, addr, init, inited)
	pid, epoch = inited.ProducerID, inited.ProducerEpoch
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, pid, epoch
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "a", Partitions: []int32{0}}}
	requestOnce(t, addr, add, kmsg.NewPtrAddPartitionsToTxnResponse())
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(8)
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = transactionalBatch(pid, epoch)
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.Partitions = "a", []kmsg.ProduceRequestTopicPartition{part}
	req.TransactionID, req.Acks, req.TimeoutMillis, req.Topics = &id, -1, 1000, []kmsg.ProduceRequestTopic{topic}
	resp := kmsg.NewPtrProduceResponse()
	requestOnce(t, addr, req, resp)
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		t.Fatal("produce:", code)
	}
	return pid, epoch
}

func transactionalBatch(pid int64, epoch int16) []byte {
	raw := testBatch(pid, 0)
	binary.BigEndian.PutUint16(raw[21:], 1<<4)
	binary.BigEndian.PutUint16(raw[51:], uint16(epoch))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

func fetchCommitted(t *testing.T, addr string) kmsg.FetchResponseTopicPartition {
	t.Helper()
	return fetchCommittedUpTo(t, addr, 1<<20)
}

func fetchCommittedUpTo(t *testing.T, addr string, room int32) kmsg.FetchResponseTopicPartition {
	t.Helper()
	resp := kmsg.NewPtrFetchResponse()
	requestOnce(t, addr, committedFetch(room), resp)
	if len(resp.Topics) != 1 {
		t.Fatalf("the fetch answers %v", resp)
	}
	return resp.Topics[0].Partitions[0]
}

// committedFetch is a fetch of the committed records of a from its start.
func committedFetch(room int32) *kmsg.FetchRequest {
	part := kmsg.NewFetchRequestTopicPartition()
	part.PartitionMaxBytes = 1 << 20
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.Partitions = "a", []kmsg.FetchRequestTopicPartition{part}
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(11)
	req.MaxBytes, req.IsolationLevel, req.Topics = room, 1, []kmsg.FetchRequestTopic{topic}
	return req
}

// abortMarker returns the offset of the first marker.
func abortMarker(t *testing.T, addr string) int64 {
	t.Helper()
	for raw := fetchCommitted(t, addr).RecordBatches; len(raw) >= batchHead; {
		if binary.BigEndian.Uint16(raw[21:])&(1<<5) != 0 {
			return int64(binary.BigEndian.Uint64(raw))
		}
		raw = raw[batchPrefix+int(binary.BigEndian.Uint32(raw[8:])):]
	}
	return -1
}
