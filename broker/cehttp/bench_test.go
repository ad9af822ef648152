package cehttp

import (
	"bytes"
	"maps"
	"net/http"
	"testing"

	"tidemill.dev/broker"
)

// plainEvent is the event of the benchmarks: 1 KiB of data and nine attributes.
func plainEvent() *broker.View {
	return &broker.View{
		ID: "b7gk2mfz4qwe5rtyu6ijko3lpa", Source: "/shops/berlin", Type: "new-data", Subject: "bot-42",
		Time: "2026-01-31T15:04:05.123456789Z", DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: "branch", Value: "main"}, {Name: "dataset", Value: "bots/bot-42"}},
		Data:       append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1022)...), '"'),
	}
}

// asSent adds the headers that a request has besides its event.
func asSent(h http.Header) http.Header {
	h = maps.Clone(h)
	maps.Copy(h, http.Header{"Host": {"x"}, "User-Agent": {"x"}, "Content-Length": {"1024"}, "Accept-Encoding": {"gzip"}, "Authorization": {"Bearer x"}})
	return h
}

func BenchmarkRead(b *testing.B) {
	for _, mode := range []Mode{Binary, Structured} {
		read := map[Mode]func(http.Header, []byte, *broker.View) error{Binary: ReadBinary, Structured: ReadStructured}[mode]
		h, body := encodeMessage(mode, plainEvent())
		h = asSent(h)
		b.Run(mode.String(), func(b *testing.B) {
			var v broker.View
			b.ReportAllocs()
			for b.Loop() {
				if err := read(h, body, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("batch of 100", func(b *testing.B) {
		h := http.Header{}
		body := WriteBatch(h, hundred())
		b.ReportAllocs()
		for b.Loop() {
			if err := ReadBatch(h, body, 100, func(_ int, _ *broker.View, err error) {
				if err != nil {
					b.Fatal(err)
				}
			}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(100*b.N), "ns/event")
	})
}

func BenchmarkWrite(b *testing.B) {
	v := plainEvent()
	for _, mode := range []Mode{Binary, Structured} {
		b.Run(mode.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encodeMessage(mode, v)
			}
		})
	}
	b.Run("batch of 100", func(b *testing.B) {
		events := hundred()
		b.ReportAllocs()
		for b.Loop() {
			WriteBatch(http.Header{}, events)
		}
	})
}

func hundred() (events []broker.View) {
	for range 100 {
		events = append(events, *plainEvent())
	}
	return events
}

func TestReadBinaryHardlyAllocates(t *testing.T) {
	h, body := encodeMessage(Binary, plainEvent())
	h = asSent(h)
	var v broker.View
	if n := testing.AllocsPerRun(100, func() {
		if err := ReadBinary(h, body, &v); err != nil {
			t.Fatal(err)
		}
	}); n > 1 { // for the names in lower case
		t.Errorf("%v allocations an event", n)
	}
}
