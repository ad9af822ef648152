package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
)

func TestBatchComesBackAsItWent(t *testing.T) {
	for _, codec := range []Codec{None, LZ4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			batch := encodeRecords(t, codec, nobody, assortedRecords()...)
			got, rest, err := readSet(at(batch, 1000))
			if err != nil || len(rest) > 0 {
				t.Fatalf("%d bytes left: %v", len(rest), err)
			}
			same(t, got, withOffsets(1000, assortedRecords()))
		})
	}
}

func TestBatchHeadSaysWhoSentIt(t *testing.T) {
	id := Identity{Producer: 1 << 40, Epoch: 7, Sequence: math.MaxInt32, Transactional: true}
	b, _, ok, err := NextBatch(at(encodeRecords(t, Zstd, id, assortedRecords()...), 77))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if b.Producer != id.Producer || b.Epoch != id.Epoch || b.Sequence != id.Sequence || !b.Transactional || b.Control ||
		b.Codec != Zstd || b.BaseOffset != 77 || b.LastOffset != 82 || b.Count != 6 {
		t.Fatalf("%+v", b)
	}
}

func TestBuilderIsReused(t *testing.T) {
	var b Builder
	for n := range 3 {
		b.Reset()
		for i := range assortedRecords()[n:] {
			b.Append(&assortedRecords()[n+i])
		}
		if err := b.Seal(LZ4); err != nil {
			t.Fatal(err)
		}
		b.Stamp(nobody)
		b.Stamp(Identity{Producer: 5}) // a retry under another identity
		got, _, err := readSet(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, withOffsets(0, assortedRecords()[n:]))
	}
}

func TestBatchThatDoesNotShrinkStaysPlain(t *testing.T) {
	b, _, _, err := NextBatch(encodeRecords(t, Zstd, nobody, Record{Value: []byte("x")}))
	if err != nil || b.Codec != None {
		t.Fatal(b.Codec, err)
	}
}

func TestCodecsWeOnlyReadAreNotWritten(t *testing.T) {
	for _, codec := range []Codec{Gzip, Snappy, 5, 7, -1} {
		var b Builder
		b.Append(&Record{Value: []byte("x")})
		if err := b.Seal(codec); err == nil {
			t.Errorf("%s was written", codec)
		}
	}
}

func TestRecordSizeIsAnUpperBound(t *testing.T) {
	var b Builder
	for _, r := range append(assortedRecords(), Record{Time: math.MinInt64}, Record{Time: math.MaxInt64}) {
		before := b.Size()
		b.Append(&r)
		if grown := b.Size() - before; grown > RecordSize(&r) {
			t.Errorf("a record of at most %d bytes added %d", RecordSize(&r), grown)
		}
	}
}

func TestAnyTimeComesBack(t *testing.T) {
	times := []int64{0, math.MaxInt64, math.MinInt64, -1, 1, 1 << 40, -(1 << 40)}
	var records []Record
	for _, at := range times {
		records = append(records, Record{Time: at})
	}
	got, _, err := readSet(encodeRecords(t, None, nobody, records...))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, withOffsets(0, records))
}

func TestAppendTimeIsEveryRecordsTime(t *testing.T) {
	batch := editBatch(encodeRecords(t, LZ4, nobody, assortedRecords()...), func(b []byte) {
		b[attributesAt+1] |= appendTimeFlag
		binary.BigEndian.PutUint64(b[maxTimeAt:], 1234)
	})
	got, _, err := readSet(batch)
	if err != nil {
		t.Fatal(err)
	}
	want := withOffsets(0, assortedRecords())
	for i := range want {
		want[i].Time = 1234
	}
	same(t, got, want)
}

// A set cut at any byte yields the complete batches and no error.
func TestSetIsCutAnywhere(t *testing.T) {
	records := []Record{{Time: 1, Key: []byte("a"), Value: []byte("b")}, {Time: 2, Headers: []Header{{"h", []byte("v")}}}}
	one := encodeRecords(t, None, nobody, records...)
	set := append(append(at(one, 0), at(one, 2)...), at(one, 10)...)
	all := append(append(withOffsets(0, records), withOffsets(2, records)...), withOffsets(10, records)...)
	for n := range len(set) + 1 {
		got, left, err := readSet(set[:n:n])
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		whole := n / len(one)
		if len(left) != n-whole*len(one) {
			t.Fatalf("cut at %d leaves %d bytes", n, len(left))
		}
		same(t, got, all[:2*whole])
	}
}

// A body cut at any byte is an error even with a correct checksum.
func TestBodyIsCutAnywhere(t *testing.T) {
	batch := encodeRecords(t, None, nobody, Record{Key: []byte("a"), Value: []byte("b"), Headers: []Header{{"h", []byte("v")}}}, Record{Value: []byte("c")})
	for n := bodyAt; n < len(batch); n++ {
		if _, _, err := readSet(resum(bytes.Clone(batch[:n]))); err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
}

// Compaction leaves holes, and at the end a head without records.
func TestCompactedBatch(t *testing.T) {
	batch := editBatch(encodeRecords(t, None, nobody, Record{Time: 5, Key: []byte("k")}), func(b []byte) {
		binary.BigEndian.PutUint32(b[lastDeltaAt:], 9)
		b[bodyAt+3] = 2 * 4 // the record's offset in the batch
	})
	got, _, err := readSet(at(batch, 100))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []Record{{Offset: 104, Time: 5, Key: []byte("k")}})

	empty := editBatch(batch[:bodyAt:bodyAt], func(b []byte) { binary.BigEndian.PutUint32(b[countAt:], 0) })
	for codec := range Codec(5) {
		b, _, ok, err := NextBatch(at(repackBatch(empty, codec, nil), 100))
		if !ok || err != nil || b.LastOffset != 109 {
			t.Fatal(ok, err, b.LastOffset)
		}
		if got, err := readBatch(b); len(got) > 0 || err != nil {
			t.Fatal(got, err)
		}
	}
}

func marker(t testing.TB, key []byte) []byte {
	return editBatch(encodeRecords(t, None, Identity{Producer: 9, Transactional: true}, Record{Key: key, Value: make([]byte, 6)}), func(b []byte) {
		b[attributesAt+1] |= controlFlag
	})
}

func TestMarkers(t *testing.T) {
	for _, c := range []struct {
		key       []byte
		committed bool
		fails     bool
	}{
		{[]byte{0, 0, 0, 0}, false, false},
		{[]byte{0, 0, 0, 1}, true, false},
		{[]byte{0, 9, 0, 1}, true, false},
		{[]byte{0, 0, 0, 5}, true, false}, // a marker of a kind that we do not know
		{[]byte{0, 0, 0}, false, true},
		{nil, false, true},
	} {
		b, _, ok, err := NextBatch(marker(t, c.key))
		if !ok || err != nil || !b.Control || !b.Transactional || b.Producer != 9 {
			t.Fatal(b, ok, err)
		}
		committed, err := b.Committed()
		if committed != c.committed || (err != nil) != c.fails {
			t.Errorf("%v: %v %v", c.key, committed, err)
		}
		if corrupt := new(CorruptError); c.fails && !errors.As(err, &corrupt) {
			t.Errorf("%v: %v does not say where", c.key, err)
		}
	}
	empty := editBatch(marker(t, nil)[:bodyAt:bodyAt], func(b []byte) { binary.BigEndian.PutUint32(b[countAt:], 0) })
	b, _, _, _ := NextBatch(empty)
	if committed, err := b.Committed(); !committed || err != nil { // compaction has removed the marker
		t.Error(committed, err)
	}
}

// A changed byte is detected, unless the checksum does not cover it; then only offsets
// change. The reported end never makes a reader skip too far.
func TestAnyChangedByteIsTold(t *testing.T) {
	records := assortedRecords()[:4]
	for _, codec := range []Codec{None, Zstd} {
		one := encodeRecords(t, codec, nobody, records...)
		set := append(at(one, 100), at(one, 104)...)
		for i := range one {
			for _, mask := range []byte{1, 0x80, 0xff} {
				set[i] ^= mask
				if err := checkChanged(set, i, records); err != nil {
					t.Errorf("%s, byte %d changed by %02x: %v", codec, i, mask, err)
				}
				set[i] ^= mask
			}
		}
	}
}

func checkChanged(set []byte, i int, records []Record) error {
	b, _, ok, err := NextBatch(set)
	if err != nil {
		return checkCorrupt(err, i)
	}
	if inLength := i >= lengthAt && i < lengthAt+4; !ok && inLength {
		return nil // looks like a cut set
	}
	if inEpoch := i >= lengthAt+4 && i < magicAt; !ok || i >= lengthAt && !inEpoch {
		return fmt.Errorf("not detected (ok %v)", ok)
	}
	got, err := readBatch(b)
	if err == nil && len(got) != len(records) {
		err = fmt.Errorf("%d records", len(got))
	}
	for j := range got {
		if string(got[j].Value) != string(records[j].Value) {
			err = fmt.Errorf("record %d changed", j)
		}
	}
	return err
}

func checkCorrupt(err error, i int) error {
	var c *CorruptError
	if !errors.As(err, &c) {
		return err
	}
	if i >= lengthAt && c.LastOffset != -1 && c.LastOffset != 103 {
		return fmt.Errorf("reported to end at %d: %w", c.LastOffset, err)
	}
	if i >= bodyAt && c.LastOffset != 103 {
		return fmt.Errorf("end is not known: %w", err)
	}
	return nil
}

func TestEndOfABrokenBatchNeedsTwoWitnesses(t *testing.T) {
	one := encodeRecords(t, None, nobody, Record{}, Record{}, Record{})
	for name, c := range map[string]struct {
		count, delta int32
		next         int64 // base offset of the next batch; -1 for none
		want         int64
	}{
		"nothing disagrees":         {3, 2, 103, 102},
		"last batch of the set":     {3, 2, -1, 102},
		"count is off":              {7, 2, 103, 102},
		"delta is off":              {3, 1 << 30, 103, 102},
		"next is off":               {3, 2, 1 << 40, 102},
		"compacted":                 {1, 2, 103, 102},
		"compacted, last":           {1, 2, -1, -1},
		"nobody agrees":             {7, 9, 104, -1},
		"negative":                  {-5, -6, -1, -1},
		"zero":                      {0, -1, 100, -1},
		"next begins before itself": {-1, -2, 99, -1},
	} {
		set := at(one, 100)
		binary.BigEndian.PutUint32(set[countAt:], uint32(c.count))
		binary.BigEndian.PutUint32(set[lastDeltaAt:], uint32(c.delta))
		if c.next >= 0 {
			set = append(set, at(one, c.next)...)
		}
		set[crcAt] ^= 1
		_, _, _, err := NextBatch(set)
		if corrupt := new(CorruptError); !errors.As(err, &corrupt) || corrupt.LastOffset != c.want {
			t.Errorf("%s: %+v, want an end at %d", name, err, c.want)
		}
	}
}
