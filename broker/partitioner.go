package broker

import "encoding/binary"

// partitionOf puts a key where Kafka's own clients put it, so that a foreign
// producer's events of a key stand in one order with ours.
func partitionOf(key []byte, partitions int) int32 {
	return int32(int(murmur2(key)&0x7fffffff) % partitions)
}

// PartitionOf tells which partition of the stream the event's key has it go to;
// -1 if it has no key, or Kafka has not been asked for the partitions yet.
func (p *Producer) PartitionOf(stream string, v *View) int32 {
	key, t := v.recordKey(), (*p.topics.Load())[stream]
	if key == nil || t == nil {
		return -1
	}
	return partitionOf(key, len(t.all()))
}

// murmur2 is Kafka's variant: seed 0x9747b28c, little-endian words.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
