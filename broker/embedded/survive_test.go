package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// Acknowledged records, topics and committed offsets survive a SIGKILL, in many rounds in
// one folder.
func TestSurvivesSIGKILL(t *testing.T) {
	const rounds = 5
	dir, rnd := t.TempDir(), rand.New(rand.NewPCG(2, 7))
	kept := map[int64]string{}
	for round := range rounds {
		kill, addr := startChild(t, dir)
		c := kafkaClient(t, addr)
		if round == 0 {
			must(t, createTopic(t, c, "kept"))
		} else {
			mustHold(t, addr, kept)
			mustHaveCommitted(t, c, int64(round-1))
		}
		must(t, createTopic(t, c, fmt.Sprint("topic-", round)))
		commit(t, c, int64(round))
		publishUntilKilled(t, c, kept, round, 100+rnd.IntN(200), kill)
	}
	kill, addr := startChild(t, dir)
	defer kill()
	mustHold(t, addr, kept)
	m, err := kafkaClient(t, addr).Metadata(t.Context(), &kafka.MetadataRequest{})
	must(t, err)
	if len(m.Topics) != rounds+1 {
		t.Errorf("%d topics are left of %d", len(m.Topics), rounds+1)
	}
}

// publishUntilKilled publishes from several goroutines and kills the server after the
// given number of acknowledgements, while requests are in flight.
func publishUntilKilled(t *testing.T, c *kafka.Client, kept map[int64]string, round, acks int, kill func()) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	enough := make(chan struct{})
	for p := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				value := fmt.Sprint(round, "-", p, "-", i)
				offset, err := produce(ctx, c, "kept", value)
				if err != nil {
					return // the server was killed
				}
				mu.Lock()
				kept[offset] = value
				if acks--; acks == 0 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	kill()
	cancel()
	wg.Wait()
}

func mustHold(t *testing.T, addr string, kept map[int64]string) {
	t.Helper()
	got := readTopic(t, addr, "kept")
	for offset, value := range kept {
		if got[offset] != value {
			t.Fatalf("offset %d holds %q, and %q was acknowledged there", offset, got[offset], value)
		}
	}
}

func commit(t *testing.T, c *kafka.Client, offset int64) {
	t.Helper()
	r, err := c.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{GroupID: "g", GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{"kept": {{Partition: 0, Offset: offset}}}})
	must(t, err)
	must(t, r.Topics["kept"][0].Error)
}

func mustHaveCommitted(t *testing.T, c *kafka.Client, want int64) {
	t.Helper()
	r, err := c.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{GroupID: "g", Topics: map[string][]int{"kept": {0}}})
	must(t, err)
	if got := r.Topics["kept"][0].CommittedOffset; got != want {
		t.Fatalf("the group is at %d and had committed %d", got, want)
	}
}

// Retention also runs after a restart, when no topic is created or altered.
func TestRetentionAfterRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	c := kafkaClient(t, s.Kafka())
	must(t, createTopic(t, c, "short", kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "1"}))
	must(t, createTopic(t, c, "ever", kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "-1"}))
	for _, topic := range []string{"short", "ever"} {
		_, err := produce(t.Context(), c, topic, "x")
		must(t, err)
	}
	must(t, s.Close())

	s = start(t, Options{Dir: dir, Retention: time.Millisecond})
	waitEffect(t, "the expired record is gone", func() bool { return visibleRecords(t, s.Kafka(), "short") == 0 })
	if visibleRecords(t, s.Kafka(), "ever") != 1 {
		t.Error("what never expires is gone")
	}
}

// visibleRecords returns the number of records of the topic that readers can see.
func visibleRecords(t *testing.T, addr, topic string) int64 {
	t.Helper()
	conn, err := kafka.DialLeader(t.Context(), "tcp", addr, topic, 0)
	must(t, err)
	defer conn.Close()
	first, last, err := conn.ReadOffsets()
	must(t, err)
	return last - first
}
