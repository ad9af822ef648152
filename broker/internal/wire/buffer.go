package wire

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// ErrShort says that bytes ended before what they announced.
var ErrShort = errors.New("bytes end in the middle of a field")

// cursor reads big-endian fields from bytes it does not own. The first error
// sticks, so a parser checks once, at its end.
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

// string copies, because what it reads (topics, messages) outlives the frame.
func (c *cursor) string() string {
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

// bytes points into the frame; nil for Kafka's null.
func (c *cursor) bytes() []byte {
	n := c.int32()
	if n < 0 {
		return nil
	}
	return c.take(int(n))
}

// count reads an array's length and refuses one that cannot fit in what is
// left, so that a hostile length allocates nothing.
func (c *cursor) count(elementSize int) int {
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
	n := c.count(4)
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

// varint reads a zigzag number. Nearly all in a batch fit into one byte or two.
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

// text views bytes as a string without copying; valid as long as they are.
func text(b []byte) string {
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
