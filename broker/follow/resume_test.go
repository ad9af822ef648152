package follow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// Readers run one after another, and each resumes where the one before stopped in the middle of a
// batch. Meanwhile Kafka restarts and new events arrive: every event is read exactly once.
func TestResumeMissesNothingAndReadsNothingTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			o := embedded.Options{Dir: t.TempDir()}
			s := serve(t, o)
			o.Kafka, o.Redis = s.Kafka(), s.Redis()
			w := newWorld(t, s.Kafka(), 5)
			random := rand.New(rand.NewPCG(seed, seed))
			published := make(chan struct{})
			go func() {
				defer close(published)
				for i := range 40 {
					w.publish(fmt.Sprint(i), 25)
				}
			}()
			seen, at := map[place]string{}, Place{}
			for cut, more := 0, true; more; cut++ {
				if cut == 3 {
					w.must(s.Close())
					s = serve(t, o)
				}
				select {
				case <-published:
					more = false
				default:
				}
				at = w.readOn(at, random.IntN(300), !more, seen)
			}
			if len(seen) != 1000 {
				t.Errorf("%d events were read, want 1000", len(seen))
			}
			for p, id := range w.there {
				if seen[p] != id {
					t.Errorf("%v holds %s, and %q was read", p, id, seen[p])
				}
			}
		})
	}
}

// readOn reads n more events, or all, and returns the place reached.
func (w *testWorld) readOn(at Place, n int, all bool, seen map[place]string) Place {
	w.Helper()
	token := at.Token(stream)
	at, err := ParseToken(token, stream)
	w.must(err)
	ctx, o := w.ctx(), ReaderOptions{Stream: stream, Resume: at, ToEnd: true}
	r, err := OpenReader(ctx, w.b, o)
	for err != nil && ctx.Err() == nil { // Kafka has just been restarted
		r, err = OpenReader(ctx, w.b, o)
	}
	w.must(err)
	defer func() { w.must(r.Close(w.ctx())) }()
	at = r.Place()
	for _, e := range w.restOfEvents(r) {
		if n--; n < 0 && !all {
			return at
		}
		p := place{e.Partition, e.Offset}
		if _, twice := seen[p]; twice || e.Err != nil {
			w.Errorf("%v was read twice, or %v", p, e.Err)
		}
		seen[p] = strings.Clone(e.ID)
		at.Set(e.Partition, e.Next)
	}
	return at
}

// A partition added since the place was taken is read from its beginning.
func TestResumeReadsAddedPartitions(t *testing.T) {
	t.Parallel()
	addr := serve(t, embedded.Options{}).Kafka()
	w := newWorld(t, addr, 2)
	w.publish("a", 20)
	r := w.open(ReaderOptions{Start: broker.Earliest(), ToEnd: true})
	if n := len(w.restOfEvents(r)); n != 20 {
		t.Fatalf("%d events", n)
	}
	at := r.Place()
	_, err := w.b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: stream, Partitions: 6}}, broker.EnsureOptions{Reorder: true})
	w.must(err)
	newWorld(t, addr, 6).publish("b", 100) // a new client, which knows the added partitions
	all := w.restOfEvents(w.open(ReaderOptions{Resume: at, ToEnd: true}))
	if len(all) != 100 || !slices.ContainsFunc(all, func(e Event) bool { return e.Partition > 1 }) {
		t.Errorf("%d events, want the 100 that came since, on all partitions", len(all))
	}
}

func TestResumeTellsWhatIsGone(t *testing.T) {
	t.Parallel()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "tidemill.events"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	w := newWorld(t, strings.Join(kafka.ListenAddrs(), ","), 2)
	w.publish("a", 40)
	ends := w.open(ReaderOptions{Start: broker.Latest()}).Place()
	w.must(kafka.DeleteRecords("tidemill.events", 0, 4))

	from := Place{1, ends[1] + 5, 7} // the third partition is from an earlier stream of this name
	for _, toEnd := range []bool{true, false} {
		r := w.open(ReaderOptions{Resume: from, ToEnd: toEnd})
		if at := r.Place(); !slices.Equal(at, from[:2]) {
			t.Errorf("before the gaps were returned: %v, want %v", at, from[:2])
		}
		gaps, err := r.Next(w.ctx())
		w.must(err)
		if len(gaps) != 2 || gaps[0].Offset != 1 || gaps[0].Next != 4 || gaps[1].Next != ends[1] ||
			!strings.Contains(gaps[0].Err.Error(), "offsets 1 to 3 were deleted") || !strings.Contains(gaps[1].Err.Error(), fmt.Sprintf("the log ends at %d", ends[1])) {
			t.Errorf("gaps are %+v", gaps)
		}
		if at := r.Place(); !slices.Equal(at, Place{4, ends[1]}) {
			t.Errorf("after the gaps: %v", at)
		}
		if !toEnd {
			continue
		}
		if rest := w.restOfEvents(r); len(rest) != int(ends[0])-4 || rest[0].Offset != 4 {
			t.Errorf("%d events, want those after the gap", len(rest))
		}
	}
}

// Retention may also overtake a running reader. The gap that it returns covers many
// offsets, and a reader that resumes after the gap does not get it again.
func TestGapUnderWayIsPassed(t *testing.T) {
	t.Parallel()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "tidemill.events"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	w := newWorld(t, strings.Join(kafka.ListenAddrs(), ","), 1)
	w.publish("a", 20)
	r := &Reader{stream: stream, ends: map[int32]int64{0: 20}, most: gatherBytes}
	r.consumer, err = w.b.Consumer(w.ctx(), broker.ConsumerOptions{Streams: []string{stream},
		Assigned: func(_ context.Context, p []broker.Position) ([]broker.Position, error) {
			return p, kafka.DeleteRecords("tidemill.events", 0, 10)
		}})
	w.must(err)
	t.Cleanup(func() { _ = r.Close(w.Context()) })
	batch := w.nextBatch(r)
	if e := batch[0]; e.Err == nil || e.Offset != 0 || e.Next != 10 || e.Received.IsZero() {
		t.Errorf("%+v", e)
	}
}
