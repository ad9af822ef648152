package broker

import (
	"errors"
	"slices"
	"testing"

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
