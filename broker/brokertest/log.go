package brokertest

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker"
)

// entry is one event as it lies on a stream.
type entry struct {
	partition int32
	offset    int64
	id, typ   string
	size      int
	data      string
}

const sealType = "suite.seal"

// raw writes a record to a partition, past our producer.
func (w *world) raw(stream string, partition int, value []byte, headers ...kafka.Header) int64 {
	w.Helper()
	var res *kafka.ProduceResponse
	w.soon("the client knows the topic", func() (ok bool) { // it asks only now and then
		var err error
		res, err = w.client.Produce(w.ctx(), &kafka.ProduceRequest{Topic: w.names.Topic(stream), Partition: partition,
			RequiredAcks: kafka.RequireAll,
			Records:      kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes(value), Headers: headers})})
		return err == nil
	})
	w.must(res.Error)
	return res.BaseOffset
}

// seal writes an event to a partition that marks how far a reader shall read.
func (w *world) seal(stream string, partition int) {
	w.Helper()
	h := func(k, v string) kafka.Header { return kafka.Header{Key: k, Value: []byte(v)} }
	w.raw(stream, partition, nil, h("ce_specversion", "1.0"), h("ce_id", fmt.Sprint("seal-", partition)),
		h("ce_source", "/suite"), h("ce_type", sealType))
}

// log is all that readers of committed events see of a stream, in the order of
// its partitions.
func (w *world) log(stream string) []entry {
	w.Helper()
	open := map[int32]bool{}
	for _, p := range w.info(stream).Partitions {
		w.seal(stream, p.Partition)
		open[int32(p.Partition)] = true
	}
	c := w.consumer(broker.ConsumerOptions{Streams: []string{stream}})
	var all []entry
	for len(open) > 0 {
		d, err := c.Poll(w.ctx())
		w.must(err)
		for i := range d.Events {
			e := &d.Events[i]
			switch {
			case !open[d.Partition]:
			case e.Type == sealType:
				delete(open, d.Partition)
			default:
				all = append(all, entry{d.Partition, e.Offset, string([]byte(e.ID)), string([]byte(e.Type)), len(e.Data), string(e.Data)})
			}
		}
		d.Done()
	}
	w.close(c)
	return all
}

// wantOnLog checks that a stream holds what was acknowledged, at the offsets
// that were told, each once, in the order of its key, and nothing else but what
// failed in doubt.
func (w *world) wantOnLog(stream string, s *sent) {
	w.Helper()
	last, seen := map[string]int{}, map[string]bool{}
	for _, e := range w.log(stream) {
		r, ok := s.all[e.id]
		if !ok {
			if err := s.errs[e.id]; !errors.Is(err, broker.ErrInDoubt) {
				w.Errorf("%s is on the stream, and its publisher was told: %v", e.id, err)
			}
			continue
		}
		if seen[e.id] {
			w.Errorf("%s is on the stream twice", e.id)
		}
		seen[e.id] = true
		if r.Partition != e.partition || r.Offset != e.offset && r.Offset != -1 {
			w.Errorf("%s lies at %d/%d, its receipt says %d/%d", e.id, e.partition, e.offset, r.Partition, r.Offset)
		}
		k, n := keyAndNumber(e.id)
		if before, ok := last[k]; ok && before > n {
			w.Errorf("%s stands behind number %d of its key", e.id, before)
		}
		last[k] = n
	}
	for id := range s.all {
		if !seen[id] {
			w.Errorf("%s was acknowledged and is not on the stream", id)
		}
	}
}
