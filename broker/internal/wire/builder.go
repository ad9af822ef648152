package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// The layout of a v2 batch's head. Everything before bodyAt is in the clear;
// the records behind it may be compressed.
const (
	lengthAt     = 8
	magicAt      = 16
	crcAt        = 17
	attributesAt = 21
	lastDeltaAt  = 23
	baseTimeAt   = 27
	maxTimeAt    = 35
	producerAt   = 43
	epochAt      = 51
	sequenceAt   = 53
	countAt      = 57
	bodyAt       = 61

	// BatchOverhead is what a batch costs beside its records.
	BatchOverhead = bodyAt
)

const (
	codecMask       = 0x07
	transactionFlag = 0x10
	controlFlag     = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Builder encodes records into one v2 batch. It is filled with Append, closed
// with Seal and stamped with who sends it; a retry stamps again. Its memory is
// kept over Reset, so a record costs no allocation.
type Builder struct {
	plain  []byte
	packed []byte
	count  int
	base   int64
	latest int64
	sealed []byte
	codec  Codec
}

// Reset empties the builder and keeps its memory.
func (b *Builder) Reset() {
	b.plain = b.plain[:0]
	b.packed = b.packed[:0]
	b.sealed = nil
	b.count = 0
}

// Len is how many records the batch holds.
func (b *Builder) Len() int { return b.count }

// Size is the batch's size before compression.
func (b *Builder) Size() int { return max(len(b.plain), bodyAt) }

// RecordSize is at most what a record would add to a batch's size.
func RecordSize(r *Record) int {
	n := 1 + 10 + 5 + contentSize(r)
	return n + varintSize(n)
}

// contentSize is the part of a record's size that does not depend on its place.
func contentSize(r *Record) int {
	n := varbytesSize(r.Key) + varbytesSize(r.Value) + varintSize(len(r.Headers))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(len(h.Key)) + len(h.Key) + varbytesSize(h.Value)
	}
	return n
}

// grow makes room for n more bytes and doubles where append would add a
// quarter: a batch that fills up is then copied twice on its way, not four
// times, and its fields are appended without another look at its size.
func (b *Builder) grow(n int) {
	if cap(b.plain)-len(b.plain) < n {
		b.plain = slices.Grow(b.plain, max(n, cap(b.plain)))
	}
}

// Append adds a record. Its Offset is ignored: the log gives it one.
func (b *Builder) Append(r *Record) {
	if b.count == 0 {
		b.plain = append(b.plain[:0], make([]byte, bodyAt)...)
		b.base, b.latest = r.Time, r.Time
	}
	b.latest = max(b.latest, r.Time)
	delta := int(r.Time - b.base)
	size := 1 + varintSize(delta) + varintSize(b.count) + contentSize(r)
	b.grow(size + 5)
	p := appendVarint(b.plain, size)
	p = append(p, 0)
	p = appendVarint(p, delta)
	p = appendVarint(p, b.count)
	p = appendVarbytes(p, r.Key)
	p = appendVarbytes(p, r.Value)
	p = appendVarint(p, len(r.Headers))
	for i := range r.Headers {
		h := &r.Headers[i]
		p = appendVarint(p, len(h.Key))
		p = append(p, h.Key...)
		p = appendVarbytes(p, h.Value)
	}
	b.plain = p
	b.count++
}

// Seal closes the batch and compresses it, unless that would make it larger.
func (b *Builder) Seal(codec Codec) error {
	b.sealed, b.codec = b.plain, None
	if codec != None {
		packed, err := codec.compress(append(b.packed[:0], b.plain[:bodyAt]...), b.plain[bodyAt:])
		if err != nil {
			return fmt.Errorf("compress a batch with %s: %w", codec, err)
		}
		b.packed = packed
		if len(packed) < len(b.plain) {
			b.sealed, b.codec = packed, codec
		}
	}
	return nil
}

// Identity is who sends a batch and as which in their order. Without an
// idempotent producer all three numbers are -1.
type Identity struct {
	Producer      int64
	Epoch         int16
	Sequence      int32
	Transactional bool
}

// Stamp writes the sealed batch's head and checksum. Nobody may be reading the
// batch's Bytes while it is stamped.
func (b *Builder) Stamp(id Identity) {
	h, be := b.sealed, binary.BigEndian
	attributes := uint16(b.codec)
	if id.Transactional {
		attributes |= transactionFlag
	}
	be.PutUint64(h[0:], 0)
	be.PutUint32(h[lengthAt:], uint32(len(h)-magicAt+4))
	be.PutUint32(h[12:], ^uint32(0)) // leader epoch: unknown
	h[magicAt] = 2
	be.PutUint16(h[attributesAt:], attributes)
	be.PutUint32(h[lastDeltaAt:], uint32(b.count-1))
	be.PutUint64(h[baseTimeAt:], uint64(b.base))
	be.PutUint64(h[maxTimeAt:], uint64(b.latest))
	be.PutUint64(h[producerAt:], uint64(id.Producer))
	be.PutUint16(h[epochAt:], uint16(id.Epoch))
	be.PutUint32(h[sequenceAt:], uint32(id.Sequence))
	be.PutUint32(h[countAt:], uint32(b.count))
	be.PutUint32(h[crcAt:], crc32.Checksum(h[attributesAt:], castagnoli))
}

// Bytes is the sealed and stamped batch, valid until Reset or Stamp.
func (b *Builder) Bytes() []byte { return b.sealed }
