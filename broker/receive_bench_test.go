package broker

import (
	"testing"

	"tidemill.dev/broker/internal/wire"
)

// BenchmarkReceive is what an event costs its reader from the fetched bytes to
// Done: check, decode, number, end.
func BenchmarkReceive(b *testing.B) {
	var batch wire.Builder
	r := encodeRecord(plainEvent())
	for batch.Size() < partitionFetch*9/10 {
		batch.Append(r)
	}
	if err := batch.Seal(wire.None); err != nil {
		b.Fatal(err)
	}
	batch.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	c := &Consumer{letters: &deadLetters{}}
	c.memory.New = func() any { return new(contents) }
	p := &inPartition{c: c, stream: "events"}
	part := &wire.Fetched{Records: batch.Bytes()}
	b.ReportAllocs()
	for left := b.N; left > 0; {
		p.mark.begin(0)
		d := c.newDelivery(fetchAsk{p: p}, nil, 0)
		if err := d.decode(fetchAsk{p: p}, part); err != nil {
			b.Fatal(err)
		}
		left -= len(d.Events)
		if p.queued++; d.hand() != passedOn {
			b.Fatal("not handed out")
		}
		d.Done()
	}
}
