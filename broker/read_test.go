package broker

import (
	"errors"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
)

// readIDs reads from an offset of the stream out once.
func (h *hostile) readIDs(from int64) (ids []string, next int64) {
	h.Helper()
	next, err := h.b.Read(h.ctx(), Position{Stream: "out", Partition: 0, Offset: from}, 1<<20, func(e *Incoming) bool {
		ids = append(ids, string([]byte(e.ID)))
		return true
	})
	h.must(err)
	return ids, next
}

// A read costs one request where nothing is wrong, at the log's end too, and it
// finds the leader where something is.
func TestRead(t *testing.T) {
	h := newHostile(t, 3)
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	told := make(chan error, 1)
	p.SendTo(h.ctx(), "out", 0, hostileEvent(7), func(_ Receipt, err error) { told <- err })
	h.must(<-told)
	h.must(p.Close(h.ctx()))
	asked := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch, kmsg.Metadata, kmsg.ListOffsets}, Count: -1, Observe: true,
		When: func(r kmsg.Request) bool { // the transport asks for the metadata of events by itself
			_, metadata := r.(*kmsg.MetadataRequest)
			return !metadata || asksFor(r, "tidemill.out")
		}})
	h.readIDs(0)
	before := asked.Hits()
	if ids, next := h.readIDs(0); len(ids) != 1 || ids[0] != "7" || next != 1 {
		t.Errorf("read %v up to %d", ids, next)
	}
	if ids, next := h.readIDs(1); len(ids) != 0 || next != 1 {
		t.Errorf("at the end: %v up to %d", ids, next)
	}
	if n := asked.Hits() - before; n != 2 {
		t.Errorf("two reads cost %d requests", n)
	}
	for node := range int32(3) {
		h.must(h.kafka.MoveTopicPartition("tidemill.out", 0, node))
		if ids, _ := h.readIDs(0); len(ids) != 1 {
			t.Errorf("with leader %d: %v", node, ids)
		}
	}
	for _, e := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.OffsetNotAvailable, kerr.KafkaStorageError, kerr.FencedLeaderEpoch} {
		h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: e, Count: 2})
		if ids, _ := h.readIDs(0); len(ids) != 1 {
			t.Errorf("after %v: %v", e, ids)
		}
	}
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed})
	if _, err := h.b.Read(h.ctx(), Position{Stream: "out"}, 1, func(*Incoming) bool { return true }); !errors.Is(err, kafka.TopicAuthorizationFailed) {
		t.Errorf("refused: %v", err)
	}
}

func BenchmarkRead(b *testing.B) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "prod.events"))
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		b.Fatal(err)
	}
	br, err := Open(b.Context(), Options{Addr: k.ListenAddrs()[0], Names: names})
	if err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	p, err := br.Producer(ProducerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for n := range 100 {
		if _, err := p.Publish(b.Context(), "events", hostileEvent(n)); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		if _, err := br.Read(b.Context(), Position{Stream: "events", Offset: n % 100}, 4096, func(*Incoming) bool { return false }); err != nil {
			b.Fatal(err)
		}
	}
}
