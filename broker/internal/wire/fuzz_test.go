package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/segmentio/kafka-go/protocol"
)

// FuzzNextBatch reads a record set of the fuzzer. Reading must end without a panic, at a cost
// bounded by the largest unpacked size. The checksum is corrected so that the fuzzer gets past it.
func FuzzNextBatch(f *testing.F) {
	for _, codec := range []Codec{None, LZ4, Zstd} {
		f.Add(append(encodeRecords(f, codec, nobody, assortedRecords()[:4]...), encodeRecords(f, None, nobody, assortedRecords()[0])...))
	}
	for _, codec := range []protocol.Attributes{protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		f.Add(oracleWrite(f, codec, assortedRecords()[:4]))
	}
	plain := encodeRecords(f, None, nobody, assortedRecords()[0])
	f.Add(repackBatch(plain, Snappy, snappy.Encode(nil, plain[bodyAt:])))
	f.Add(marker(f, []byte{0, 0, 0, 1}))
	f.Add(repackBatch(plain, Zstd, packZeros(f, Zstd, 2*maxUnpacked)))
	f.Fuzz(func(t *testing.T, set []byte) {
		readHostileSet(t, set)
		if len(set) >= bodyAt {
			readHostileSet(t, editBatch(set, func([]byte) {}))
		}
	})
}

func readHostileSet(t *testing.T, set []byte) {
	if cost, bound := allocatedBytes(func() { readLikeConsumer(t, set) }), uint64(len(set)/bodyAt+2)*maxCost; cost > bound {
		t.Errorf("%d bytes cost %d MiB", len(set), cost>>20)
	}
}

// readLikeConsumer reads as the consumer does and checks the consumer's assumptions.
func readLikeConsumer(t *testing.T, set []byte) {
	var scratch []byte
	var rec Record
	for {
		b, rest, ok, err := NextBatch(set)
		if len(rest) >= len(set) && len(set) > 0 {
			t.Fatal("reading does not come forward")
		}
		if err == nil && !ok || rest == nil {
			return
		}
		set = rest
		if err != nil {
			continue
		}
		if b.BaseOffset < 0 || b.LastOffset < b.BaseOffset || b.LastOffset+1 < 0 {
			t.Fatalf("offsets from %d to %d", b.BaseOffset, b.LastOffset)
		}
		if b.Control {
			b.Committed()
		}
		var r Records
		if scratch, err = r.Open(b, scratch); err != nil {
			continue
		}
		if len(scratch) > maxUnpacked {
			t.Fatalf("unpacked to %d bytes", len(scratch))
		}
		for last := b.BaseOffset - 1; r.Next(&rec); last = rec.Offset {
			if rec.Offset <= last || rec.Offset > b.LastOffset {
				t.Fatalf("offset %d after %d in a batch that ends at %d", rec.Offset, last, b.LastOffset)
			}
		}
	}
}

// FuzzAnswers gives an answer to all functions that read one: the cost must be bounded by
// the answer's length.
func FuzzAnswers(f *testing.F) {
	produced, _ := producedAnswer(f)
	for _, seed := range [][]byte{produced, fetchedAnswer(f), metadataAnswer(f, 0, 1), offsetsAnswer(f), offsetFetchAnswer(f)} {
		f.Add(seed)
	}
	for _, a := range transactionAnswers() {
		f.Add(a.answer)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		cost := allocatedBytes(func() {
			ReadProduced(b, func(Produced) {})
			ReadFetched(b, func(p *Fetched) {
				if len(p.Records) > len(b) {
					t.Error("more records than bytes")
				}
			})
			ReadMetadata(b)
			ReadOffsets(b)
			ReadOffsetFetch(b)
			ReadAddPartitions(b, func([]byte, int32, int16) {})
			ReadCommitOffsets(b, func(int16) {})
			ReadDescribeProducers(b)
			ReadTopicIDs(b)
			ReadDescribeTransaction(b)
			ReadAnswer(bytes.NewReader(b), nil)
		})
		if cost > uint64(64*len(b))+firstPiece+1<<20 {
			t.Errorf("%d bytes cost %d KiB", len(b), cost>>10)
		}
	})
}

// FuzzRoundTrip makes records from the fuzzer's bytes and expects them back from every
// codec and from kafka-go.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x01\x05k1234\x03value\x02\x03h\x00\x04v"), int64(1_700_000_000_000), uint8(0))
	f.Add(bytes.Repeat([]byte{7, 0, 200, 1}, 500), int64(-5), uint8(1))
	f.Add(make([]byte, 4096), int64(0), uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, base int64, kind uint8) {
		records := recordsOf(in, base)
		if len(records) == 0 {
			return
		}
		codec := []Codec{None, LZ4, Zstd}[kind%3]
		batch := encodeRecords(t, codec, Identity{Producer: base, Epoch: int16(base), Sequence: int32(base), Transactional: kind > 100}, records...)
		got, left, err := readSet(batch)
		if err != nil || len(left) > 0 {
			t.Fatal(len(left), err)
		}
		same(t, got, withOffsets(0, records))
		theirs, _ := oracleRead(t, batch)
		want := withOffsets(0, records)
		for i := range want {
			want[i].Time = theirs[i].Time // our time is checked above; kafka-go clips its time
		}
		same(t, theirs, want)
	})
}

// recordsOf takes fields from the bytes until none are left.
func recordsOf(in []byte, base int64) (all []Record) {
	field := func() []byte {
		n, size := binary.Uvarint(in)
		if size <= 0 {
			in = nil
			return nil
		}
		in = in[size:]
		if n == 0 {
			return nil
		}
		n = min(n-1, uint64(len(in)))
		head := in[:n:n]
		in = in[n:]
		return append([]byte{}, head...)
	}
	for len(in) > 0 {
		r := Record{Key: field(), Value: field()}
		var delta [8]byte
		copy(delta[:], field())
		r.Time = base + int64(binary.LittleEndian.Uint64(delta[:]))
		for n := len(field()); n > 0; n-- {
			r.Headers = append(r.Headers, Header{string(field()), field()})
		}
		all = append(all, r)
	}
	return all
}
