package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// A reader at the end of the log pauses, and a reader that is behind does not.
func TestRestUntil(t *testing.T) {
	now := time.Unix(1, 0)
	for name, c := range map[string]struct {
		rest    time.Duration
		brought bool
		bytes   int
		want    time.Time
	}{
		"a little":             {time.Second, true, 100, now.Add(time.Second)},
		"nothing":              {time.Second, false, 100, time.Time{}},
		"a lot":                {time.Second, true, smallAnswer, time.Time{}},
		"nobody wants to rest": {0, true, 100, now},
	} {
		if got := restUntil(now, c.rest, c.brought, c.bytes); !got.Equal(c.want) {
			t.Errorf("%s: it rests until %v, want %v", name, got, c.want)
		}
	}
}

// readAlone reads eight partitions without a group, from two servers. The first server leads all
// partitions.
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
	waitForTopic(t, b, "prod.events")
	writeRecords(t, b, "prod.events", 0, 1, time.Now())
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
	waitForTopic(t, b, "prod.events")
	writeRecords(t, b, "prod.events", 7, 1, time.Now())
	d := poll(t, reader)
	if d.Partition != 7 {
		t.Errorf("read partition %d", d.Partition)
	}
	d.Done()
}

// oneLed returns metadata in which only the last of eight partitions has a leader.
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

// A leader that is known and does not let us read is in the log, once until the partition is read again.
func TestTheLogSaysThatALeaderRefusesAPartition(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		var warnings []string
		b, c := virtualFake(t, onRecord(func(r slog.Record) {
			r.Attrs(func(a slog.Attr) bool {
				if a.Key == "reason" {
					warnings = append(warnings, fmt.Sprint(r.Level, " ", r.Message, ": ", a.Value))
				}
				return true
			})
		}), "prod.events")
		c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if !failing.Load() {
				return nil, nil, false
			}
			resp := r.ResponseKind().(*kmsg.FetchResponse)
			topic, partition := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
			partition.ErrorCode = kerr.UnknownServerError.Code
			topic.Topic, topic.Partitions = "prod.events", append(topic.Partitions, partition)
			resp.Topics = append(resp.Topics, topic)
			return resp, nil, true
		})
		reader, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close(context.Background())
		for round := range 2 {
			failing.Store(true)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(warnings); n != round+1 || !strings.HasPrefix(warnings[round], "WARN consumer: reading a partition failed; retrying: [-1] Unknown") {
				t.Fatalf("round %d: the log has %q", round, warnings)
			}
			failing.Store(false)
			time.Sleep(time.Minute)
		}
	})
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
		waitForTopic(t, b, "prod.events")
		for p := range 8 {
			writeRecords(t, b, "prod.events", p, 1, time.Now())
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

// If an answer is full before the last partition, the first partitions must not starve the others:
// all are started before one is read to its end.
func TestEveryPartitionGetsItsTurn(t *testing.T) {
	const partitions, events, size = 8, 28, 256 << 10 // more than three answers of a partition, because partitions are handed to the fetcher one by one
	b, _ := openFake(t, kfake.SeedTopics(partitions, "prod.events"))
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range partitions * events {
		v := plainEvent()
		v.Key, v.Data = keyFor(int32(i%partitions), partitions), make([]byte, size)
		p.Send(t.Context(), "events", v, func(_ Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	seen := map[int32]int{}
	for len(seen) < partitions {
		d, err := c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[d.Partition] += len(d.Events)
		if seen[d.Partition] == events && len(seen) < partitions {
			t.Fatalf("partition %d was read to its end, %d of %d have been begun", d.Partition, len(seen), partitions)
		}
		d.Done()
	}
}

// keyFor returns a key that belongs to the partition.
func keyFor(partition int32, partitions int) []byte {
	for i := 0; ; i++ {
		if key := fmt.Append(nil, i); PartitionOf(key, partitions) == partition {
			return key
		}
	}
}

// A partition that becomes readable during a long poll does not wait for the poll's end.
func TestAPollIsAbandonedForAPartitionThatItLacks(t *testing.T) {
	reader, b, c := readAlone(t)
	polls, over := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(over) })
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if r := req.(*kmsg.FetchRequest); r.MaxWaitMillis == int32(longPoll.Milliseconds()) {
			polls <- struct{}{}
			c.SleepControl(func() { <-over }) // a poll never ends by itself
		}
		return nil, nil, false
	})
	waitForPoll(t, polls, hostilePatience)
	reader.Pause("events", 3)
	reader.Resume("events", 3)                  // it must be read again from the first event that was not handed out
	waitForPoll(t, polls, b.requestTimeout*3/4) // later, the first poll would end by its own timeout
}

func waitForPoll(t *testing.T, polls <-chan struct{}, patience time.Duration) {
	t.Helper()
	select {
	case <-polls:
	case <-time.After(patience):
		t.Fatal("no long poll began")
	}
}

// The partitions of a backlog share a whole answer, and the others may have a little.
func TestFetchSizesOfABacklog(t *testing.T) {
	for name, c := range map[string]struct {
		behind []bool
		want   []int32
	}{
		"one of three":   {[]bool{false, true, false}, []int32{partitionFetch, nodeFetch, partitionFetch}},
		"two":            {[]bool{true, true}, []int32{nodeFetch / 2, nodeFetch / 2}},
		"none":           {[]bool{false, false}, []int32{partitionFetch, partitionFetch}},
		"more than fits": {[]bool{true, true, true, true, true, true, true, true}, slices.Repeat([]int32{partitionFetch}, 8)},
	} {
		reader, p := bareReader(t, ConsumerOptions{}, nil)
		f := &fetcher{c: reader, node: 99}
		for i, behind := range c.behind {
			one := &inPartition{c: reader, tp: wire.TopicPartition{Topic: p.tp.Topic, Partition: int32(i)}, leader: 99}
			if behind {
				one.end = 10
			}
			f.parts = append(f.parts, one)
		}
		f.choosePartitions(time.Now())
		for i, a := range f.asked {
			if got := f.limit(a); got != c.want[i] {
				t.Errorf("%s: partition %d may have %d bytes, want %d", name, i, got, c.want[i])
			}
		}
	}
}

// A partition whose batch has no room in an answer comes first in the next one, even if a later partition has
// small batches that always have room.
func TestAPartitionWithoutRoomComesFirst(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	f := &fetcher{c: c, node: 99}
	for i := range int32(3) {
		f.parts = append(f.parts, &inPartition{c: c, tp: wire.TopicPartition{Topic: p.tp.Topic, Partition: i}, leader: 99})
	}
	read := map[int32]int{}
	for range 4 {
		f.choosePartitions(time.Now())
		buffer := f.keepAnswer(nil)
		for i, a := range f.asked {
			part := &wire.Fetched{Topic: a.p.tp.Topic, Partition: a.p.tp.Partition, StableMark: 100}
			if small := a.p == f.parts[2]; small || i == 0 {
				part.Records = oneEvent(t, a.position)
			}
			f.handleAnswer(part, buffer)
		}
		for d := pollNow(t, c); ; d = pollNow(t, c) {
			read[d.Partition]++
			d.Done()
			if len(c.queue) == 0 {
				break
			}
		}
	}
	if read[0] < 2 || read[1] < 2 || read[2] < 4 {
		t.Errorf("the partitions were read %v times", read)
	}
}

// While much waits for Poll, nothing is fetched. The delivery that makes room wakes the fetchers.
func TestNothingIsFetchedWhileMuchWaitsForPoll(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	f := &fetcher{c: c, node: 99, wake: make(chan struct{}, 1), parts: []*inPartition{{c: c, tp: wire.TopicPartition{Topic: p.tp.Topic, Partition: 1}, leader: 99}}}
	c.fetchers[99] = f
	set := oneEvent(t, 0)
	for range 2 { // the last one is more than fits
		part := &wire.Fetched{Topic: p.tp.Topic, Records: set, StableMark: 100}
		c.receive(fetchOf(p), part, nil)
		c.mu.Lock()
		c.queue[len(c.queue)-1].size, c.waiting = aheadOfPoll*3/4, c.waiting-int64(len(set))+aheadOfPoll*3/4
		c.mu.Unlock()
		set = oneEvent(t, 1)
	}
	if f.choosePartitions(time.Now()); len(f.asked) > 0 || c.mayFetch() {
		t.Errorf("%d partitions are fetched", len(f.asked))
	}
	d := pollNow(t, c)
	select {
	case <-f.wake:
	default:
		t.Error("the fetcher is not woken")
	}
	if f.choosePartitions(time.Now()); len(f.asked) != 1 {
		t.Errorf("%d partitions are fetched, want 1", len(f.asked))
	}
	d.Done()
	pollNow(t, c).Done()
	if c.waiting != 0 {
		t.Errorf("%d bytes wait in an empty queue", c.waiting)
	}
}

// A consumer is behind while the log has more than was fetched and can be read.
func TestBehind(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Consumer, *inPartition)
		want   bool
	}{
		"more on the log":    {func(*Consumer, *inPartition) {}, true},
		"at the end":         {func(_ *Consumer, p *inPartition) { p.position = p.end }, false},
		"paused":             {func(_ *Consumer, p *inPartition) { p.paused = true }, false},
		"draining":           {func(_ *Consumer, p *inPartition) { p.draining = true }, false},
		"without a leader":   {func(_ *Consumer, p *inPartition) { p.leader = unknownNode }, false},
		"after an error":     {func(_ *Consumer, p *inPartition) { p.notBefore = time.Now().Add(time.Hour) }, false},
		"no room for events": {func(c *Consumer, _ *inPartition) { c.room.take(c.room.limit) }, false},
	} {
		reader := (&Broker{}).stillConsumer(ConsumerOptions{})
		p := &inPartition{c: reader, leader: 99, end: 10}
		reader.parts[wire.TopicPartition{}] = p
		c.change(reader, p)
		if got := reader.Behind(); got != c.want {
			t.Errorf("%s: behind is %v", name, got)
		}
	}
}
