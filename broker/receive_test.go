package broker

import (
	"encoding/binary"
	"testing"

	"tidemill.dev/broker/internal/wire"
)

// A few kilobytes of batches must not unpack to gigabytes in memory. The delivery ends early, and
// the rest is fetched again.
func TestDeliveryHoldsABoundedAmountUnpacked(t *testing.T) {
	const size = 20 << 20
	var b wire.Builder
	b.Append(&wire.Record{Value: make([]byte, size)})
	if err := b.Seal(wire.Zstd); err != nil {
		t.Fatal(err)
	}
	b.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	var set []byte
	for offset := range uint64(20) {
		set = append(set, b.Bytes()...)
		binary.BigEndian.PutUint64(set[len(set)-len(b.Bytes()):], offset)
	}
	d := &Delivery{c: &Consumer{}, contents: new(contents)}
	for position := int64(0); position < 20; position = d.next {
		d.Events, d.batches, d.unpacked = d.Events[:0], 0, 0
		if err := d.decode(fetchAsk{position: position}, &wire.Fetched{Records: set}); err != nil {
			t.Fatal(err)
		}
		if held := len(d.Events) * size; held > fullBytes+size {
			t.Fatalf("%d MiB are held", held>>20)
		}
		if first := d.Events[0].Offset; first != position || d.next != position+int64(len(d.Events)) {
			t.Fatalf("events %d to %d, next %d", first, first+int64(len(d.Events))-1, d.next)
		}
	}
}
