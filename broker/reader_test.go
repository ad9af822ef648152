package broker

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// bareReader returns a consumer of one partition without a server. The test passes the fetched
// bytes to it.
func bareReader(t *testing.T, o ConsumerOptions, handler slog.Handler) (*Consumer, *inPartition) {
	t.Helper()
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	if handler == nil {
		handler = slog.DiscardHandler
	}
	c := (&Broker{names: names, log: slog.New(handler)}).newConsumer(o)
	t.Cleanup(func() {
		c.stop(ErrClosed)
		c.running.Wait()
	})
	p := &inPartition{c: c, tp: wire.TopicPartition{Topic: "tidemill.events"}, stream: "events", leader: 99}
	c.mu.Lock()
	c.parts[p.tp] = p
	c.mu.Unlock()
	return c, p
}

// oneEvent returns a batch of one event at an offset.
func oneEvent(t *testing.T, offset int64) []byte {
	t.Helper()
	var b wire.Builder
	b.Append(encodeRecord(plainEvent()))
	if err := b.Seal(wire.None); err != nil {
		t.Fatal(err)
	}
	b.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	set := append([]byte(nil), b.Bytes()...)
	binary.BigEndian.PutUint64(set, uint64(offset))
	return set
}

func fetchOf(p *inPartition) fetchAsk {
	return fetchAsk{p: p, position: p.position, epoch: p.epoch, series: p.series, ended: p.ended}
}

func pollNow(t *testing.T, c *Consumer) *Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	d, err := c.Poll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Without a group there are no dead letters: the reader gets an error for a corrupt batch, and
// reads on after it.
func TestReaderWithoutGroupIsToldOfCorruptBatches(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	bad := oneEvent(t, 1)
	bad[len(bad)-1] ^= 1
	set := append(append(oneEvent(t, 0), bad...), oneEvent(t, 2)...)
	c.receive(fetchOf(p), &wire.Fetched{Records: set, HighMark: 3}, nil)
	d := pollNow(t, c)
	if len(d.Events) != 3 || d.Events[0].Err != nil || d.Events[1].Err == nil || d.Events[1].Offset != 1 || d.Events[2].Err != nil {
		t.Errorf("%d events came: %v", len(d.Events), d.Events)
	}
	if at := c.Positions()[0].Offset; at != 3 {
		t.Errorf("it has read to %d", at)
	}
}

// onRecord is a log handler that calls a function for each record.
type onRecord func(slog.Record)

func (onRecord) Enabled(context.Context, slog.Level) bool        { return true }
func (f onRecord) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f onRecord) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f onRecord) WithGroup(string) slog.Handler                 { return f }

// The dead letter for a gap is counted before the events after the gap, however early these are
// fetched. Otherwise the group's offset could pass a dead letter that is not written.
func TestGapIsHandedOutBeforeWhatFollowsIt(t *testing.T) {
	var c *Consumer
	var p *inPartition
	c, p = bareReader(t, ConsumerOptions{}, onRecord(func(slog.Record) { // first moment at which another fetch is possible
		c.receive(fetchOf(p), &wire.Fetched{Records: oneEvent(t, 5), HighMark: 6}, nil)
	}))
	c.skipGap(fetchOf(p), 0, 5, context.DeadlineExceeded)
	if d := pollNow(t, c); d.Events[0].Err == nil {
		t.Errorf("offset %d comes before the gap", d.Events[0].Offset)
	}
	if d := pollNow(t, c); d.Events[0].Offset != 5 || d.Events[0].Err != nil {
		t.Errorf("behind the gap comes %v", d.Events[0])
	}
}

// A second Done after a delivery's last event ends no other event, even if the delivery's memory is
// used again.
func TestDoneAgainEndsNothingElse(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	receive := func(offset int64) *Delivery {
		c.receive(fetchOf(p), &wire.Fetched{Records: oneEvent(t, offset), HighMark: offset + 1}, nil)
		return pollNow(t, c)
	}
	var former []*Delivery
	for offset := range int64(100) { // a pool may drop an object
		d := receive(offset)
		for _, f := range former {
			f.Done()
		}
		if p.mark.openCount() != 1 {
			t.Fatalf("the event at %d was ended by a delivery before it", offset)
		}
		d.Events[0].Done()
		former = append(former, d)
	}
}

// The unpacked bytes of a compressed batch count as bytes in flight.
func TestUnpackedBytesAreInFlight(t *testing.T) {
	const size = 1 << 20
	c, p := bareReader(t, ConsumerOptions{MaxBytes: size}, nil)
	var b wire.Builder
	r := encodeRecord(plainEvent())
	r.Value = make([]byte, size)
	b.Append(r)
	if err := b.Seal(wire.Zstd); err != nil {
		t.Fatal(err)
	}
	b.Stamp(wire.Identity{Producer: -1, Epoch: -1, Sequence: -1})
	c.receive(fetchOf(p), &wire.Fetched{Records: b.Bytes(), HighMark: 1}, nil)
	d := pollNow(t, c)
	if !c.room.full() {
		t.Errorf("%d bytes are in flight", c.room.used.Load())
	}
	d.Done()
	if n := c.room.used.Load(); n != 0 {
		t.Errorf("%d bytes stay in flight", n)
	}
}

// A batch without an end is an error, and the request is not repeated for ever.
func TestEndlessBatchEndsReading(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	set := oneEvent(t, 0)
	c.receive(fetchOf(p), &wire.Fetched{Records: set[:len(set)-1], HighMark: 1}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	if _, err := c.Poll(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("Poll returns %v", err)
	}
}

func TestStartInWords(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 123_000_000, time.FixedZone("", 3600))
	for want, s := range map[string]Start{
		"beginning": Earliest(), "end": Latest(), "17": AtOffset(17), "2026-01-31T11:00:00.123Z": Since(at),
	} {
		if got := s.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
