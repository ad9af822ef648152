package wire

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// allocatedBytes returns how many bytes a function allocates, garbage included.
func allocatedBytes(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// maxCost is the memory that a hostile batch may cost: its bound, reached by doubling.
const maxCost = 2*maxUnpacked + 16<<20

// packZeros packs size zero bytes with a codec, as a stream that does not give its length.
func packZeros(t testing.TB, codec Codec, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case Gzip:
		w, _ = gzip.NewWriterLevel(&out, gzip.BestSpeed)
	case LZ4:
		w = lz4.NewWriter(&out)
	case Zstd:
		e, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		w = e
	}
	if _, err := io.CopyN(w, zeroReader{}, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A small packet's claim about its unpacked size allocates nothing.
func TestLiesAboutSizeAreCheap(t *testing.T) {
	lie := binary.AppendUvarint(nil, math.MaxUint32)
	manyBlocks := append(bytes.Clone(xerialMagic), make([]byte, 8)...)
	block := snappy.Encode(nil, make([]byte, 1<<20))
	for range 80 {
		manyBlocks = append(binary.BigEndian.AppendUint32(manyBlocks, uint32(len(block))), block...)
	}
	frame, err := Zstd.compress(nil, make([]byte, zstdMaxBlock))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		codec Codec
		body  []byte
		cost  uint64
	}{
		"bare snappy":       {Snappy, append(lie, make([]byte, 1000)...), 1 << 20},
		"64 MiB of snappy":  {Snappy, append(binary.AppendUvarint(nil, maxUnpacked), make([]byte, 1000)...), 1 << 20},
		"snappy, one block": {Snappy, append(append(append(bytes.Clone(xerialMagic), make([]byte, 8)...), 0, 0, 0, 5), lie...), 1 << 20},
		"snappy, 80 blocks": {Snappy, manyBlocks, maxCost},
		"zstd, many frames": {Zstd, bytes.Repeat(frame, 513), maxCost},
		"zstd":              {Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0}, 1 << 20},
		"zstd, 64 MiB":      {Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 4, 1, 0, 0}, 1 << 20},
	} {
		c.codec.decompress(nil, frame) // creates the shared coder, whose cost must not count
		var err error
		cost := allocatedBytes(func() { _, err = c.codec.decompress(nil, c.body) })
		if err == nil || cost > c.cost {
			t.Errorf("%s: cost %d KiB: %v", name, cost>>10, err)
		}
	}
}

func TestHostileHeads(t *testing.T) {
	good := encodeRecords(t, None, nobody, Record{Value: []byte("x")}, Record{Value: []byte("y")})
	set32 := func(place int, v int32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[place:], uint32(v)) }
	}
	set64 := func(v int64) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint64(b, uint64(v)) }
	}
	for name, c := range map[string]struct {
		edit func([]byte)
		last int64
	}{
		"no delta":          {set32(lastDeltaAt, -1), -1},
		"least delta":       {set32(lastDeltaAt, math.MinInt32), -1},
		"negative count":    {set32(countAt, -1), 1},
		"least count":       {set32(countAt, math.MinInt32), 1},
		"count beyond span": {set32(countAt, 3), 1},
		"most count":        {set32(countAt, math.MaxInt32), 1},
		"negative offset":   {set64(-1), -1},
		"least offset":      {set64(math.MinInt64), -1},
		"last of offsets":   {set64(math.MaxInt64 - 1), -1},
		"offsets wrap":      {set64(math.MaxInt64), -1},
	} {
		_, _, ok, err := NextBatch(editBatch(good, c.edit))
		var corrupt *CorruptError
		if ok || !errors.As(err, &corrupt) || corrupt.LastOffset != c.last {
			t.Errorf("%s: %v %+v", name, ok, err)
		}
	}
	for _, length := range []int32{math.MinInt32, -1, 0, 48} {
		b := bytes.Clone(good)
		set32(lengthAt, length)(b)
		if _, _, ok, err := NextBatch(b); ok || err == nil {
			t.Errorf("length %d passes", length)
		}
	}
	for _, length := range []int32{int32(len(good)), math.MaxInt32} {
		b := bytes.Clone(good)
		set32(lengthAt, length)(b)
		if _, _, ok, err := NextBatch(b); ok || err != nil {
			t.Errorf("length %d is not a cut set: %v", length, err)
		}
	}
}

func TestHostileBodies(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, 10)
	for name, c := range map[string]struct {
		count int
		body  []byte
	}{
		"no records":            {1, nil},
		"empty record":          {1, []byte{0}},
		"negative record":       {1, []byte{1}},
		"record beyond the end": {1, []byte{100, 0, 0}},
		"length has no end":     {1, long},
		"key beyond the end":    {1, []byte{12, 0, 0, 0, 100, 1, 0}},
		"huge key":              {1, append([]byte{2 * 15, 0, 0, 0}, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1, 0)},
		"no header count":       {1, []byte{10, 0, 0, 0, 1, 1}},
		"negative headers":      {1, []byte{12, 0, 0, 0, 1, 1, 1}},
		"headers not there":     {1, []byte{12, 0, 0, 0, 1, 1, 100}},
		"bytes after a record":  {1, []byte{14, 0, 0, 0, 1, 1, 0, 0}},
		"bytes after the last":  {1, []byte{12, 0, 0, 0, 1, 1, 0, 0}},
		"a record too many":     {1, []byte{12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0}},
		"offset before base":    {1, []byte{12, 0, 0, 1, 1, 1, 0}},
		"offset after last":     {1, []byte{12, 0, 0, 2 * 9, 1, 1, 0}},
		"same offset twice":     {2, []byte{12, 0, 0, 2, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0}},
		"offsets go back":       {2, []byte{12, 0, 0, 2, 1, 1, 0, 12, 0, 0, 0, 1, 1, 0}},
		"offset wraps":          {1, append([]byte{2 * 15, 0, 0}, append(bytes.Clone(long[:9]), 1, 1, 1, 0)...)},
	} {
		batch := editBatch(encodeRecords(t, None, nobody, make([]Record, 3)...), func(b []byte) {
			binary.BigEndian.PutUint32(b[countAt:], uint32(c.count))
		})
		b, _, ok, err := NextBatch(repackBatch(at(batch, 5), None, c.body))
		if !ok || err != nil {
			t.Fatal(name, ok, err)
		}
		_, err = readBatch(b)
		if corrupt := new(CorruptError); !errors.As(err, &corrupt) || corrupt.BaseOffset != 5 || corrupt.LastOffset != 7 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Headers take two bytes on the wire and forty in memory: a small batch must not turn 64
// MiB of them into gigabytes.
func TestHeadersAreBounded(t *testing.T) {
	for _, count := range []int{30 << 20, maxHeaders + 1} {
		body := appendVarint([]byte{0, 0, 0, 1, 1}, count)
		body = append(body, make([]byte, 2*count)...)
		batch := append(bytes.Clone(encodeRecords(t, None, nobody, Record{})[:bodyAt]), append(appendVarint(nil, len(body)), body...)...)
		b, _, ok, err := NextBatch(resum(batch))
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		cost := allocatedBytes(func() { _, err = readBatch(b) })
		if err == nil || cost > 1<<20 {
			t.Errorf("%d headers cost %d KiB: %v", count, cost>>10, err)
		}
	}
}
