package broker

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readAlone reads eight partitions without a group, from two servers of which
// the first leads them all.
func readAlone(t *testing.T) (*Consumer, *Broker, *kfake.Cluster) {
	t.Helper()
	c := fakeCluster(t, kfake.NumBrokers(2))
	b := openAt(t, c.ListenAddrs()[0]+","+c.ListenAddrs()[1])
	ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 8})
	moveAll(t, c, 0)
	reader, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(context.Background()) })
	await(t, b, "prod.events")
	put(t, b, "prod.events", 0, 1, time.Now())
	d := poll(t, reader)
	d.Done()
	return reader, b, c
}

func poll(t *testing.T, c *Consumer) *Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	d, err := c.Poll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAPartitionIsReadWhileAnotherHasNoLeader(t *testing.T) {
	reader, b, c := readAlone(t)
	moveAll(t, c, 1)
	addrs := c.ListenAddrs()
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return oneLed(req.(*kmsg.MetadataRequest), addrs), nil, true
	})
	await(t, b, "prod.events")
	put(t, b, "prod.events", 7, 1, time.Now())
	d := poll(t, reader)
	if d.Partition != 7 {
		t.Errorf("read partition %d", d.Partition)
	}
	d.Done()
}

// oneLed answers that the last of eight partitions alone has a leader.
func oneLed(req *kmsg.MetadataRequest, addrs []string) kmsg.Response {
	res := req.ResponseKind().(*kmsg.MetadataResponse)
	for id, addr := range addrs {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		node := kmsg.NewMetadataResponseBroker()
		node.NodeID, node.Host, node.Port = int32(id), host, int32(n)
		res.Brokers = append(res.Brokers, node)
	}
	t := kmsg.NewMetadataResponseTopic()
	t.Topic = kmsg.StringPtr("prod.events")
	for i := range int32(8) {
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.ErrorCode = i, -1, kerr.LeaderNotAvailable.Code
		if i == 7 {
			p.Leader, p.ErrorCode = 1, 0
		}
		t.Partitions = append(t.Partitions, p)
	}
	res.Topics = append(res.Topics, t)
	return res
}

func TestAMovedPartitionIsReadOnce(t *testing.T) {
	reader, b, c := readAlone(t)
	twice := make(chan string, 1000)
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		seen := map[int32]bool{}
		for _, rt := range req.(*kmsg.FetchRequest).Topics {
			for _, p := range rt.Partitions {
				if seen[p.Partition] {
					twice <- fmt.Sprintf("partition %d is asked for twice in a request", p.Partition)
				}
				seen[p.Partition] = true
			}
		}
		return nil, nil, false
	})
	for round := range 3 {
		moveAll(t, c, int32(1-round%2))
		await(t, b, "prod.events")
		for p := range 8 {
			put(t, b, "prod.events", p, 1, time.Now())
		}
		seen := map[int32]int{}
		for len(seen) < 8 {
			d := poll(t, reader)
			if seen[d.Partition]++; len(d.Events) != 1 || seen[d.Partition] > 1 {
				t.Fatalf("round %d: partition %d was read again", round, d.Partition)
			}
			d.Done()
		}
	}
	select {
	case why := <-twice:
		t.Error(why)
	default:
	}
}
