package broker

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Close also ends a Send that waits for a stream's partitions.
func TestCloseEndsTheSearchForAStream(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.out"))
	asked := make(chan struct{}, 1)
	k.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		topics := r.(*kmsg.MetadataRequest).Topics
		if len(topics) != 1 || topics[0].Topic == nil || *topics[0].Topic != "prod.out" {
			return nil, nil, false // the transport's own requests
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil, errors.New("closed"), true
	})
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	go p.Send(t.Context(), "out", plainEvent(), func(_ Receipt, err error) { outcome <- err })
	<-asked
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; !errors.Is(err, ErrClosed) {
		t.Errorf("error is %v", err)
	}
}

// The error for a refused event names the event's id, its stream and its partition.
func TestPublishNamesTheEvent(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events"))
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.PolicyViolation})
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v := plainEvent()
	_, err = p.Publish(t.Context(), "events", v)
	if want := "event " + v.ID + ": publish to stream events, partition 0: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error is %v, want %s…", err, want)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The values are those of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2IsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) is %d, want %d", key, got, want)
		}
	}
}

func TestPartitionOf(t *testing.T) {
	for _, c := range []struct {
		key        string
		partitions int
		want       int32
	}{
		{"21", 12, (-973932308 & 0x7fffffff) % 12},
		{"abc", 48, 479470107 % 48},
		{"", 1, 0},
	} {
		if got := PartitionOf([]byte(c.key), c.partitions); got != c.want {
			t.Errorf("key %q of %d partitions is at %d, want %d", c.key, c.partitions, got, c.want)
		}
	}
}
