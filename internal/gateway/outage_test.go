package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
)

func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	defer client.Close()
	memory := must1(dedupe.Open(dedupe.Options{Redis: client, Names: must1(tidemill.NewNames("test"))(t)}))(t)
	defer memory.Close(t.Context())
	w := newWorld(t, func(o *Options) { o.Repeats = memory })
	w.post("/events", "", eventHeaders("before")...)
	server.Close()
	for i := range 100 {
		if r := w.post("/events", "", eventHeaders(fmt.Sprint(i))...); r.StatusCode != http.StatusAccepted {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	if n := len(w.storedEvents(tidemill.StreamEvents)); n != 101 {
		t.Errorf("%d stored", n)
	}
}

func TestKafkaAwayAndBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWorldOn(t, embedded.Options{Dir: dir}, func(o *Options) { o.Limits.Ack = time.Second })
	w.publishUntilAccepted("/events", "", eventHeaders("before")...)
	at := embedded.Options{Dir: dir, Kafka: w.servers.Kafka(), Redis: w.servers.Redis()}
	w.must(w.servers.Close())

	r := w.post("/events", "", eventHeaders("during")...)
	if p := problemOf(t, r); r.StatusCode != http.StatusServiceUnavailable || p.Type != api.ProblemBase+api.InDoubt {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	w.waitUntil("readyz says that Kafka is away", func() bool { return w.do(http.MethodGet, "/readyz", "").StatusCode == http.StatusServiceUnavailable })
	if r := w.do(http.MethodGet, "/healthz", ""); r.StatusCode != http.StatusOK {
		t.Error("the process is well")
	}

	w.startAgain(at)
	w.waitUntil("events are accepted again", func() bool { return w.post("/events", "", eventHeaders("after")...).StatusCode == http.StatusAccepted })
	w.waitUntil("readyz says so", func() bool { return w.do(http.MethodGet, "/readyz", "").StatusCode == http.StatusOK })
	if got := ids(w.storedEvents(tidemill.StreamEvents)); !slices.Contains(got, "before") || !slices.Contains(got, "after") {
		t.Errorf("stored %v", got)
	}
}

// stallStream makes Kafka refuse produced records of a stream, or of some of its partitions, until
// released.
func (w *world) stallStream(stream string, only ...int32) (release func()) {
	w.Helper()
	hold, cancel := context.WithCancel(context.Background())
	topic := must1(w.config.Names())(w).Topic(stream)
	w.servers.Cluster().ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.servers.Cluster().KeepControl()
		if hold.Err() != nil {
			return nil, nil, false
		}
		produce := r.(*kmsg.ProduceRequest)
		for _, t := range produce.Topics {
			if t.Topic == topic && (only == nil || slices.ContainsFunc(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return slices.Contains(only, p.Partition) })) {
				return refuseProduce(produce), nil, true
			}
		}
		return nil, nil, false
	})
	return cancel
}

// refuseProduce answers a produce request with the error that this server is not the leader.
func refuseProduce(r *kmsg.ProduceRequest) kmsg.Response {
	const notLeader = 6
	answer := r.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range r.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.Partition, partition.ErrorCode = p.Partition, notLeader
			topic.Partitions = append(topic.Partitions, partition)
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer
}

func TestAStalledStreamBlocksNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Unacked, o.Limits.Ack, o.Limits.Room = 64<<10, 500*time.Millisecond, 50*time.Millisecond
	})
	w.publishUntilAccepted("/streams/messages", "", eventHeaders("first")...) // makes the producer ask Kafka for the stream's partitions
	release := w.stallStream("messages")
	data := strings.Repeat("x", 10<<10)
	slugs := map[string]int{}
	for i := range 6 {
		p := problemOf(t, w.post("/streams/messages", data, eventHeaders(fmt.Sprint(i))...))
		slugs[strings.TrimPrefix(p.Type, api.ProblemBase)]++
	}
	if slugs[api.InDoubt] == 0 || slugs[api.Unavailable] == 0 {
		t.Errorf("of a stalled stream's events some wait in vain, the others find no room: %v", slugs)
	}
	for i := range 20 {
		w.publishUntilAccepted("/events", data, eventHeaders(fmt.Sprint(i))...)
	}
	release()
	w.waitUntil("the stream takes events again", func() bool {
		return w.post("/streams/messages", data, eventHeaders("last")...).StatusCode == http.StatusAccepted
	})
}

// publishUntilAccepted publishes until the event is accepted: with the short limits of a test, a
// busy machine may answer too late.
func (w *world) publishUntilAccepted(path, data string, headers ...string) {
	w.Helper()
	w.waitUntil("it is accepted", func() bool {
		r := w.post(path, data, headers...)
		if r.StatusCode != http.StatusAccepted && r.StatusCode != http.StatusServiceUnavailable {
			w.Fatalf("%d %s", r.StatusCode, r.body)
		}
		return r.StatusCode == http.StatusAccepted
	})
}

// keyOn returns a key whose events go to a partition.
func (w *world) keyOn(stream string, partition int) string {
	w.Helper()
	for i := 0; ; i++ {
		key := fmt.Sprint("key-", i)
		r := w.post("/streams/"+stream, "", eventHeaders(key, "ce-subject", key)...)
		if at := strings.Split(r.Header.Get(api.HeaderPosition), "/"); len(at) == 3 && at[1] == fmt.Sprint(partition) {
			return key
		}
	}
}

func TestAStalledPartitionBlocksNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Unacked, o.Limits.Ack, o.Limits.Room = 64<<10, 300*time.Millisecond, 50*time.Millisecond
	})
	stalled, healthy := w.keyOn("messages", 0), w.keyOn("messages", 1)
	release := w.stallStream("messages", 0)
	data := strings.Repeat("x", 10<<10)
	for i := range 6 {
		if r := w.post("/streams/messages", data, eventHeaders(fmt.Sprint(i), "ce-subject", stalled)...); r.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	for i := range 20 {
		w.publishUntilAccepted("/streams/messages", data, eventHeaders(fmt.Sprint("healthy-", i), "ce-subject", healthy)...)
	}
	release()
	w.waitUntil("nothing is under way", func() bool { return w.gateway.window.takenBytes() == 0 })
}

// A batch that gets room only in small steps is answered before net/http would cut off the
// answer.
func TestABatchIsAnsweredInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Unacked, o.Limits.Ack, o.Limits.Room = 4<<10, 2*time.Second, time.Second
		o.Limits.BodyGrace, o.Limits.Write = 4*time.Second, 3*time.Second // net/http cuts it off after ten seconds, and all events together would need twenty
	})
	defer w.stallStream("messages")()
	window, answered := &w.gateway.window, make(chan struct{})
	others := must1(window.take(t.Context(), window.open(), -1, 4<<10))(t)
	var giving sync.WaitGroup
	giving.Go(func() {
		often := time.NewTicker(300 * time.Millisecond)
		defer often.Stop()
		for {
			select {
			case <-often.C:
				window.release(others, 600)
			case <-answered:
				return
			}
		}
	})
	var events []string
	for i := range 100 {
		events = append(events, batchEvent(fmt.Sprint(i), "message", `,"subject":"a"`))
	}
	r := w.batch("/events", events...)
	close(answered)
	giving.Wait()
	if all := answersOf(t, r); r.StatusCode != http.StatusServiceUnavailable || len(all) != len(events) {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// The events of a key keep their order in a repeated batch only if no event is sent after one
// that failed.
func TestNothingIsSentBehindWhatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Room = 10 * time.Second
		hasty := must1(o.Broker.Producer(broker.ProducerOptions{Timeout: 500 * time.Millisecond}))(t)
		o.Producer = hasty
		t.Cleanup(func() { _ = hasty.Close(context.Background()) })
	})
	w.keyOn("messages", 0)
	window := &w.gateway.window
	w.waitUntil("nothing is under way", func() bool { return window.takenBytes() == 0 })
	must1(window.take(t.Context(), window.open(), -1, w.gateway.opt.Limits.Unacked-1))(t) // leaves room for one event at a time
	defer w.stallStream("messages")()
	var events []string
	for i := range 4 {
		events = append(events, batchEvent(fmt.Sprint(i), "message", `,"subject":"a"`))
	}
	r := w.batch("/events", events...)
	for i, a := range answersOf(t, r) {
		if want := api.ProblemBase + []string{api.InDoubt, api.Unavailable}[min(i, 1)]; a.Problem == nil || a.Problem.Type != want {
			t.Errorf("event %d: %+v", i, a.Problem)
		}
	}
}

// An event in doubt is remembered when it turns out later that it was stored.
func TestALateAcknowledgementIsRemembered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Ack = 200 * time.Millisecond })
	release := w.stallStream(tidemill.StreamEvents)
	if p := problemOf(t, w.post("/events", "", eventHeaders("late")...)); p.Type != api.ProblemBase+api.InDoubt {
		t.Fatalf("%+v", p)
	}
	release()
	w.waitUntil("it is stored", func() bool { return len(w.storedEvents(tidemill.StreamEvents)) == 1 })
	w.waitUntil("it is remembered", func() bool {
		return w.memory.Seen(t.Context(), tidemill.StreamEvents, time.Minute, "/test", "late")
	})
	if r := w.post("/events", "", eventHeaders("late")...); r.Header.Get(api.HeaderRepeated) != "true" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
}

func TestABatchThatIsInDoubtSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Ack = 300 * time.Millisecond })
	w.publishUntilAccepted("/streams/messages", "", eventHeaders("first")...)
	defer w.stallStream("messages")()
	var r reply
	var all []api.Answer
	w.waitUntil("what is not stalled is stored in time", func() bool {
		r = w.batch("/events", batchEvent("1", "message", ""), batchEvent("2", "other", ""), batchEvent("3", "tidemill.x", ""))
		all = answersOf(t, r)
		return len(all) != 3 || all[1].Status != http.StatusServiceUnavailable
	})
	if r.StatusCode != http.StatusServiceUnavailable || problemOf(t, r).Type != api.ProblemBase+api.Refused || len(all) != 3 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if all[0].Status != http.StatusServiceUnavailable || all[0].Problem.Type != api.ProblemBase+api.InDoubt ||
		all[1].Status != http.StatusAccepted || all[2].Status != http.StatusForbidden {
		t.Errorf("%s", r.body)
	}
}

func TestAClosedProducer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.must(w.producer.Close(t.Context()))
	if p := problemOf(t, w.post("/events", "", eventHeaders("1")...)); p.Type != api.ProblemBase+api.Unavailable || !strings.Contains(p.Detail, "stopping") {
		t.Errorf("%+v", p)
	}
}

// If a batch no longer finds room, the stored events of a key are its first ones. When the
// batch is published again, the others come after them.
func TestABatchThatFindsNoRoomKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.Unacked, o.Limits.Ack, o.Limits.Room = 64<<10, 300*time.Millisecond, 50*time.Millisecond
	})
	w.publishUntilAccepted("/streams/messages", "", eventHeaders("first", "ce-subject", "bot-1")...)
	release := w.stallStream("messages")
	events, want := []string(nil), []string{"first"}
	for i := range 20 {
		id := fmt.Sprint(i)
		events = append(events, batchEvent(id, "message", `,"subject":"bot-1","data":"`+strings.Repeat("x", 10<<10)+`"`))
		want = append(want, id)
	}
	r := w.batch("/events", events...)
	var sent []string
	for i, a := range answersOf(t, r) {
		switch {
		case a.Problem == nil:
			t.Errorf("event %s of a stalled stream is answered %d", a.ID, a.Status)
		case a.Problem.Type == api.ProblemBase+api.InDoubt && i != len(sent):
			t.Errorf("event %s was sent behind one that was not", a.ID)
		case a.Problem.Type == api.ProblemBase+api.InDoubt:
			sent = append(sent, a.ID)
		}
	}
	if r.StatusCode != http.StatusServiceUnavailable || len(sent) == 0 || len(sent) == len(events) {
		t.Fatalf("%d, and %d of %d were sent", r.StatusCode, len(sent), len(events))
	}
	release()
	w.waitUntil("all is stored", func() bool { return w.batch("/events", events...).StatusCode == http.StatusAccepted })
	var got []string
	for _, id := range ids(w.storedEvents("messages")) {
		if !slices.Contains(got, id) { // the first of repeated events counts
			got = append(got, id)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("stored %v", got)
	}
}
