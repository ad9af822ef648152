package broker

import (
	"testing"

	"tidemill.dev"
)

// BenchmarkSend is what an event costs its publisher: all of Send but the
// sender's part, which a partition that is in flight never reaches.
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

// drop takes all batches back as if they had been acknowledged.
func drop(p *Producer, t *outTopic) {
	for _, o := range t.all() {
		for len(o.queue) > 0 {
			o.pop(p)
		}
	}
}
