package brokertest

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ask sends a request that kafka-go does not know to the server. Its answer
// comes in the form that the request has for it.
func (w *world) ask(req kmsg.Request) kmsg.Response {
	w.Helper()
	conn, err := net.Dial("tcp", w.srv.Addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("suite")).AppendRequest(nil, req, 1))
	w.must(err)
	var size [4]byte
	_, err = io.ReadFull(conn, size[:])
	w.must(err)
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(conn, answer)
	w.must(err)
	head := 4 // the correlation
	if req.IsFlexible() {
		head++
	}
	res := req.ResponseKind()
	w.must(res.ReadFrom(answer[head:]))
	return res
}

// trim deletes what lies below an offset.
func (w *world) trim(stream string, partition int32, to int64) {
	w.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.SetVersion(2)
	req.TimeoutMillis = 10_000
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = w.names.Topic(stream)
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = partition, to
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	res := w.ask(req).(*kmsg.DeleteRecordsResponse)
	if code := res.Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.Fatalf("delete records of %s: error %d", stream, code)
	}
}
