package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Header is one header of a record. On the read path both fields point into the fetched
// bytes.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Record is one record of a batch. A nil Key or Value is Kafka's null; an empty Key or Value has
// zero bytes. On the read path all fields point into the fetched bytes and are valid as long as
// these bytes.
type Record struct {
	Offset  int64
	Time    int64 // milliseconds since 1970
	Key     []byte
	Value   []byte
	Headers []Header
}

// Batch is the head of a v2 batch and its records, not yet decoded.
type Batch struct {
	BaseOffset int64
	LastOffset int64
	Producer   int64
	Epoch      int16
	Sequence   int32
	Count      int32
	Codec      Codec
	Leadership int32 // number of the leadership in which the batch was written; each new leader has a larger one

	Transactional bool
	Control       bool

	baseTime   int64
	maxTime    int64
	appendTime bool
	body       []byte
}

// CorruptError says which part of a log could not be read and why.
type CorruptError struct {
	BaseOffset int64 // base offset of the batch
	LastOffset int64 // last offset; -1 if the head itself is unreadable
	Err        error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("batch at offset %d: %v", e.BaseOffset, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

const appendTimeFlag = 0x08

// maxHeaders bounds a record's memory: a header takes two bytes on the wire and forty in
// memory.
const maxHeaders = 1 << 17

// NextBatch reads the first batch of a fetched record set and returns the bytes after the batch. A
// set may end in the middle of a batch, because brokers cut the set at a size. Then ok is false and
// err is nil. The magic byte is checked first, because batches of older formats may be shorter than
// our head.
func NextBatch(set []byte) (b Batch, rest []byte, ok bool, err error) {
	if len(set) <= magicAt {
		return b, nil, false, nil
	}
	be := binary.BigEndian
	b.BaseOffset = int64(be.Uint64(set))
	if magic := set[magicAt]; magic != 2 {
		return b, nil, false, &CorruptError{b.BaseOffset, -1, fmt.Errorf("format v%d is not supported; Kafka 4 and ours write v2", magic)}
	}
	length := int64(int32(be.Uint32(set[lengthAt:])))
	if length < bodyAt-magicAt+4 {
		return b, nil, false, &CorruptError{b.BaseOffset, -1, fmt.Errorf("length %d is too small", length)}
	}
	end := length + magicAt - 4
	if end > int64(len(set)) {
		return b, nil, false, nil
	}
	rest = set[end:]
	set = set[:end:end]
	b.read(set)
	if want, have := be.Uint32(set[crcAt:]), crc32.Checksum(set[attributesAt:], castagnoli); want != have {
		return b, rest, false, &CorruptError{b.BaseOffset, b.likelyEnd(rest), fmt.Errorf("checksum is %08x, says %08x", have, want)}
	}
	if err := b.check(); err != nil {
		return b, rest, false, err
	}
	return b, rest, true, nil
}

// check refuses a complete head with impossible values. The checksum does not cover the head's
// offsets, because the broker assigns these.
func (b *Batch) check() error {
	switch {
	case b.BaseOffset < 0 || b.LastOffset < b.BaseOffset || b.LastOffset == math.MaxInt64:
		return &CorruptError{b.BaseOffset, -1, fmt.Errorf("offsets from %d to %d", b.BaseOffset, b.LastOffset)}
	case b.Count < 0 || int64(b.Count) > b.LastOffset-b.BaseOffset+1:
		return &CorruptError{b.BaseOffset, b.LastOffset, fmt.Errorf("%d records between offsets %d and %d", b.Count, b.BaseOffset, b.LastOffset)}
	}
	return nil
}

// likelyEnd returns the last offset of a batch whose checksum fails, or -1 if the offset is
// unknown. Any single number may be wrong, and a number that is too large would make a reader skip
// good events. So two of three must agree: the last offset, the number of records, and the base
// offset of the next batch.
func (b *Batch) likelyEnd(rest []byte) int64 {
	span, count, gap := b.LastOffset-b.BaseOffset+1, int64(b.Count), int64(0)
	if len(rest) > magicAt && rest[magicAt] == 2 {
		gap = int64(binary.BigEndian.Uint64(rest)) - b.BaseOffset
	}
	if span != count && span != gap {
		span = count
		if count != gap {
			return -1
		}
	}
	if b.BaseOffset < 0 || span <= 0 || b.BaseOffset > math.MaxInt64-span {
		return -1
	}
	return b.BaseOffset + span - 1
}

func (b *Batch) read(set []byte) {
	be := binary.BigEndian
	attributes := be.Uint16(set[attributesAt:])
	b.Codec = Codec(attributes & codecMask)
	b.Leadership = int32(be.Uint32(set[magicAt-4:]))
	b.appendTime = attributes&appendTimeFlag != 0
	b.Transactional = attributes&transactionFlag != 0
	b.Control = attributes&controlFlag != 0
	b.LastOffset = b.BaseOffset + int64(int32(be.Uint32(set[lastDeltaAt:])))
	b.baseTime = int64(be.Uint64(set[baseTimeAt:]))
	b.maxTime = int64(be.Uint64(set[maxTimeAt:]))
	b.Producer = int64(be.Uint64(set[producerAt:]))
	b.Epoch = int16(be.Uint16(set[epochAt:]))
	b.Sequence = int32(be.Uint32(set[sequenceAt:]))
	b.Count = int32(be.Uint32(set[countAt:]))
	b.body = set[bodyAt:]
}

// Records iterates over a batch. Its memory is reused, so an unpacked batch is valid only
// until the next Open with the same scratch.
type Records struct {
	batch Batch
	c     cursor
	left  int32
	last  int64 // offset of the last record
	err   error
}

// Open begins to read a batch. A compressed batch is unpacked into scratch, which is
// returned, possibly larger. If unpacking fails, the original scratch is returned, so
// that a hostile batch does not take memory permanently. An uncompressed batch is read in
// place.
func (r *Records) Open(b Batch, scratch []byte) ([]byte, error) {
	*r = Records{batch: b, left: b.Count, last: b.BaseOffset - 1, c: cursor{b: b.body}}
	if b.Codec == None || len(b.body) == 0 {
		return scratch, nil
	}
	plain, err := b.Codec.decompress(scratch, b.body)
	if err != nil {
		r.left = 0
		return scratch, r.corrupt(fmt.Errorf("unpack %s: %w", b.Codec, err))
	}
	r.c.b = plain
	return plain, nil
}

// Next reads the next record into rec, whose Headers are reused. Next returns false at the end of
// the batch or after an error; see Err.
func (r *Records) Next(rec *Record) bool {
	if r.left <= 0 {
		r.checkEnd()
		return false
	}
	r.left--
	if err := r.next(rec); err != nil {
		r.err, r.left = r.corrupt(err), 0
		return false
	}
	return true
}

// checkEnd returns an error for records that the head did not count, because records that are
// skipped are lost.
func (r *Records) checkEnd() {
	if n := len(r.c.b); n > 0 && r.err == nil {
		r.err = r.corrupt(fmt.Errorf("%d bytes follow the last of %d records", n, r.batch.Count))
		r.c.b = nil
	}
}

// Err returns why Next ended; nil if all records were read and no bytes are left.
func (r *Records) Err() error { return r.err }

func (r *Records) corrupt(err error) error {
	return &CorruptError{r.batch.BaseOffset, r.batch.LastOffset, err}
}

func (r *Records) next(rec *Record) error {
	body := r.c.varbytes()
	if r.c.err != nil {
		return r.c.err
	}
	c := cursor{b: body}
	c.int8()
	rec.Time = r.batch.baseTime + c.varint()
	if r.batch.appendTime {
		rec.Time = r.batch.maxTime
	}
	rec.Offset = r.batch.BaseOffset + c.varint()
	rec.Key = c.varbytes()
	rec.Value = c.varbytes()
	n := c.varint()
	if n < 0 || n > maxHeaders {
		return fmt.Errorf("record has %d headers; %d are read", n, maxHeaders)
	}
	rec.Headers = c.headers(rec.Headers[:0], n)
	if c.err != nil {
		return c.err
	}
	if len(c.b) > 0 {
		return fmt.Errorf("record has %d bytes more than its fields", len(c.b))
	}
	if rec.Offset <= r.last || rec.Offset > r.batch.LastOffset {
		return fmt.Errorf("record's offset %d is not between %d and %d", rec.Offset, r.last+1, r.batch.LastOffset)
	}
	r.last = rec.Offset
	return nil
}

// headers reads n headers. Nearly all names and values are shorter than 64 bytes: the
// loop reads those in registers, and the cursor reads the others.
func (c *cursor) headers(dst []Header, n int64) []Header {
	b := c.b
	for ; n > 0; n-- {
		value, end := shortHeader(b)
		if end == 0 {
			c.b = b
			dst = append(dst, Header{Key: bytesAsText(c.varbytes()), Value: c.varbytes()})
			if b = c.b; c.err != nil {
				return dst
			}
			continue
		}
		dst = append(dst, Header{Key: bytesAsText(b[1:value]), Value: b[value+1 : end : end]})
		b = b[end:]
	}
	c.b = b
	return dst
}

// notShort are the bits of a length's first byte that mark it as negative or longer than
// one byte.
const notShort = 0x81

// shortHeader returns where a header's value begins and where the header ends, if both of
// its lengths are one byte; otherwise end is zero.
func shortHeader(b []byte) (value, end int) {
	if len(b) < 2 || b[0]&notShort != 0 {
		return 0, 0
	}
	value = 1 + int(b[0]>>1)
	if value >= len(b) || b[value]&notShort != 0 {
		return 0, 0
	}
	if end = value + 1 + int(b[value]>>1); end > len(b) {
		return 0, 0
	}
	return value, end
}

const abortMarker = 0

// Committed reads a control batch: it returns false if the marker aborts the producer's
// transaction. Markers of unknown kinds abort nothing. A batch without a marker aborts
// nothing either: compaction keeps an empty last batch of a producer for its sequence
// number.
func (b Batch) Committed() (bool, error) {
	if b.Count == 0 && len(b.body) == 0 {
		return true, nil
	}
	var r Records
	var rec Record
	if _, err := r.Open(b, nil); err != nil {
		return false, err
	}
	if !r.Next(&rec) {
		return false, cmp.Or(r.Err(), r.corrupt(errors.New("control batch without a marker")))
	}
	c := cursor{b: rec.Key}
	c.int16()
	kind := c.int16()
	if c.err != nil {
		return false, r.corrupt(fmt.Errorf("read the marker of a transaction: %w", c.err))
	}
	return kind != abortMarker, nil
}
