package broker

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A fetch that is full before its last partition must not let the first ones
// starve the others: none is read to its end before all have been begun.
func TestEveryPartitionGetsItsTurn(t *testing.T) {
	const partitions, events, size = 8, 12, 256 << 10
	b, _ := openFake(t, kfake.SeedTopics(partitions, "prod.events"))
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range partitions * events {
		v := plainEvent()
		v.Key, v.Data = keyFor(int32(i%partitions), partitions), make([]byte, size)
		p.Send(t.Context(), "events", v, func(_ Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	seen := map[int32]int{}
	for len(seen) < partitions {
		d, err := c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[d.Partition] += len(d.Events)
		if seen[d.Partition] == events && len(seen) < partitions {
			t.Fatalf("partition %d was read to its end, %d of %d have been begun", d.Partition, len(seen), partitions)
		}
		d.Done()
	}
}

// keyFor is a key that falls on a partition.
func keyFor(partition int32, partitions int) []byte {
	for i := 0; ; i++ {
		if key := fmt.Append(nil, i); partitionOf(key, partitions) == partition {
			return key
		}
	}
}
