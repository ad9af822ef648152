package score

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/parked"
)

// parkedKafka is a Kafka with a parked stream.
type parkedKafka struct {
	testing.TB
	ctx context.Context
	b   *broker.Broker
	p   *broker.Producer
}

const parkedStream = "scorer.x.parked"

func newParkedKafka(t testing.TB, partitions int) *parkedKafka {
	t.Helper()
	ctx := t.Context() // the context of the whole test, because it may serve forty stories
	servers, err := embedded.Start(ctx, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Close() })
	names, err := tidemill.NewNames("held")
	if err != nil {
		t.Fatal(err)
	}
	k := &parkedKafka{TB: t, ctx: ctx}
	k.b, err = broker.Open(ctx, broker.Options{Addr: servers.Kafka(), Names: names})
	k.must(err)
	t.Cleanup(func() { _ = k.b.Close() })
	_, err = k.b.EnsureStreams(ctx, []broker.StreamSpec{{Name: parkedStream, Partitions: partitions}}, broker.EnsureOptions{})
	k.must(err)
	k.p, err = k.b.Producer(broker.ProducerOptions{})
	k.must(err)
	t.Cleanup(func() { _ = k.p.Close(context.Background()) })
	return k
}

func (k *parkedKafka) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// draft is a transaction that may be committed, aborted or torn.
type draft struct {
	sent []func(*parkedKafka, bool)
}

// SendTo implements outbox.
func (d *draft) SendTo(ctx context.Context, stream string, partition int32, v *broker.View, done func(broker.Receipt)) {
	kept := v.Clone()
	d.sent = append(d.sent, func(k *parkedKafka, tell bool) {
		result := make(chan error, 1)
		k.p.SendTo(ctx, stream, partition, &kept, func(r broker.Receipt, err error) {
			if err == nil && tell {
				done(r)
			}
			result <- err
		})
		k.must(<-result)
	})
}

// write writes the sent records to the log. A torn transaction calls no receipts.
func (d *draft) write(k *parkedKafka, tell bool) {
	for _, send := range d.sent {
		send(k, tell)
	}
}

// story is a partition of an input, its successive owners, and the outputs.
type story struct {
	*parkedKafka
	r         *rand.Rand
	partition int32
	input     []broker.View
	keys      []string        // key of each input
	model     string          // template of the models' names
	ready     map[string]bool // models that are loaded

	// State on the log.
	mark    heldMark
	offset  int
	from    int // number of outputs that certainly count
	outputs []int
	renewed int
	dead    []int // dead letters of parked events

	// State of the owner.
	h     *heldIndex
	found map[int]bool
	at    int
}

func newStory(k *parkedKafka, seed uint64, events, keys int) *story {
	s := &story{parkedKafka: k, r: rand.New(rand.NewPCG(seed, 1)), partition: int32(seed), model: []string{"m/{key}", "m"}[seed/2%2], ready: map[string]bool{}, mark: noMark}
	for i := range events {
		key := fmt.Sprintf("bot-%d", s.r.IntN(keys))
		s.keys = append(s.keys, key)
		s.input = append(s.input, broker.View{ID: fmt.Sprint(i), Source: "/test", Type: "message", Subject: key, DataContentType: "text/plain",
			Data: fmt.Appendf(nil, "event %d", i), Foreign: []broker.Header{{Key: "theirs", Value: []byte("kept")}, {Key: headerHeld, Value: []byte("spoofed")}}})
	}
	s.begin()
	s.mark = s.h.returnMark() // a note is written before the first output
	return s
}

// begin starts a new owner. It reads the outputs back from the place in the note.
func (s *story) begin() {
	s.Helper()
	s.h = openHeld(s.b, parkedStream, s.partition, heldOptions{Model: s.model, Kept: 1 + s.r.IntN(8)*700, Read: 1 + s.r.IntN(8)*700, Renew: parked.Renewal{Least: 1 + s.r.IntN(20), Share: 1 + s.r.IntN(3)}})
	s.must(s.h.rebuild(s.ctx, s.mark, int64(s.offset)))
	s.found = map[int]bool{}
	for _, o := range s.outputs[s.from:] {
		s.h.scored(int64(o), identity(s.input[o].Source, s.input[o].ID))
		s.found[o] = true
	}
	s.h.endRebuild()
	s.at = s.offset
}

// batch processes one batch and returns whether the owner continues.
func (s *story) batch() bool {
	var out, dead []int
	var d draft
	returned := s.takeEvents(&out, &dead)
	renewed, err := s.h.renew(s.ctx)
	s.must(err)
	for _, r := range renewed {
		s.same(r.old)
		returned = append(returned, r.old)
		s.must(s.h.park(s.ctx, &d, r.again, &r.old.view))
		s.renewed++
	}
	n := s.read(&d, &out)
	s.must(s.h.returned(s.ctx, &d, "/scorer", returned))
	offset := s.at
	switch s.r.IntN(5) { // the offset cannot pass a delivery with waiting events
	case 0:
		offset = max(s.offset, s.at-s.r.IntN(n+1))
	case 1, 2:
		offset = s.offset
	}
	mark := s.h.returnMark()
	switch s.r.IntN(12) {
	case 0: // aborted
		return false
	case 1: // some partitions are written, but the offset and the note are not
		if s.r.IntN(2) == 0 {
			s.outputs = append(s.outputs, out...)
		}
		if s.r.IntN(2) == 0 {
			d.write(s.parkedKafka, false)
		}
		return false
	}
	whole := offset == s.at
	s.outputs, s.dead = append(s.outputs, out...), append(s.dead, dead...)
	d.write(s.parkedKafka, true)
	if s.offset, s.mark = offset, mark; whole && s.beyondAll() {
		s.from = len(s.outputs)
	}
	s.h.committed(int64(offset))
	return s.r.IntN(10) > 0
}

// beyondAll reports whether the offset has passed all outputs that the owner found.
func (s *story) beyondAll() bool {
	for o := range s.found {
		if o >= s.offset {
			return false
		}
	}
	return true
}

// takeEvents returns events whose models are loaded.
func (s *story) takeEvents(out, dead *[]int) []*heldEvent {
	for {
		model, ok := s.h.nextModel()
		if !ok {
			break
		}
		if s.ready[model] {
			s.h.unlock(model)
		} else {
			defer s.h.closeModel(model)
		}
	}
	all, err := s.h.takeOpen(s.ctx, s.r.IntN(12), 1<<20)
	s.must(err)
	if !slices.IsSortedFunc(all, func(a, b *heldEvent) int { return cmp.Compare(a.at, b.at) }) {
		s.Error("events are not taken in the order in which they were parked")
	}
	if n := len(all); n > 0 && s.r.IntN(4) == 0 { // the model was evicted again
		key := all[s.r.IntN(n)].key
		var back, rest []*heldEvent
		for _, e := range all {
			if e.key == key {
				back = append(back, e)
			} else {
				rest = append(rest, e)
			}
		}
		cut := s.r.IntN(len(back) + 1)
		s.h.putBack(back[cut:])
		all = append(rest, back[:cut]...)
	}
	for _, e := range all {
		s.same(e)
		if e.offset%3 == 0 {
			*dead = append(*dead, int(e.offset))
		} else {
			*out = append(*out, int(e.offset))
		}
	}
	return all
}

func (s *story) same(e *heldEvent) {
	s.Helper()
	want := s.input[e.offset]
	if e.err != nil || e.view.ID != want.ID || string(e.view.Data) != string(want.Data) || len(e.view.Foreign) != 2 || string(e.view.Foreign[1].Value) != "spoofed" || e.key != s.keys[e.offset] {
		s.Fatalf("event %d came back as %+v of key %s: %v", e.offset, e.view, e.key, e.err)
	}
}

// read processes some events of the input.
func (s *story) read(d *draft, out *[]int) (n int) {
	for n = range s.r.IntN(10) {
		if s.at == len(s.input) {
			return n
		}
		v, key := &s.input[s.at], s.keys[s.at]
		switch {
		case s.h.seen(v, int64(s.at)), s.found[s.at]:
		case s.h.isWaiting(key, s.h.modelOf(key)) || !s.ready[s.h.modelOf(key)]:
			s.must(s.h.parkEvent(s.ctx, d, key, v, int64(s.at)))
		default:
			*out = append(*out, s.at)
		}
		s.at++
	}
	return n
}

// play runs owners one after another until all events are handled.
func (s *story) play() {
	for step := 0; s.offset < len(s.input) || s.h.count() > 0; step++ {
		if step > 5000 {
			s.Fatalf("after %d turns offset %d of %d is reached and %d events wait", step, s.offset, len(s.input), s.h.count())
		}
		if step%5 == 0 {
			for _, key := range s.keys {
				s.ready[s.h.modelOf(key)] = s.r.IntN(3) > 0
			}
		}
		if !s.batch() {
			s.begin()
		}
	}
}

// check requires that each event has one output, and that the outputs of each key are in order.
func (s *story) check() {
	s.Helper()
	last := map[string]int{}
	times := make([]int, len(s.input))
	for _, o := range s.outputs {
		if before, some := last[s.keys[o]]; some && before >= o {
			s.Errorf("event %d of %s came out after %d", o, s.keys[o], before)
		}
		last[s.keys[o]] = o
		times[o]++
	}
	for _, o := range s.dead {
		times[o]++
	}
	if i := slices.IndexFunc(times, func(n int) bool { return n != 1 }); i >= 0 {
		s.Errorf("event %d came out %d times", i, times[i])
	}
	s.begin()
	if n := s.h.count(); n > 0 {
		s.Errorf("%d events wait at the end", n)
	}
	s.h.committed(int64(len(s.input)))
	if m := s.h.returnMark(); m.at != s.h.end {
		s.Errorf("the mark %d has not come to the end, %d", m.at, s.h.end)
	}
}

// Wherever an owner stops and another continues, each event has one output, and each key's
// outputs are in order.
func TestWhatIsHeldComesBackOnceAndInOrder(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 10
	}
	k := newParkedKafka(t, seeds)
	renewed := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			k.TB = t
			s := newStory(k, uint64(seed), 60+seed*3, 1+seed%9)
			s.play()
			s.check()
			renewed += s.renewed
		})
	}
	k.TB = t
	if renewed == 0 {
		t.Error("no event was parked again, so that is not tested")
	}
}
