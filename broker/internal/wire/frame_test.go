package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
)

func written(t testing.TB, f *Frame) []byte {
	t.Helper()
	var out bytes.Buffer
	n, err := f.WriteTo(&out)
	if err != nil || n != int64(out.Len()) {
		t.Fatal(n, out.Len(), err)
	}
	if size := binary.BigEndian.Uint32(out.Bytes()); int(size) != out.Len()-4 {
		t.Fatalf("frame of %d bytes says %d", out.Len()-4, size)
	}
	return out.Bytes()
}

// oracleRequest decodes a frame with kafka-go, as a broker would.
func oracleRequest[M protocol.Message](t testing.TB, f *Frame, version int16) M {
	t.Helper()
	in := bytes.NewReader(written(t, f))
	v, id, client, msg, err := protocol.ReadRequest(in)
	if err != nil || v != version || v != f.Version || id != correlationID || client != "mill" || in.Len() > 0 {
		t.Fatal(v, id, client, in.Len(), err)
	}
	return msg.(M)
}

func TestOracleReadsOurProduce(t *testing.T) {
	small := encodeRecords(t, LZ4, nobody, assortedRecords()[:3]...)
	large := encodeRecords(t, None, nobody, assortedRecords()...)
	if len(large) < spliceFrom {
		t.Fatal("the large batch is not spliced")
	}
	var f Frame
	for _, transactional := range []string{"", "tidemill-1"} {
		f.BeginProduce(ProduceHead{Client: "mill", Transactional: transactional, TimeoutMillis: 1234, Topics: 2})
		f.Topic("a", 2)
		f.Batch(0, large)
		f.Batch(7, small)
		f.Topic("b", 1)
		f.Batch(1, large)
		f.End()
		got := oracleRequest[*produce.Request](t, &f, 8)
		if got.TransactionalID != transactional || got.Acks != -1 || got.Timeout != 1234 || len(got.Topics) != 2 {
			t.Fatalf("%+v", got)
		}
		check := func(topic, part int, name string, index int32, want []Record) {
			p := got.Topics[topic].Partitions[part]
			if got.Topics[topic].Topic != name || p.Partition != index {
				t.Errorf("%+v", got.Topics[topic])
			}
			same(t, drain(t, p.RecordSet.Records), withOffsets(0, want))
		}
		check(0, 0, "a", 0, assortedRecords())
		check(0, 1, "a", 7, assortedRecords()[:3])
		check(1, 0, "b", 1, assortedRecords())
	}
}

func TestOracleReadsOurFetch(t *testing.T) {
	var f Frame
	f.BeginFetch(FetchHead{Client: "mill", MaxWaitMillis: 500, MinBytes: 1, MaxBytes: 1 << 24, Topics: 1})
	f.Topic("a", 2)
	f.From(3, 1<<40, 1<<20)
	f.From(4, 0, 77)
	f.EndFetch()
	part := func(index int32, offset int64, size int32) fetch.RequestPartition {
		return fetch.RequestPartition{Partition: index, CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: size}
	}
	want := &fetch.Request{ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: 1 << 24, IsolationLevel: 1, SessionEpoch: -1,
		Topics:          []fetch.RequestTopic{{Topic: "a", Partitions: []fetch.RequestPartition{part(3, 1<<40, 1<<20), part(4, 0, 77)}}},
		ForgottenTopics: []fetch.RequestForgottenTopic{}}
	if got := oracleRequest[*fetch.Request](t, &f, 11); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOracleReadsOurMetadata(t *testing.T) {
	var f Frame
	for _, topics := range [][]string{nil, {"a", "b"}} {
		f.Metadata("mill", topics)
		if got, want := oracleRequest[*metadata.Request](t, &f, 8), (&metadata.Request{TopicNames: topics}); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestOracleReadsOurListOffsets(t *testing.T) {
	var f Frame
	f.ListOffsets("mill", []OffsetQuery{{TopicPartition{"a", 1}, Earliest}, {TopicPartition{"b", 2}, 1234}}, true)
	topic := func(name string, index int32, at int64) listoffsets.RequestTopic {
		return listoffsets.RequestTopic{Topic: name, Partitions: []listoffsets.RequestPartition{{Partition: index, CurrentLeaderEpoch: -1, Timestamp: at}}}
	}
	want := &listoffsets.Request{ReplicaID: -1, IsolationLevel: 1, Topics: []listoffsets.RequestTopic{topic("a", 1, -2), topic("b", 2, 1234)}}
	if got := oracleRequest[*listoffsets.Request](t, &f, 4); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// kafka-go does not support this version, so these bytes are written by hand from the
// protocol's description.
func TestOffsetFetchByHand(t *testing.T) {
	head := "0009 0007 00000000 0004 6d696c6c 00" + // key, version, correlation, client, no tags
		"02 67" // group
	var f Frame
	for want, partitions := range map[string][]TopicPartition{
		head + "00 01 00": nil, // all topics, require stable, no tags
		head + "03" + // two topics
			"02 61 02 00000001 00" + // name, one partition, no tags
			"02 62 02 00000300 00" +
			"01 00": {{"a", 1}, {"b", 768}},
	} {
		f.OffsetFetch("mill", "g", partitions, true)
		if got, want := hex.EncodeToString(written(t, &f)[4:]), strings.ReplaceAll(want, " ", ""); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestFrameRefusesWhatItCannotSay(t *testing.T) {
	long := strings.Repeat("x", math.MaxInt16+1)
	huge := make([]byte, 1<<30)
	for name, fill := range map[string]func(*Frame){
		"client": func(f *Frame) { f.Metadata(long, nil) },
		"topic":  func(f *Frame) { f.Metadata("mill", []string{long}) },
		"query":  func(f *Frame) { f.ListOffsets("mill", []OffsetQuery{{TopicPartition{Topic: long}, 0}}, false) },
		"transactional id": func(f *Frame) {
			f.BeginProduce(ProduceHead{Transactional: long})
			f.End()
		},
		"more than 2 GiB": func(f *Frame) {
			f.BeginProduce(ProduceHead{Topics: 1})
			f.Topic("a", 2)
			f.Batch(0, huge)
			f.Batch(1, huge)
			f.End()
		},
	} {
		var f Frame
		fill(&f)
		var out bytes.Buffer
		if n, err := f.WriteTo(&out); err == nil || n != 0 || out.Len() != 0 {
			t.Errorf("%s: wrote %d: %v", name, n, err)
		}
		f.Metadata("mill", nil)
		written(t, &f) // the next request starts without the error
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return w.left, io.ErrShortWrite
	}
	w.left -= len(p)
	return len(p), nil
}

func TestFrameTellsHowFarItCame(t *testing.T) {
	batch := encodeRecords(t, None, nobody, assortedRecords()...)
	var f Frame
	f.BeginProduce(ProduceHead{Client: "mill", Topics: 1})
	f.Topic("a", 1)
	f.Batch(0, batch)
	f.End()
	for n := range int64(len(written(t, &f))) {
		if n%997 > 0 && n > 100 {
			continue
		}
		if got, err := f.WriteTo(&failingWriter{int(n)}); got != n || !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("%d of %d: %v", got, n, err)
		}
	}
}

func answer(id uint32, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(b, id), body...)
}

func TestReadAnswer(t *testing.T) {
	for _, size := range []int{0, 1, 1000, firstPiece, firstPiece + 1, 3*firstPiece + 7} {
		body := bytes.Repeat([]byte("tidemill"), size/8+1)[:size]
		for _, buf := range [][]byte{nil, make([]byte, 5, 10), make([]byte, 0, size)} {
			got, err := ReadAnswer(iotest.HalfReader(bytes.NewReader(append(answer(0, body), "next"...))), buf)
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%d bytes read as %d: %v", size, len(got), err)
			}
			if cap(buf) >= size && size > 0 && &got[0] != &buf[:1][0] {
				t.Errorf("%d bytes were read elsewhere than in %d", size, cap(buf))
			}
		}
	}
}

func TestReadAnswerIsCutAnywhere(t *testing.T) {
	whole := answer(0, []byte("hello"))
	for n := range whole {
		_, err := ReadAnswer(bytes.NewReader(whole[:n]), nil)
		if want := io.ErrUnexpectedEOF; err != want && (n > 0 || err != io.EOF) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func TestReadAnswerRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"a TLS alert":       "\x15\x03\x01\x00\x02\x02\x46\x00",
		"HTTP":              "HTTP/1.1 400 Bad Request\r\n",
		"negative size":     "\xff\xff\xff\xff\x00\x00\x00\x00",
		"size below its id": "\x00\x00\x00\x03\x00\x00\x00\x00",
		"another's answer":  "\x00\x00\x00\x05\x00\x00\x00\x01x",
	} {
		if _, err := ReadAnswer(strings.NewReader(in), nil); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Eight bytes from a peer do not reserve the size that they announce.
func TestReadAnswerAllocatesAsBytesArrive(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, maxFrame)
	var err error
	cost := allocatedBytes(func() { _, err = ReadAnswer(bytes.NewReader(append(head, 0, 0, 0, 0, 'x')), nil) })
	if err != io.ErrUnexpectedEOF || cost > firstPiece+1<<20 {
		t.Errorf("cost %d KiB: %v", cost>>10, err)
	}
}
