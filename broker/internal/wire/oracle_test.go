package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/segmentio/kafka-go/protocol"
)

// The oracle of our batches, in both directions, is kafka-go's own encoding.

func oracleRead(t testing.TB, set []byte) (all []Record, attributes protocol.Attributes) {
	t.Helper()
	var rs protocol.RecordSet
	framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(set))), set...)
	if _, err := rs.ReadFrom(bytes.NewReader(framed)); err != nil {
		t.Fatal(err)
	}
	return drain(t, rs.Records), rs.Attributes
}

func drain(t testing.TB, reader protocol.RecordReader) (all []Record) {
	t.Helper()
	for reader != nil {
		r, err := reader.ReadRecord()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		rec := Record{Offset: r.Offset, Time: r.Time.UnixMilli(), Key: bytesOf(t, r.Key), Value: bytesOf(t, r.Value)}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, Header(h))
		}
		all = append(all, rec)
	}
	return all
}

func bytesOf(t testing.TB, b protocol.Bytes) []byte {
	t.Helper()
	if b == nil {
		return nil
	}
	all, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func oracleRecords(records []Record) protocol.RecordReader {
	all := make([]protocol.Record, len(records))
	for i, r := range records {
		all[i] = protocol.Record{Time: time.UnixMilli(r.Time)}
		if r.Key != nil {
			all[i].Key = protocol.NewBytes(r.Key)
		}
		if r.Value != nil {
			all[i].Value = protocol.NewBytes(r.Value)
		}
		for _, h := range r.Headers {
			all[i].Headers = append(all[i].Headers, protocol.Header(h))
		}
	}
	return protocol.NewRecordReader(all...)
}

func oracleWrite(t testing.TB, attributes protocol.Attributes, records []Record) []byte {
	t.Helper()
	var out bytes.Buffer
	rs := protocol.RecordSet{Version: 2, Attributes: attributes, Records: oracleRecords(records)}
	if _, err := rs.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()[4:]
}

func TestOracleReadsWhatWeWrite(t *testing.T) {
	for _, codec := range []Codec{None, LZ4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			one := encodeRecords(t, codec, Identity{Producer: 3, Transactional: true}, assortedRecords()...)
			got, attributes := oracleRead(t, append(at(one, 10), at(one, 20)...))
			same(t, got, append(withOffsets(10, assortedRecords()), withOffsets(20, assortedRecords())...))
			if !attributes.Transactional() || attributes.Control() || int8(attributes.Compression()) != int8(codec) {
				t.Error(attributes)
			}
		})
	}
}

func TestWeReadWhatOracleWrites(t *testing.T) {
	for _, attributes := range []protocol.Attributes{0, protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		t.Run(attributes.String(), func(t *testing.T) {
			one := oracleWrite(t, attributes|protocol.Transactional, assortedRecords())
			b, _, ok, err := NextBatch(one)
			if !ok || err != nil || b.Codec != Codec(attributes) || !b.Transactional || b.Producer != -1 || b.Epoch != -1 || b.Sequence != -1 {
				t.Fatalf("%+v %v %v", b, ok, err)
			}
			got, _, err := readSet(append(at(one, 10), at(one, 20)...))
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, append(withOffsets(10, assortedRecords()), withOffsets(20, assortedRecords())...))
		})
	}
}

func TestWeReadOraclesMarkers(t *testing.T) {
	for kind, committed := range []bool{false, true} {
		control := protocol.ControlRecord{Type: int16(kind), Data: make([]byte, 6)}
		r := control.Record()
		var out bytes.Buffer
		rs := protocol.RecordSet{Version: 2, Attributes: protocol.Control | protocol.Transactional, Records: protocol.NewRecordReader(r)}
		if _, err := rs.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		b, _, ok, err := NextBatch(out.Bytes()[4:])
		if !ok || err != nil || !b.Control {
			t.Fatal(b, ok, err)
		}
		if got, err := b.Committed(); got != committed || err != nil {
			t.Error(got, err)
		}
	}
}

func TestOldFormatsAreNamed(t *testing.T) {
	var out bytes.Buffer
	rs := protocol.RecordSet{Version: 1, Records: oracleRecords([]Record{{Time: 1, Value: []byte("x")}})}
	if _, err := rs.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	for magic := range byte(2) {
		set := out.Bytes()[4:]
		set[magicAt] = magic
		_, _, ok, err := NextBatch(set)
		if ok || err == nil {
			t.Errorf("format v%d was taken for the end of the set", magic)
		}
	}
}

// Snappy comes bare from librdkafka, and framed in many blocks from Java.
func TestEveryFramingOfSnappy(t *testing.T) {
	records := assortedRecords()[:4]
	batch := encodeRecords(t, None, nobody, records...)
	plain := batch[bodyAt:]
	framed := append(bytes.Clone(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	for block := range slices.Chunk(plain, 20) {
		packed := snappy.Encode(nil, block)
		framed = append(binary.BigEndian.AppendUint32(framed, uint32(len(packed))), packed...)
	}
	for name, body := range map[string][]byte{"bare": snappy.Encode(nil, plain), "framed": framed} {
		got, _, err := readSet(repackBatch(batch, Snappy, body))
		if err != nil {
			t.Fatal(name, err)
		}
		same(t, got, withOffsets(0, records))
	}
	for n := range framed {
		if _, _, err := readSet(repackBatch(batch, Snappy, framed[:n])); err == nil && n > 0 {
			t.Fatalf("cut at %d: no error", n)
		}
	}
}
