package broker

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// While the cluster does not answer, the resolver asks once for each topic and not once for each
// partition. Otherwise the last partitions would wait far beyond their events' timeout.
func TestResolverAsksOnceForATopic(t *testing.T) {
	const partitions = 20
	b, k := openFake(t, kfake.SeedTopics(partitions, "prod.out"))
	var asked atomic.Int64
	k.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		topics := r.(*kmsg.MetadataRequest).Topics
		if len(topics) != 1 || topics[0].Topic == nil || *topics[0].Topic != "prod.out" {
			return nil, nil, false // the transport's own requests
		}
		asked.Add(1)
		return nil, errors.New("closed"), true
	})
	p, one := loneProducer(time.Minute)
	p.b, p.ctx = b, t.Context()
	one.topic.name = "prod.out"
	var due []lost
	for i := range partitions {
		o := &outPartition{topic: one.topic, index: int32(i), place: homeless}
		o.put(t, p, func(Receipt, error) {})
		due = append(due, lost{o: o, last: errors.New("no")})
	}
	p.resolve.resolveAll(p, due)
	if n := asked.Load(); n != 1 {
		t.Errorf("the topic was asked for %d times", n)
	}
	if n := len(p.resolve.list); n != partitions {
		t.Errorf("%d of %d partitions are to be tried again", n, partitions)
	}
}
