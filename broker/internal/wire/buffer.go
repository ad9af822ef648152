package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"unsafe"
)

// ErrShort means that fewer bytes are left than a field needs.
var ErrShort = errors.New("bytes end in the middle of a field")

// cursor reads big-endian fields from bytes that it does not own. A cursor keeps its first error,
// so a parser checks for errors once, at the end.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.fail(ErrShort)
		return nil
	}
	head := c.b[:n:n]
	c.b = c.b[n:]
	return head
}

func (c *cursor) int8() int8 {
	if b := c.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (c *cursor) int16() int16 {
	if b := c.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) int32() int32 {
	if b := c.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) int64() int64 {
	if b := c.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// copyString copies the bytes, because topics and messages outlive the frame.
func (c *cursor) copyString() string {
	n := c.int16()
	if n < 0 {
		return ""
	}
	return string(c.take(int(n)))
}

func (c *cursor) compactString() string {
	n := c.uvarint()
	if n == 0 {
		return ""
	}
	return string(c.take(int(min(n-1, 1<<30))))
}

// sliceBytes returns a part of the frame without copying; nil for Kafka's null.
func (c *cursor) sliceBytes() []byte {
	n := c.int32()
	if n < 0 {
		return nil
	}
	return c.take(int(n))
}

// arrayLength reads an array's length and refuses one that cannot fit in the remaining bytes,
// so that a hostile length allocates nothing.
func (c *cursor) arrayLength(elementSize int) int {
	return c.checkCount(int(c.int32()), elementSize)
}

func (c *cursor) compactCount(elementSize int) int {
	return c.checkCount(int(min(c.uvarint(), 1<<31))-1, elementSize)
}

func (c *cursor) checkCount(n, elementSize int) int {
	if n <= 0 {
		return 0
	}
	if n > len(c.b)/elementSize {
		c.fail(ErrShort)
		return 0
	}
	return n
}

func (c *cursor) int32s() []int32 {
	n := c.arrayLength(4)
	if n == 0 {
		return nil
	}
	all := make([]int32, n)
	for i := range all {
		all[i] = c.int32()
	}
	return all
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail(ErrShort)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// varint reads a zigzag number. Nearly all numbers in a batch take one or two bytes.
func (c *cursor) varint() int64 {
	b := c.b
	switch {
	case len(b) > 0 && b[0] < 0x80:
		c.b = b[1:]
		return zigzag(uint64(b[0]))
	case len(b) > 1 && b[1] < 0x80:
		c.b = b[2:]
		return zigzag(uint64(b[0]&0x7f) | uint64(b[1])<<7)
	}
	return c.longVarint()
}

func zigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func (c *cursor) longVarint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail(ErrShort)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// varbytes reads a field with a zigzag length; nil for Kafka's null.
func (c *cursor) varbytes() []byte {
	n := c.varint()
	if n < 0 {
		return nil
	}
	if n > int64(len(c.b)) {
		c.fail(ErrShort)
		return nil
	}
	return c.take(int(n))
}

func (c *cursor) skipTags() {
	for n := c.uvarint(); n > 0 && c.err == nil; n-- {
		c.uvarint()
		c.take(int(min(c.uvarint(), 1<<30)))
	}
}

// bytesAsText returns bytes as a string without copying; it is valid as long as the bytes.
func bytesAsText(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func appendInt16(b []byte, v int16) []byte { return binary.BigEndian.AppendUint16(b, uint16(v)) }
func appendInt32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func appendInt64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

func appendString(b []byte, s string) []byte {
	return append(appendInt16(b, int16(len(s))), s...)
}

func appendCompactString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))+1), s...)
}

func appendVarint(b []byte, v int) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	if u < 0x80 {
		return append(b, byte(u))
	}
	return binary.AppendUvarint(b, u)
}

func appendVarbytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // -1
	}
	return append(appendVarint(b, len(v)), v...)
}

func varintSize(v int) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}

func varbytesSize(v []byte) int {
	if v == nil {
		return 1
	}
	return varintSize(len(v)) + len(v)
}

// The layout of a v2 batch's head. The bytes before bodyAt are never compressed; the
// records after it may be.
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
)

const (
	codecMask       = 0x07
	transactionFlag = 0x10
	controlFlag     = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Builder encodes records into one v2 batch: call Append for each record, then Seal, then
// Stamp with the sender's identity. A retry calls Stamp again. Reset keeps the memory, so
// a record costs no allocation.
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

// Len returns the number of records in the batch.
func (b *Builder) Len() int { return b.count }

// Size returns the batch's size before compression.
func (b *Builder) Size() int { return max(len(b.plain), bodyAt) }

// RecordSize returns an upper bound of the bytes that a record adds to a batch.
func RecordSize(r *Record) int {
	n := 1 + 10 + 5 + contentSize(r)
	return n + varintSize(n)
}

// contentSize returns the part of a record's size that does not depend on its position.
func contentSize(r *Record) int {
	n := varbytesSize(r.Key) + varbytesSize(r.Value) + varintSize(len(r.Headers))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(len(h.Key)) + len(h.Key) + varbytesSize(h.Value)
	}
	return n
}

// makeRoom makes room for n more bytes. makeRoom doubles the memory, while append would add a
// quarter. So a batch that fills up is copied twice and not four times.
func (b *Builder) makeRoom(n int) {
	if cap(b.plain)-len(b.plain) < n {
		b.plain = slices.Grow(b.plain, max(n, cap(b.plain)))
	}
}

// Append adds a record. It ignores the record's Offset, which the log assigns.
func (b *Builder) Append(r *Record) {
	if b.count == 0 {
		b.plain = append(b.plain[:0], make([]byte, bodyAt)...)
		b.base, b.latest = r.Time, r.Time
	}
	b.latest = max(b.latest, r.Time)
	delta := int(r.Time - b.base)
	size := 1 + varintSize(delta) + varintSize(b.count) + contentSize(r)
	b.makeRoom(size + 5)
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

// Seal closes the batch and compresses it, unless compression would make it larger.
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

// Identity is the sender of a batch and the batch's number in its sequence. Without an
// idempotent producer all three numbers are -1.
type Identity struct {
	Producer      int64
	Epoch         int16
	Sequence      int32
	Transactional bool
}

// Stamp writes the sealed batch's head and checksum. The batch's Bytes must not be in use
// meanwhile.
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

// Bytes returns the sealed and stamped batch, valid until Reset or Stamp.
func (b *Builder) Bytes() []byte { return b.sealed }
