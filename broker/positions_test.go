package broker

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev"
)

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
