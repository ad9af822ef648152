package broker

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev"
)

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
