package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker/retry"
)

// readIDs reads from an offset of the stream out once.
func (h *hostileBroker) readIDs(from int64) (ids []string, next int64) {
	h.Helper()
	next, err := h.b.Read(h.ctx(), Position{Stream: "out", Partition: 0, Offset: from}, 1<<20, func(e *Incoming) bool {
		ids = append(ids, string([]byte(e.ID)))
		return true
	})
	h.must(err)
	return ids, next
}

// Without faults a read takes one request, also at the log's end. After a fault it finds the
// leader.
func TestRead(t *testing.T) {
	h := newHostile(t, 3)
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	told := make(chan error, 1)
	p.SendTo(h.ctx(), "out", 0, hostileEvent(7), func(_ Receipt, err error) { told <- err })
	h.must(<-told)
	h.must(p.Close(h.ctx()))
	asked := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch, kmsg.Metadata, kmsg.ListOffsets}, Count: -1, Observe: true,
		When: func(r kmsg.Request) bool { // the transport asks for the metadata of events by itself
			_, metadata := r.(*kmsg.MetadataRequest)
			return !metadata || asksFor(r, "tidemill.out")
		}})
	h.readIDs(0)
	before := asked.Hits()
	if ids, next := h.readIDs(0); len(ids) != 1 || ids[0] != "7" || next != 1 {
		t.Errorf("read %v up to %d", ids, next)
	}
	if ids, next := h.readIDs(1); len(ids) != 0 || next != 1 {
		t.Errorf("at the end: %v up to %d", ids, next)
	}
	if n := asked.Hits() - before; n != 2 {
		t.Errorf("two reads cost %d requests", n)
	}
	for node := range int32(3) {
		h.must(h.kafka.MoveTopicPartition("tidemill.out", 0, node))
		if ids, _ := h.readIDs(0); len(ids) != 1 {
			t.Errorf("with leader %d: %v", node, ids)
		}
	}
	for _, e := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.OffsetNotAvailable, kerr.KafkaStorageError, kerr.FencedLeaderEpoch} {
		h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: e, Count: 2})
		if ids, _ := h.readIDs(0); len(ids) != 1 {
			t.Errorf("after %v: %v", e, ids)
		}
	}
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed})
	if _, err := h.b.Read(h.ctx(), Position{Stream: "out"}, 1, func(*Incoming) bool { return true }); !errors.Is(err, kafka.TopicAuthorizationFailed) {
		t.Errorf("refused: %v", err)
	}
}

func BenchmarkRead(b *testing.B) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "prod.events"))
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		b.Fatal(err)
	}
	br, err := Open(b.Context(), Options{Addr: k.ListenAddrs()[0], Names: names})
	if err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	p, err := br.Producer(ProducerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for n := range 100 {
		if _, err := p.Publish(b.Context(), "events", hostileEvent(n)); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		if _, err := br.Read(b.Context(), Position{Stream: "events", Offset: n % 100}, 4096, func(*Incoming) bool { return false }); err != nil {
			b.Fatal(err)
		}
	}
}

func publishAll(t *testing.T, b *Broker, stream string, ids ...string) {
	t.Helper()
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := p.Publish(t.Context(), stream, &View{ID: id, Source: "/x", Type: "t", Subject: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func readBack(t *testing.T, b *Broker, from Position) (ids []string, stopped Position) {
	t.Helper()
	all, err := b.ReadBack(t.Context(), []Position{from}, func(e *Incoming) { ids = append(ids, string([]byte(e.ID))) })
	if err != nil {
		t.Fatal(err)
	}
	return ids, all[0]
}

// ReadBack returns the committed events up to the end of the log at the call, also if only markers
// and aborted events precede that end. The next call continues there.
func TestReadBack(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.out", "prod.dead-letters"))
	publishAll(t, b, "events", "a", "b")
	c, x := openTransactor(t, b, nil)
	d, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copyOver := func(fail error) error {
		return x.Do(t.Context(), func(tx *Tx) error {
			for i := range d.Events {
				tx.Send(t.Context(), "out", &d.Events[i].View)
			}
			if fail == nil {
				tx.Done(d)
			}
			return errors.Join(tx.p.Flush(t.Context()), fail)
		})
	}
	if err := copyOver(errors.New("no")); !errors.Is(err, ErrAborted) {
		t.Fatal("abort:", err)
	}
	if ids, _ := readBack(t, b, Position{Stream: "out"}); len(ids) > 0 {
		t.Errorf("aborted events are read back: %v", ids)
	}
	if err := copyOver(nil); err != nil {
		t.Fatal(err)
	}
	ids, stopped := readBack(t, b, Position{Stream: "out"})
	if !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("read back %v", ids)
	}
	publishAll(t, b, "out", "c")
	if ids, _ := readBack(t, b, stopped); !slices.Equal(ids, []string{"c"}) {
		t.Errorf("read on from %v: %v", stopped, ids)
	}
}

// ReadBack waits for transactions that are open when it begins, because their inputs may be passed
// before their outputs are visible.
func TestReadBackWaitsForWhatIsOpen(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.out", "prod.dead-letters"))
	publishAll(t, b, "events", "a")
	c, x := openTransactor(t, b, nil)
	d := pollOne(t, c)
	asked := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Count: -1, Observe: true})
	back := make(chan []string)
	err := x.Do(t.Context(), func(tx *Tx) error {
		tx.Send(t.Context(), "out", &d.Events[0].View)
		tx.Done(d)
		if err := tx.p.Flush(t.Context()); err != nil {
			return err
		}
		go func() {
			var ids []string
			_, err := b.ReadBack(t.Context(), []Position{{Stream: "out"}}, func(e *Incoming) { ids = append(ids, string([]byte(e.ID))) })
			if err != nil {
				t.Error(err)
			}
			back <- ids
		}()
		return asked.Wait(t.Context(), 2) // requests for the start and for the end
	})
	if err != nil {
		t.Fatal(err)
	}
	if ids := <-back; !slices.Equal(ids, []string{"a"}) {
		t.Errorf("read back %v", ids)
	}
}

func openTransactor(t *testing.T, b *Broker, assigned func(context.Context, []Position) ([]Position, error)) (*Consumer, *Transactor) {
	t.Helper()
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, CommitEvery: 10 * time.Millisecond, Assigned: assigned})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.Transactor(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.Close(context.Background()), c.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return c, x
}

// After a failed transaction the hook Assigned is called again, and the events that it skips are
// committed for the group.
func TestAssignedAfterAbort(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.out", "prod.dead-letters"))
	publishAll(t, b, "events", "a", "b", "c")
	var failed atomic.Bool
	c, x := openTransactor(t, b, func(_ context.Context, all []Position) ([]Position, error) {
		if failed.Load() {
			all[0].Offset = 2
		}
		return all, nil
	})
	d, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failed.Store(true)
	defer func() { d.Done() }()
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(d); return errors.New("no") }); !errors.Is(err, ErrAborted) {
		t.Fatal("abort:", err)
	}
	if d, err = c.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%d %s", len(d.Events), d.Events[0].ID); got != "1 c" {
		t.Errorf("after the abort Poll returns %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	for group := committedBy(t, b); group != 2; group = committedBy(t, b) {
		if err := retry.Sleep(ctx, 10*time.Millisecond); err != nil {
			t.Fatalf("the group is at %d and was told of 2", group)
		}
	}
}

func committedBy(t *testing.T, b *Broker) int64 {
	t.Helper()
	all, err := b.Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Name == "events" && len(s.Groups) > 0 {
			return s.Groups[0].Partitions[0].Committed
		}
	}
	return -1
}

func TestPlacesAreWhereAReaderWouldBegin(t *testing.T) {
	cl, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "tidemill.events"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	names, _ := tidemill.NewNames("")
	b, err := Open(t.Context(), Options{Addr: cl.ListenAddrs()[0], Names: names})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := p.Publish(t.Context(), "events", &View{ID: "1", Source: "/x", Type: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for want, start := range map[int64]Start{0: Earliest(), 3: Latest(), 2: AtOffset(2)} {
		got, err := b.Places(t.Context(), "events", start)
		if err != nil || !slices.Equal(got, []Position{{Stream: "events", Offset: want}}) {
			t.Errorf("%s is at %v, %v", start, got, err)
		}
	}
	if got, err := b.Places(t.Context(), "events", AtOffset(9)); err != nil || got[0].Offset != 3 {
		t.Errorf("behind the end is %v, %v", got, err)
	}
	if _, err := b.Places(t.Context(), "none", Latest()); !errors.Is(err, ErrNoStream) {
		t.Errorf("of no stream it says %v", err)
	}
}

func TestPositionsComeToTheEnds(t *testing.T) {
	cl, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "tidemill.events"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	names, _ := tidemill.NewNames("")
	b, err := Open(t.Context(), Options{Addr: cl.ListenAddrs()[0], Names: names})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		if _, err := p.Publish(t.Context(), "events", &View{ID: key, Source: "/x", Type: "t", Subject: key}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends, err := b.Ends(t.Context(), "events")
	if err != nil || len(ends) != 2 || ends[0].Offset+ends[1].Offset != 4 {
		t.Fatalf("ends %v, %v", ends, err)
	}
	c, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	late := time.Now().Add(2 * time.Minute)
	for !slices.Equal(c.Positions(), ends) {
		if time.Now().After(late) {
			t.Fatalf("at %v, not at %v", c.Positions(), ends)
		}
		d, err := c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.Done()
	}
	if _, err := b.Ends(t.Context(), "none"); err == nil {
		t.Error("a stream that is not there has ends")
	}
}

func TestPlacesAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Position{
		"messages/3/17": {Stream: "messages", Partition: 3, Offset: 17}, "a.b/0/0": {Stream: "a.b"},
		"messages/3": {}, "messages/-1/17": {}, "messages/3/-17": {}, "messages/x/17": {}, "Messages!/3/17": {}, "messages/3/17/1": {}, "messages/4294967296/1": {}, "": {},
	} {
		got, ok := ParsePlace(text)
		if got != want || ok != (want.Stream != "") || ok && got.Place() != text {
			t.Errorf("%q is read as %+v, %t", text, got, ok)
		}
	}
}
