package broker

import (
	"bytes"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// plainEvent is the event of the benchmarks: 1 KiB of data and nine attributes.
func plainEvent() *View {
	return &View{
		ID: "b7gk2mfz4qwe5rtyu6ijko3lpa", Source: "/tidemill/prod/gateway", Type: "new-data", Subject: "bot-42",
		Time: "2026-01-31T15:04:05.123456789Z", DataContentType: "application/json",
		Extensions: []Attribute{{"dataset", "bots/bot-42"}, {"branch", "main"}},
		Data:       append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1022)...), '"'),
	}
}

func BenchmarkDecode(b *testing.B) {
	r := encodeRecord(plainEvent())
	b.Run("view", func(b *testing.B) {
		var v View
		b.ReportAllocs()
		for b.Loop() {
			if err := decodeRecord(r, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk-go", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := oracleDecode(r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	v := plainEvent()
	b.Run("view", func(b *testing.B) {
		var e encoder
		headers := make([]wire.Header, 0, 16)
		b.ReportAllocs()
		for b.Loop() {
			_, _, headers = e.encode(v, headers[:0])
		}
	})
	b.Run("sdk-go", func(b *testing.B) {
		event := must(v.Event())
		b.ReportAllocs()
		for b.Loop() {
			oracleEncode(b, event, false)
		}
	})
}

func BenchmarkEdges(b *testing.B) {
	v := plainEvent()
	e := must(v.Event())
	line := MarshalStructured(v)
	for name, f := range map[string]func() error{
		"Validate":            v.Validate,
		"Clone":               func() error { v.Clone(); return nil },
		"Event":               func() error { _, err := v.Event(); return err },
		"FromEvent":           func() error { _, err := FromEvent(e); return err },
		"AppendStructured":    func() error { line = AppendStructured(line[:0], v); return nil },
		"UnmarshalStructured": func() error { return UnmarshalStructured(line, new(View)) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	var (
		v       View
		e       encoder
		headers []wire.Header
		r       = encodeRecord(plainEvent())
	)
	if n := testing.AllocsPerRun(100, func() {
		if err := decodeRecord(r, &v); err != nil {
			t.Fatal(err)
		}
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
		_, _, headers = e.encode(&v, headers[:0])
	}); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// BenchmarkSend measures the cost of an event for its publisher: all of Send except the sender's
// part, which never gets a partition that is in flight.
func BenchmarkSend(b *testing.B) {
	names, err := tidemill.NewNames("")
	if err != nil {
		b.Fatal(err)
	}
	p, err := (&Broker{names: names}).Producer(ProducerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	t := newOutTopic(p, "events", make([]int32, 8))
	for _, o := range t.all() {
		o.place = inFlight
	}
	p.topics.Store(&map[string]*outTopic{"events": t})
	v := plainEvent()
	done := func(Receipt, error) {}
	sent := 0
	b.ReportAllocs()
	for b.Loop() {
		p.Send(b.Context(), "events", v, done)
		if sent++; sent%4096 == 0 {
			drop(p, t)
		}
	}
}

// drop removes all batches as if they had been acknowledged.
func drop(p *Producer, t *outTopic) {
	for _, o := range t.all() {
		for len(o.queue) > 0 {
			o.pop(p)
		}
	}
}

// BenchmarkReceive measures the cost of an event for its reader, from the fetched bytes to Done:
// check, decode, number, end.
func BenchmarkReceive(b *testing.B) {
	var batch wire.Builder
	r := encodeRecord(plainEvent())
	for batch.Size() < partitionFetch*9/10 {
		batch.Append(r)
	}
	if err := batch.Seal(wire.None); err != nil {
		b.Fatal(err)
	}
	batch.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	c := &Consumer{letters: &deadLetters{}}
	c.memory.New = func() any { return new(contents) }
	p := &inPartition{c: c, stream: "events"}
	part := &wire.Fetched{Records: batch.Bytes()}
	b.ReportAllocs()
	for left := b.N; left > 0; {
		p.mark.begin(0)
		d := c.newDelivery(fetchAsk{p: p}, nil, 0)
		if err := d.decode(fetchAsk{p: p}, part); err != nil {
			b.Fatal(err)
		}
		left -= len(d.Events)
		if p.queued++; d.numberEvents() != passedOn {
			b.Fatal("not handed out")
		}
		d.Done()
	}
}
