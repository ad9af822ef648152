package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
)

// encodeRecords encodes records with our Builder.
func encodeRecords(t testing.TB, codec Codec, id Identity, records ...Record) []byte {
	t.Helper()
	var b Builder
	for i := range records {
		b.Append(&records[i])
	}
	if err := b.Seal(codec); err != nil {
		t.Fatal(err)
	}
	b.Stamp(id)
	return bytes.Clone(b.Bytes())
}

var nobody = Identity{Producer: -1, Epoch: -1, Sequence: -1}

// editBatch changes a batch's head or body and corrects the checksum.
func editBatch(batch []byte, edit func([]byte)) []byte {
	batch = bytes.Clone(batch)
	edit(batch)
	return resum(batch)
}

func resum(batch []byte) []byte {
	binary.BigEndian.PutUint32(batch[lengthAt:], uint32(len(batch)-magicAt+4))
	binary.BigEndian.PutUint32(batch[crcAt:], crc32.Checksum(batch[attributesAt:], castagnoli))
	return batch
}

// repackBatch returns a batch with another body, marked as packed by a codec.
func repackBatch(batch []byte, codec Codec, body []byte) []byte {
	batch = append(bytes.Clone(batch[:bodyAt]), body...)
	batch[attributesAt+1] = batch[attributesAt+1]&^codecMask | byte(codec)
	return resum(batch)
}

func at(batch []byte, base int64) []byte {
	batch = bytes.Clone(batch)
	binary.BigEndian.PutUint64(batch, uint64(base))
	return batch
}

// readSet reads every record of every batch and returns the bytes left.
func readSet(set []byte) (all []Record, left []byte, err error) {
	for {
		b, rest, ok, err := NextBatch(set)
		if err != nil || !ok {
			return all, set, err
		}
		set = rest
		records, err := readBatch(b)
		all = append(all, records...)
		if err != nil {
			return all, set, err
		}
	}
}

func readBatch(b Batch) (all []Record, err error) {
	var r Records
	if _, err := r.Open(b, nil); err != nil {
		return nil, err
	}
	var rec Record
	for r.Next(&rec) {
		all = append(all, cloned(rec))
	}
	return all, r.Err()
}

func cloned(r Record) Record {
	headers := r.Headers
	r.Key, r.Value, r.Headers = bytes.Clone(r.Key), bytes.Clone(r.Value), nil
	for _, h := range headers {
		r.Headers = append(r.Headers, Header{strings.Clone(h.Key), bytes.Clone(h.Value)})
	}
	return r
}

// withOffsets gives records the offsets that a log would assign.
func withOffsets(base int64, records []Record) []Record {
	all := make([]Record, len(records))
	for i, r := range records {
		all[i] = cloned(r)
		all[i].Offset = base + int64(i)
	}
	return all
}

func same(t testing.TB, got, want []Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("record %d is\n%#v, want\n%#v", i, got[i], want[i])
		}
	}
}

// assortedRecords returns records that differ in every property of the wire format.
func assortedRecords() []Record {
	many := make([]Header, 300)
	for i := range many {
		many[i] = Header{strings.Repeat("k", i%130), bytes.Repeat([]byte{byte(i)}, i)}
	}
	return []Record{
		{Time: 1_700_000_000_000, Key: []byte("bot-42"), Value: []byte("hello"), Headers: []Header{{"ce_id", []byte("1")}}},
		{Time: 1_700_000_000_001},
		{Time: 1_600_000_000_000, Key: []byte{}, Value: []byte{}},
		{Time: 1_800_000_000_000, Value: []byte{0, 255}, Headers: []Header{{"", nil}, {"", []byte{}}, {"twice", []byte("a")}, {"twice", []byte("b")}}},
		{Time: 1, Key: bytes.Repeat([]byte("key"), 5000), Headers: many},
		{Time: 1_700_000_000_000, Value: bytes.Repeat([]byte("0123456789abcdef"), 8192)},
	}
}
