package embedded

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A producer that outlives a kill of the server sends unacknowledged batches again. Batches that
// the server had already written must not appear twice, and the following ones must be accepted.
// This also holds if the server was closed in order before the kill.
func TestRetryAfterSIGKILLIsNoDuplicate(t *testing.T) {
	for name, closeFirst := range map[string]bool{"kill": false, "close, then kill": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := start(t, Options{Dir: dir})
			must(t, createTopic(t, kafkaClient(t, s.Kafka()), "a"))
			pid := newProducer(t, s.Kafka())
			if closeFirst {
				mustAppend(t, s.Kafka(), pid, 0, 0)
			}
			must(t, s.Close())

			kill, addr := startChild(t, dir)
			seq := int32(0)
			for ; seq < 8; seq++ {
				mustAppend(t, addr, pid, seq, int64(seq)) // the first batch may be a retry
			}
			kill()

			again := start(t, Options{Dir: dir})
			mustAppend(t, again.Kafka(), pid, 7, 7) // a retry
			mustAppend(t, again.Kafka(), pid, 5, 5) // a retry of an earlier batch
			mustAppend(t, again.Kafka(), pid, 8, 8) // a new batch
			if got := len(readTopic(t, again.Kafka(), "a")); got != 9 {
				t.Errorf("%d records stand for 9 sent", got)
			}
		})
	}
}

func newProducer(t *testing.T, addr string) int64 {
	t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.SetVersion(1)
	resp := kmsg.NewPtrInitProducerIDResponse()
	requestOnce(t, addr, req, resp)
	return resp.ProducerID
}

func mustAppend(t *testing.T, addr string, pid int64, seq int32, want int64) {
	t.Helper()
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = testBatch(pid, seq)
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.Partitions = "a", []kmsg.ProduceRequestTopicPartition{part}
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(8)
	req.Acks, req.TimeoutMillis, req.Topics = -1, 1000, []kmsg.ProduceRequestTopic{topic}
	resp := kmsg.NewPtrProduceResponse()
	requestOnce(t, addr, req, resp)
	got := resp.Topics[0].Partitions[0]
	if got.ErrorCode != 0 || got.BaseOffset != want {
		t.Fatalf("sequence %d: offset %d, error %d; want offset %d", seq, got.BaseOffset, got.ErrorCode, want)
	}
}

// testBatch returns a batch with one record of an idempotent producer.
func testBatch(pid int64, seq int32) []byte {
	rec := kmsg.Record{Length: 7, Value: []byte("x")}
	b := kmsg.RecordBatch{PartitionLeaderEpoch: -1, Magic: 2, ProducerID: pid, FirstSequence: seq,
		NumRecords: 1, Records: rec.AppendTo(nil)}
	b.Length = int32(batchHead - batchPrefix + len(b.Records))
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// requestOnce sends one request on a new connection.
func requestOnce(t *testing.T, addr string, req kmsg.Request, resp kmsg.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1))
	must(t, err)
	var size [4]byte
	_, err = io.ReadFull(conn, size[:])
	must(t, err)
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(conn, body)
	must(t, err)
	resp.SetVersion(req.GetVersion())
	must(t, resp.ReadFrom(body[4:]))
}
